"""From a session's events to one HTTP answer: JSON once all is done, or server-sent events.

Nothing is sent before every response of the request has been taken or refused, so whatever can be
wrong with a request has its own HTTP status, also when it asks for a stream. After that a stream
begins at once; silence is filled with comments, so that no proxy gives it up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import anyio
import msgspec

from paceline.server.http.errors import Refusal
from paceline.server.http.exchange import CLOSE_INTERNAL_ERROR, Interrupted
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.events import (
    ErrorEvent,
    ResponseCompleted,
    ResponseFailed,
    ResponseIncomplete,
    TelemetrySample,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from starlette.types import Send

    from paceline.server.http.client_names import ClientNames
    from paceline.server.http.exchange import Exchange
    from paceline_protocol.events import ErrorDetails, ServerEvent
    from paceline_protocol.responses import Response

KEEP_ALIVE_S = 10.0
KEEP_ALIVE = b": keep-alive\n\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class View(Protocol):
    """How an endpoint shows the responses of a request; they are numbered from 0.

    shows_failures: a failed or cancelled response has a form of its own in the stream.
    """

    shows_failures: bool

    def on_event(self, index: int, event: ServerEvent) -> Iterable[bytes]:
        """Frames of a stream for one event, the last of a response included."""
        ...

    def on_end(self, responses: Sequence[Response]) -> Iterable[bytes]:
        """Frames behind the last event; nothing follows."""
        ...

    def on_error(self, details: ErrorDetails) -> Iterable[bytes]:
        """Frames of a stream that breaks off; nothing follows."""
        ...

    def body(self, responses: Sequence[Response]) -> Any:
        """The whole answer, where no stream was asked for."""
        ...


def frame(data: Any, event: str | None = None) -> bytes:
    """One server-sent event."""
    head = b"" if event is None else b"event: " + event.encode() + b"\n"
    return head + b"data: " + msgspec.json.encode(data) + b"\n\n"


DONE = b"data: [DONE]\n\n"


class Answer:
    """Writes the answer of one request.

    lanes: of the request's responses, in their order. on_progress: called with each event before it
    is shown; it may cancel. names: of what errors are about.
    """

    def __init__(
        self,
        exchange: Exchange,
        view: View,
        send: Send,
        *,
        lanes: Sequence[str | None],
        is_stream: bool,
        slow_reader_s: float,
        names: ClientNames,
        on_progress: Callable[[ServerEvent], None] | None = None,
    ) -> None:
        self._exchange = exchange
        self._view = view
        self._send = send
        self._places = {lane: index for index, lane in enumerate(lanes)}
        self._is_stream = is_stream
        self._slow_reader_s = slow_reader_s
        self._names = names
        self._on_progress = on_progress
        self._ended: dict[int, Response] = {}
        self.has_started = False

    async def write(self) -> None:
        """Raises Refusal as long as nothing has been sent."""
        try:
            first = await self._until_taken()
            if self._is_stream:
                await self._stream(first)
            else:
                await self._whole(first)
        except Interrupted as interrupted:
            if not self.has_started:
                raise _refusal_of(interrupted) from None

    async def _until_taken(self) -> list[ServerEvent]:
        taken: set[int] = set()
        events: list[ServerEvent] = []
        while len(taken) < len(self._places):
            for event in await self._exchange.take(KEEP_ALIVE_S):
                if isinstance(event, ErrorEvent):
                    raise Refusal(event.status, self._names.details(event.error))
                self._require_success(event)
                taken.add(self._place(event))
                events.append(event)
        return events

    async def _whole(self, events: list[ServerEvent]) -> None:
        while True:
            for event in events:
                self._require_success(event)
                self._take(event)
            if len(self._ended) == len(self._places):
                break
            events = await self._exchange.take(KEEP_ALIVE_S)
        body = msgspec.json.encode(self._view.body(self._responses()))
        await self._start(200, [(b"content-type", b"application/json")], len(body))
        await self._write(body, is_last=True)

    async def _stream(self, events: list[ServerEvent]) -> None:
        await self._start(200, STREAM_HEADERS)
        try:
            while True:
                frames: list[bytes] = [] if events else [KEEP_ALIVE]
                for event in events:
                    if not self._view.shows_failures:
                        self._require_success(event)
                    self._take(event)
                    frames += self._view.on_event(self._place(event), event)
                is_last = len(self._ended) == len(self._places)
                if is_last:
                    frames += self._view.on_end(self._responses())
                shown = b"".join(frames)
                if (shown or is_last) and not await self._write(shown, is_last=is_last):
                    return
                if is_last:
                    return
                events = await self._exchange.take(KEEP_ALIVE_S)
        except Refusal as refusal:
            await self._break_off(refusal)
        except Interrupted as interrupted:
            await self._break_off(_refusal_of(interrupted))

    async def _break_off(self, refusal: Refusal) -> None:
        await self._write(b"".join(self._view.on_error(refusal.details)), is_last=True)

    def _take(self, event: ServerEvent) -> None:
        if self._on_progress is not None:
            self._on_progress(event)
        if isinstance(event, ResponseCompleted | ResponseIncomplete | ResponseFailed):
            self._ended[self._place(event)] = event.response

    def _require_success(self, event: ServerEvent) -> None:
        """Raises Refusal for a response that failed."""
        if isinstance(event, ResponseFailed):
            raise Refusal.of_failure(event.response.error)

    def _place(self, event: ServerEvent) -> int:
        assert not isinstance(event, TelemetrySample)
        stream_id = event.stream_id
        return self._places[stream_id if isinstance(stream_id, str) else None]

    def _responses(self) -> list[Response]:
        return [self._ended[index] for index in range(len(self._places))]

    async def _start(
        self, status: int, headers: list[tuple[bytes, bytes]], length: int | None = None
    ) -> None:
        if length is not None:
            headers = [*headers, (b"content-length", str(length).encode())]
        self.has_started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, body: bytes, *, is_last: bool) -> bool:
        """Whether the client took it in time."""
        with anyio.move_on_after(self._slow_reader_s) as scope:
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        if scope.cancelled_caught:
            self._exchange.cut_off(f"nothing was read for {self._slow_reader_s:g} s")
        return not scope.cancelled_caught


def _refusal_of(interrupted: Interrupted) -> Refusal:
    if interrupted.close.code == CLOSE_INTERNAL_ERROR:
        error = ProtocolError(ErrorCode.SERVER_ERROR, "the server could not go on")
        return Refusal.of(error)
    return Refusal.shutting_down()
