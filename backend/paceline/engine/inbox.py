"""The way into the engine: what other threads ask for, until the step reads it.

Checks and grammars are settled here, on the caller's thread; the engine's thread never compiles.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import QueueFullError, RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.core.limits import EngineLimits
    from paceline.core.request import Request
    from paceline.sampling.constraints import RowConstraint
    from paceline.sampling.grammar import GrammarCompiler


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that was taken. grammar: its constraint at the beginning of the output."""

    request: Request
    arrived_at: float
    grammar: RowConstraint | None


@dataclass(frozen=True, slots=True)
class Cancellation:
    """A request is to end at the next step boundary."""

    request_id: str


class Inbox:
    """Any thread puts in (one at a time, which `EngineThread` sees to); the engine's takes out.

    grammars: for requests that have one; None refuses them. clock: seconds.
    """

    def __init__(
        self,
        limits: EngineLimits,
        grammars: GrammarCompiler | None,
        clock: Callable[[], float],
    ) -> None:
        self._limits = limits
        self._grammars = grammars
        self._clock = clock
        self._notes: deque[Arrival | Cancellation] = deque()
        self._ids_in_use: set[str] = set()

    def __len__(self) -> int:
        return len(self._notes)

    def submit(self, request: Request, num_waiting: int) -> None:
        """See `Engine.submit`. num_waiting: requests that wait in the engine already."""
        self._limits.check(request)
        if request.request_id in self._ids_in_use:
            raise RequestError(f"a request with the id {request.request_id} is open", field="id")
        if num_waiting + len(self._notes) >= self._limits.max_waiting:
            raise QueueFullError(
                f"{self._limits.max_waiting} requests are waiting already; try again later"
            )
        grammar = self._constraint(request)
        self._ids_in_use.add(request.request_id)
        self._notes.append(Arrival(request, self._clock(), grammar))

    def cancel(self, request_id: str) -> None:
        """See `Engine.cancel`."""
        self._notes.append(Cancellation(request_id))

    def take(self) -> Iterator[Arrival | Cancellation]:
        """All notes, oldest first, those that come meanwhile too."""
        while self._notes:
            yield self._notes.popleft()

    def release(self, request_id: str) -> None:
        """The request has ended: its id may be used again."""
        self._ids_in_use.discard(request_id)

    def _constraint(self, request: Request) -> RowConstraint | None:
        if request.grammar is None:
            return None
        if self._grammars is None:
            raise RequestError("this engine has no grammars", field="grammar")
        return self._grammars.constraint(request.grammar)
