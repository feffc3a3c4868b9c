"""Sessions that ask again as soon as they are answered, against one engine, in turns."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from paceline.core.events import FinishEvent, TokenEvent
from paceline.core.request import DrafterKind, Request, Speculation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import SamplingParams
    from paceline.engine.engine import Engine


class Column(NamedTuple):
    """How requests ask for their tokens."""

    speculation: Speculation
    drafter: DrafterKind = DrafterKind.AUTO
    depth: int | None = None


@dataclass(slots=True)
class Turn:
    """Counts and times of one turn. stage_ms: of all its steps, drafting, verifying, sampling and
    the rest. predicted_ms: of all its steps by the engine's cost model, 0 without one."""

    num_tokens: int = 0
    seconds: float = 0.0
    num_steps: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    stage_ms: list[float] = field(default_factory=lambda: [0.0] * 4)
    predicted_ms: float = 0.0

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.num_tokens / self.seconds

    @property
    def predicted_share(self) -> float | None:
        """Predicted over measured time of the steps."""
        return self.predicted_ms / sum(self.stage_ms) if self.predicted_ms else None


class ClosedLoop:
    """num_tokens: of each answer; in the first ones of a turn a part of it, so that answers don't
    end all at once."""

    def __init__(self, engine: Engine, num_tokens: int) -> None:
        self._engine = engine
        self._num_tokens = num_tokens
        self._num_requests = 0
        self._open: dict[str, int] = {}

    def run(
        self,
        column: Column,
        prompts: list[tuple[int, ...]],
        sampling: SamplingParams,
        name: str,
        seconds: float,
        *,
        numbers: Sequence[int] | None = None,
        is_settled: bool = True,
    ) -> Turn:
        """One turn: a session for each prompt, under the keys `name/0`, `name/1`, .., which know
        each other from turn to turn. At its end all of them leave.

        numbers: of the sessions, in place of 0, 1, ... is_settled: the time before everybody has a
        first token doesn't count.
        """
        numbers = range(len(prompts)) if numbers is None else numbers
        names = [f"{name}/{number}" for number in numbers]
        first = [
            self._num_tokens * (len(prompts) + i) // (2 * len(prompts)) for i in range(len(prompts))
        ]
        for index in range(len(prompts)):
            self._ask(column, prompts, sampling, names, index, max(2, first[index]))
        waiting = set(self._open) if is_settled else set()
        turn = Turn()
        totals = self._engine.status().totals
        started = time.perf_counter()
        while True:
            result = self._engine.step()
            for event in result.events:
                match event:
                    case TokenEvent():
                        waiting.discard(event.request_id)
                        turn.num_tokens += len(event.tokens)
                    case FinishEvent():
                        if event.error is not None:
                            raise RuntimeError(event.error)
                        waiting.discard(event.request_id)
                        index = self._open.pop(event.request_id)
                        self._ask(column, prompts, sampling, names, index, self._num_tokens)
            now = time.perf_counter()
            if waiting:
                turn, started, totals = Turn(), now, result.status.totals
                continue
            turn.num_steps += 1
            times = result.status.times
            for stage, spent in enumerate(
                (times.draft_ms, times.verify_ms, times.sample_ms, times.other_ms)
            ):
                turn.stage_ms[stage] += spent
            turn.predicted_ms += result.status.speculation.predicted_step_ms or 0.0
            if now - started >= seconds:
                break
        turn.seconds = now - started
        turn.num_drafted = result.status.totals.num_drafted - totals.num_drafted
        turn.num_accepted = result.status.totals.num_accepted - totals.num_accepted
        self._leave()
        return turn

    def _ask(
        self,
        column: Column,
        prompts: list[tuple[int, ...]],
        sampling: SamplingParams,
        names: list[str],
        index: int,
        num_tokens: int,
    ) -> None:
        self._num_requests += 1
        request_id = f"r{self._num_requests}"
        self._open[request_id] = index
        self._engine.submit(
            Request(
                request_id,
                prompts[index],
                num_tokens,
                sampling,
                speculation=column.speculation,
                drafter=column.drafter,
                num_speculative_tokens=column.depth,
                speculation_key=names[index],
            )
        )

    def _leave(self) -> None:
        for request_id in self._open:
            self._engine.cancel(request_id)
        self._open.clear()
        while self._engine.has_work:
            self._engine.step()
