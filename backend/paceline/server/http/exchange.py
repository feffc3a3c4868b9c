"""One HTTP request's session: all its messages go in at once, its events come out.

A client that leaves before the end is noticed whether or not anything is being written, and all
that its request runs is cancelled at the engine's next step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from paceline.server.effects import Close
from paceline.server.shell import SessionShell
from paceline_protocol.requests import ResponseCancel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from starlette.types import Receive

    from paceline_protocol.events import ServerEvent
    from paceline_protocol.requests import ClientEvent

CLOSE_INTERNAL_ERROR = 1011


class Interrupted(Exception):
    """The session ended before its answers did; `close` says why."""

    def __init__(self, close: Close) -> None:
        super().__init__(close.reason)
        self.close = close


class Exchange(SessionShell):
    """The shell around one HTTP request's session."""

    async def run(
        self,
        messages: Sequence[ClientEvent],
        receive: Receive,
        answer: Callable[[], Awaitable[None]],
    ) -> None:
        """Hand the messages in and let `answer` write what comes back. Ends early, with everything
        cancelled, when the client has gone. receive: the body has been read from it."""
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._watch, receive)
                for message in messages:
                    self._carry_out(self.session.on_message(message))
                await answer()
                tasks.cancel_scope.cancel()
        finally:
            self._carry_out(self.session.on_disconnect())
            self._outbox.clear()

    async def take(self, timeout_s: float) -> list[ServerEvent]:
        """The events that wait; after `timeout_s` without any, none. Raises Interrupted."""
        while not len(self._outbox):
            if self._close is not None:
                raise Interrupted(self._close)
            with anyio.move_on_after(timeout_s) as scope:
                await self._wake.wait()
            self._wake = anyio.Event()
            if scope.cancelled_caught:
                return []
        return list(iter(self._outbox.take, None))

    def cancel(self, lanes: Sequence[str | None]) -> None:
        """Stop what runs in these lanes; their responses still end in the usual way."""
        for lane in lanes:
            self._carry_out(self.session.on_message(ResponseCancel(stream_id=lane)))

    def cut_off(self, why: str) -> None:
        """The client does not read: give it up."""
        self._cut_off(why)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        if self.session.num_open:  # else it has its answer
            self._log.info("client left", num_cancelled=self.session.num_open)
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    def _begin_close(self, close: Close) -> None:
        if self._close is None:
            self._close = close
        if not close.flush:
            self._outbox.clear()
        self._wake.set()

    def _cut_off(self, why: str) -> None:
        self._log.warning("slow reader", why=why, num_cancelled=self.session.num_open)
        self._carry_out(self.session.on_slow_reader(why))

    def _fail(self) -> None:
        self._log.exception("internal error")
        close = Close(CLOSE_INTERNAL_ERROR, "internal error", flush=False)
        self._carry_out([*self.session.on_disconnect(), close])
