"""Lanes: names under which responses run in parallel on one connection.

The server runs the responses of one lane one after the other and keeps what it learned about
speculation by lane. So a lane carries one response at a time here, and the lowest free one is
taken first: whoever asks one question after another stays in one lane.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import anyio
from msgspec import UNSET

from paceline_client.buffers import EventBuffer, merge_deltas
from paceline_client.errors import SessionClosedError
from paceline_protocol import ErrorCode
from paceline_protocol.messages import (
    ErrorEvent,
    ResponseCancel,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ServerEvent,
)

if TYPE_CHECKING:
    from paceline_client.connection import Connection
    from paceline_client.errors import PacelineClientError
    from paceline_protocol.messages import CompletionCreate, ResponseCreate

_HIGH_WATER_EVENTS = 64


class OpenResponse:
    """A response that was asked for and hasn't ended yet."""

    def __init__(self, lane: str, connection: Connection) -> None:
        self.lane = lane
        self.events: EventBuffer[ServerEvent] = EventBuffer(merge_deltas, _HIGH_WATER_EVENTS)
        self.is_answered = False
        self._connection = connection
        self._response_id: str | None = None
        self._is_abandoned = False
        self._is_cancelled = False

    def take(self, event: ServerEvent) -> None:
        """An event of this response arrived."""
        self.is_answered = True
        if isinstance(event, ResponseCreated):
            self._response_id = event.response.id
        if not self._is_abandoned:
            self.events.push(event)

    def cancel(self) -> None:
        """Ask the server to stop it; only the first call does anything. Never waits, and a
        connection that is gone has cancelled it already."""
        if self._is_cancelled or not self._connection.is_open:
            return
        self._is_cancelled = True
        if self._response_id is not None:
            self._connection.send(ResponseCancel(response_id=self._response_id))
        else:
            self._connection.send(ResponseCancel(stream_id=self.lane))

    def abandon(self) -> None:
        """Nobody reads it any more: cancel it and drop what still comes. A task that waits for an
        event is woken."""
        self._is_abandoned = True
        self.events.fail(SessionClosedError())
        self.cancel()


class Lanes:
    """Hands out lanes and brings each event to the response whose lane it names."""

    def __init__(self, max_lanes: int) -> None:
        self._free = [(number, f"lane-{number}") for number in range(1, max_lanes + 1)]
        self._capacity = anyio.Semaphore(max_lanes)
        self._open: dict[str, tuple[int, OpenResponse]] = {}

    @property
    def num_open(self) -> int:
        return len(self._open)

    async def take(self) -> tuple[int, str]:
        """A free lane; waits for one. The caller gives it back or begins a response in it."""
        await self._capacity.acquire()
        return heapq.heappop(self._free)

    def give_back(self, lane: tuple[int, str]) -> None:
        heapq.heappush(self._free, lane)
        self._capacity.release()

    def begin(
        self,
        lane: tuple[int, str],
        connection: Connection,
        request: ResponseCreate | CompletionCreate,
    ) -> OpenResponse:
        """Send a request that names this lane. Raises ConnectionLostError; the lane is then still
        the caller's. Otherwise it comes back by itself at the response's end."""
        number, name = lane
        connection.send(request)
        response = OpenResponse(name, connection)
        self._open[name] = (number, response)
        return response

    def deliver(self, event: ServerEvent) -> bool:
        """Bring an event to its response; False if it belongs to none."""
        if isinstance(event, ErrorEvent) and event.error.code == ErrorCode.RESPONSE_NOT_FOUND:
            return True  # a cancellation that crossed the end of its response
        lane = event.stream_id
        if lane is UNSET or not isinstance(lane, str) or lane not in self._open:
            return False
        number, response = self._open[lane]
        match event:
            case ErrorEvent() | ResponseCompleted() | ResponseIncomplete() | ResponseFailed():
                del self._open[lane]
                self.give_back((number, lane))
        response.take(event)
        return True

    def fail_all(self, failure: PacelineClientError) -> None:
        """End every open response with an error."""
        for lane, (number, response) in list(self._open.items()):
            del self._open[lane]
            self.give_back((number, lane))
            response.events.fail(failure)
