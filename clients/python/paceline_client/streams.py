"""A response as it comes: an async iterator that cancels what nobody reads any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import msgspec

from paceline_client.errors import (
    ConnectionLostError,
    PreviousResponseNotFoundError,
    ResponseFailedError,
    refusal,
)
from paceline_client.requests import input_items
from paceline_protocol.messages import (
    CompletionCreate,
    ErrorEvent,
    OutputTextDelta,
    ResponseCompleted,
    ResponseCreate,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
)

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from paceline_client.lanes import OpenResponse
    from paceline_client.session import Session
    from paceline_protocol.messages import Response, ServerEvent


class ResponseStream:
    """Iterate it for events, or `await finish()` for the finished response.

    A loop that ends early cancels the response when the stream is no longer referenced, which in
    `async for event in session.respond(...)` is at once; `async with` does so for certain. So
    does cancelling the task that waits for an event.

    Nothing is sent before the first event is asked for. A connection that turns out to be dead
    before any event came is replaced and the request sent again.
    """

    def __init__(
        self,
        session: Session,
        request: ResponseCreate | CompletionCreate,
        previous_id: str | None,
    ) -> None:
        self._session = session
        self._request = request
        self._previous_id = previous_id
        self._open: OpenResponse | None = None
        self._sent_previous_id = False
        self._may_send_again = True
        self._is_done = False
        self._is_beginning = False
        self._is_unwanted = False
        self._connection_number = 0
        self._response: Response | None = None
        self._text: list[str] = []

    @property
    def response(self) -> Response | None:
        """The response as last seen: whole once the stream has ended."""
        return self._response

    @property
    def text(self) -> str:
        """The text that was read so far."""
        return "".join(self._text)

    @property
    def is_done(self) -> bool:
        """Nothing more will come: it ended, failed, or was closed."""
        return self._is_done

    async def finish(self) -> Response:
        """Read to the end and return the finished response. Raises as iteration does."""
        async with self:
            async for _ in self:
                pass
        if self._response is None:
            raise RuntimeError("the stream was closed before it began")
        return self._response

    def cancel(self) -> None:
        """Ask the server to stop; the events until the response's end still come."""
        if self._open is not None:
            self._open.cancel()
        elif self._is_beginning:
            self._is_unwanted = True
        else:
            self._is_done = True

    def close(self) -> None:
        """Stop reading, and cancel the response if it still runs."""
        if self._open is not None and not self._is_done:
            self._open.abandon()
        self._is_done = True

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ServerEvent:
        if self._is_done:
            raise StopAsyncIteration
        try:
            event = await self._next()
        except anyio.get_cancelled_exc_class():
            self.close()
            raise
        except Exception:
            if self._is_done:  # closed by another task while this one waited
                raise StopAsyncIteration from None
            self._is_done = True
            raise
        self._note(event)
        return event

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._is_done and self._open is not None:
            self._open.abandon()

    async def _next(self) -> ServerEvent:
        while True:
            if self._open is None:
                self._is_beginning = True
                try:
                    self._open = await self._begin()
                finally:
                    self._is_beginning = False
                if self._is_unwanted:
                    self._open.cancel()
            try:
                event = await self._open.events.next()
            except ConnectionLostError:
                if self._open.is_answered or not self._may_send_again:
                    raise
                self._may_send_again = False
                self._open = None
                continue
            if isinstance(event, ErrorEvent):
                error = refusal(event)
                if not (
                    isinstance(error, PreviousResponseNotFoundError) and self._can_resend_items()
                ):
                    raise error
                self._open = None
                continue
            return event

    async def _begin(self) -> OpenResponse:
        session = self._session
        lane = await session.lanes.take()
        try:
            connection = await session.connected()
            self._connection_number = session.connection_number
            return session.lanes.begin(lane, connection, self._prepared(lane[1]))
        except BaseException:
            session.lanes.give_back(lane)
            raise

    def _prepared(self, lane: str) -> ResponseCreate | CompletionCreate:
        """The request for the connection at hand."""
        request = msgspec.structs.replace(self._request, stream_id=lane)
        if not isinstance(request, ResponseCreate) or self._previous_id is None:
            return request
        turn = self._session.history.find(self._previous_id)
        self._sent_previous_id = turn is None or turn.connection == self._connection_number
        if turn is None or self._sent_previous_id:
            return msgspec.structs.replace(request, previous_response_id=self._previous_id)
        return msgspec.structs.replace(request, input=[*turn.all_items(), *input_items(request)])

    def _can_resend_items(self) -> bool:
        """After the server forgot the previous response: whether its items can go in its place.
        If so, they will."""
        if not self._sent_previous_id or self._previous_id is None:
            return False
        return self._session.history.mark_forgotten(self._previous_id)

    def _note(self, event: ServerEvent) -> None:
        match event:
            case OutputTextDelta(delta=delta):
                self._text.append(delta)
            case ResponseCreated(response=response) | ResponseInProgress(response=response):
                self._response = response
            case ResponseCompleted(response=response) | ResponseIncomplete(response=response):
                self._response = response
                self._is_done = True
                self._remember(response)
            case ResponseFailed(response=response):
                self._response = response
                self._is_done = True
                raise ResponseFailedError(response)

    def _remember(self, response: Response) -> None:
        if not isinstance(self._request, ResponseCreate):
            return
        history = self._session.history
        parent = None
        if self._previous_id is not None:
            parent = history.find(self._previous_id)
            if parent is None:
                return  # its beginning is unknown, so it could not be sent again as a whole
        history.add(
            response,
            input_items(self._request),
            parent=parent,
            connection=self._connection_number,
        )
