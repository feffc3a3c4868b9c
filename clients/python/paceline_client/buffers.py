"""Where events wait between the socket and whoever reads them.

The socket has one reader for all lanes, and a slow consumer of one lane must not hold up the
others. So nothing waits on a full buffer: text deltas are merged instead, and memory is bounded by
the length of the answer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, TypeVar

import anyio
import msgspec
from msgspec import UNSET

from paceline_protocol.messages import DeltaTokens, OutputTextDelta

if TYPE_CHECKING:
    from collections.abc import Callable

Event = TypeVar("Event")


class EventBuffer(Generic[Event]):
    """First in, first out.

    merge: called with the newest waiting event and the one that arrives once `high_water` events
    wait; returns one event in place of both, or None if they have to stay two.
    """

    def __init__(self, merge: Callable[[Event, Event], Event | None], high_water: int) -> None:
        self._merge = merge
        self._high_water = high_water
        self._events: deque[Event] = deque()
        self._failure: Exception | None = None
        self._changed = anyio.Event()

    def __len__(self) -> int:
        return len(self._events)

    def push(self, event: Event) -> None:
        """Append an event; never waits."""
        if len(self._events) >= self._high_water:
            merged = self._merge(self._events[-1], event)
            if merged is not None:
                self._events[-1] = merged
                return
        self._events.append(event)
        self._changed.set()

    def fail(self, failure: Exception) -> None:
        """Let `next` raise this once it has handed out what waits. The first failure stays."""
        if self._failure is None:
            self._failure = failure
        self._changed.set()

    async def next(self) -> Event:
        """The oldest event; waits for one. Raises what `fail` was given."""
        while not self._events:
            if self._failure is not None:
                raise self._failure
            if self._changed.is_set():
                self._changed = anyio.Event()
            await self._changed.wait()
        return self._events.popleft()


def merge_deltas(first: object, second: object) -> OutputTextDelta | None:
    """Two neighbouring deltas of one text as one, or None for anything else."""
    if not (isinstance(first, OutputTextDelta) and isinstance(second, OutputTextDelta)):
        return None
    if (first.item_id, first.content_index) != (second.item_id, second.content_index):
        return None
    tokens: DeltaTokens | msgspec.UnsetType = UNSET
    if first.paceline or second.paceline:
        tokens = DeltaTokens(
            tokens=[
                *(first.paceline.tokens if first.paceline else ()),
                *(second.paceline.tokens if second.paceline else ()),
            ]
        )
    return msgspec.structs.replace(
        first,
        delta=first.delta + second.delta,
        logprobs=[*first.logprobs, *second.logprobs],
        paceline=tokens,
    )


def latest(first: Event, second: Event) -> Event:
    """For states, of which only the newest matters."""
    del first
    return second
