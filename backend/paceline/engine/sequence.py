"""The engine's one mutable record: a request while it is being served.

Between steps a decoding sequence has every token but its newest in the target's K/V:
`num_computed == num_tokens - 1`. The draft cursor runs apart: it may lag after prefix hits, plain
steps and preemption, and trails by one token more after a fully accepted draft, whose last token
was never fed to the draft model.

    token_ids      p p p p p p p p t t t t           p prompt, t output
    num_computed   ................^                 target rows that are valid
    num_draft_computed  ......^                      draft rows that are valid
    block_table    [  7  ][  2  ][  9  ][ 4 ]        covers at least num_computed; the rest of the
                                                     last block and any block after it is lookahead
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from paceline.core.events import Gate
from paceline.engine.stops import StopScanner

if TYPE_CHECKING:
    from paceline.cache.prefix import Digest
    from paceline.core.request import Request
    from paceline.sampling.constraints import RowConstraint


class TextStream(Protocol):
    """Turns committed token ids into text that never splits a character."""

    def append(self, token_id: int) -> str:
        """Text that became certain with this token, often its own, sometimes none."""
        ...

    def flush(self) -> str:
        """What is left at the end."""
        ...


class SequenceStatus(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class SequenceCounters:
    """Raw counts and times of one sequence; any ratio can be formed from them later."""

    num_drafted: int = 0
    num_examined: int = 0
    num_passed: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    accepted_per_position: list[int] = field(default_factory=list)
    examined_per_position: list[int] = field(default_factory=list)
    passed_per_position: list[int] = field(default_factory=list)
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    other_ms: float = 0.0
    expected_plain_ms: float | None = None
    num_preemptions: int = 0

    def count_round(
        self, num_drafted: int, num_accepted: int, num_examined: int, num_passed: int
    ) -> None:
        """A verified draft: accepted as it was, examined and passed by the token rule."""
        self.num_drafted += num_drafted
        self.num_accepted += num_accepted
        self.num_examined += num_examined
        self.num_passed += num_passed
        missing = num_drafted - len(self.accepted_per_position)
        if missing > 0:
            self.accepted_per_position += [0] * missing
            self.examined_per_position += [0] * missing
            self.passed_per_position += [0] * missing
        for position in range(num_accepted):
            self.accepted_per_position[position] += 1
        for position in range(num_examined):
            self.examined_per_position[position] += 1
        for position in range(num_passed):
            self.passed_per_position[position] += 1


class Sequence:
    """State of one request. Owned by the engine thread; nothing outside it may hold on to one.

    seed: 64-bit key of its random numbers. round: see `sampling.randomness`; never reset.
    constraint: edits its rows of logits; it knows the committed tokens and survives preemption.
    """

    def __init__(
        self,
        request: Request,
        text: TextStream,
        seed: int,
        arrived_at: float,
        constraint: RowConstraint | None = None,
    ) -> None:
        self.request = request
        self.request_id = request.request_id
        self.status = SequenceStatus.WAITING
        self.token_ids: list[int] = list(request.prompt_ids)
        self.num_prompt = len(request.prompt_ids)
        self.num_computed = 0
        self.num_draft_computed = 0
        self.block_table: list[int] = []
        self.block_keys: list[Digest] = []
        self.num_registered = 0
        self.num_cached_prompt: int | None = None
        self.seed = seed
        self.round = 0
        self.constraint = constraint
        self.text = text
        self.stops = StopScanner(request.stop)
        self.counters = SequenceCounters()
        self.drafter_name = "none"
        self.gate = Gate.OFF
        self.gate_reason = ""
        self.arrived_at = arrived_at
        self.started_at: float | None = None
        self.first_token_at: float | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_output(self) -> int:
        return len(self.token_ids) - self.num_prompt

    @property
    def num_uncomputed(self) -> int:
        """Known tokens that the target has not computed."""
        return len(self.token_ids) - self.num_computed

    @property
    def is_decoding(self) -> bool:
        """Only the newest token is left to compute: drafted ones may follow it."""
        return self.num_uncomputed == 1

    @property
    def num_draft_lag(self) -> int:
        """Known tokens that the draft model has not computed."""
        return len(self.token_ids) - self.num_draft_computed

    def __repr__(self) -> str:
        return (
            f"Sequence({self.request_id}, {self.status}, {self.num_prompt}+{self.num_output} tokens"
            f", computed {self.num_computed}/{self.num_draft_computed})"
        )
