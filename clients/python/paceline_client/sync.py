"""The client for programs without an event loop: the async one, run in a thread of its own."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from anyio.from_thread import start_blocking_portal

from paceline_client.conversation import Conversation
from paceline_client.endpoint import DEFAULT_URL, CodecName
from paceline_client.session import Session, connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self, Unpack

    from anyio.from_thread import BlockingPortal

    from paceline_client.requests import (
        CompletionSettings,
        Input,
        ResponseSettings,
        TurnSettings,
    )
    from paceline_client.streams import ResponseStream
    from paceline_protocol.messages import Response, ServerEvent


class _Outcome(NamedTuple):
    """What waiting for an event gave: an event, or None and None for the end."""

    event: ServerEvent | None
    failure: Exception | None


class SyncStream:
    """An iterator over a response's events. Leave it with `with` or `close` to cancel early.

    An interrupt (Ctrl-C) while it waits, or at any other moment, loses nothing: iterating on gives
    the event that was awaited. That is how `cancel` and then reading to the end works.
    """

    def __init__(self, portal: BlockingPortal, stream: ResponseStream) -> None:
        self._portal = portal
        self._stream = stream
        self._outcome: _Outcome | None = None
        self._has_outcome = threading.Event()
        self._is_fetching = False

    @property
    def response(self) -> Response | None:
        """As in `ResponseStream`."""
        return self._stream.response

    @property
    def text(self) -> str:
        """As in `ResponseStream`."""
        return self._stream.text

    def cancel(self) -> None:
        """As in `ResponseStream`."""
        self._portal.call(self._stream.cancel)

    def close(self) -> None:
        """As in `ResponseStream`."""
        self._portal.call(self._stream.close)

    def finish(self) -> Response:
        """As in `ResponseStream`."""
        return self._portal.call(self._stream.finish)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ServerEvent:
        while self._outcome is None:
            # After an interrupt this is asked for a second time, and the first one still counts.
            self._has_outcome.clear()
            self._portal.start_task_soon(self._fetch)
            self._has_outcome.wait()
        event, failure = self._outcome
        if failure is not None:
            self._outcome = _Outcome(None, None)
            raise failure
        if event is None:
            raise StopIteration
        self._outcome = None  # from here to the return no interrupt can come between
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    async def _fetch(self) -> None:
        """On the event loop: see to it that there is an outcome. Any number of calls do as one."""
        if self._outcome is not None:
            self._has_outcome.set()
        if self._is_fetching or self._outcome is not None:
            return
        self._is_fetching = True
        try:
            self._outcome = _Outcome(await anext(self._stream, None), None)
        except Exception as error:
            self._outcome = _Outcome(None, error)
        finally:
            self._is_fetching = False
            self._has_outcome.set()


class SyncConversation:
    """`Conversation` for programs without an event loop."""

    def __init__(self, portal: BlockingPortal, conversation: Conversation) -> None:
        self._portal = portal
        self._conversation = conversation

    @property
    def instructions(self) -> str | None:
        """Of the turns to come."""
        return self._conversation.instructions

    @instructions.setter
    def instructions(self, instructions: str | None) -> None:
        self._conversation.instructions = instructions

    def respond(self, input: Input) -> SyncStream:
        """The next turn."""
        return SyncStream(self._portal, self._conversation.respond(input))

    def forget(self) -> None:
        """Start anew."""
        self._conversation.forget()


class SyncSession:
    """Made by `connect_sync`. For one thread at a time."""

    def __init__(self, portal: BlockingPortal, session: Session) -> None:
        self._portal = portal
        self._session = session

    def respond(self, input: Input, **settings: Unpack[ResponseSettings]) -> SyncStream:
        """As `Session.respond`."""
        return SyncStream(self._portal, self._session.respond(input, **settings))

    def complete(self, prompt: str, **settings: Unpack[CompletionSettings]) -> SyncStream:
        """As `Session.complete`."""
        return SyncStream(self._portal, self._session.complete(prompt, **settings))

    def ask(self, input: Input, **settings: Unpack[ResponseSettings]) -> Response:
        """As `Session.ask`."""
        return self.respond(input, **settings).finish()

    def conversation(
        self, *, instructions: str | None = None, **settings: Unpack[TurnSettings]
    ) -> SyncConversation:
        """As `Conversation`."""
        conversation = Conversation(self._session, instructions=instructions, **settings)
        return SyncConversation(self._portal, conversation)


@contextmanager
def connect_sync(
    url: str = DEFAULT_URL, *, api_key: str | None = None, codec: CodecName = "json"
) -> Iterator[SyncSession]:
    """`with connect_sync() as session`; as `connect` otherwise."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(connect(url, api_key=api_key, codec=codec)) as session,
    ):
        yield SyncSession(portal, session)
