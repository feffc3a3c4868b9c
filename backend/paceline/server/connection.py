"""One socket: a task that always receives, a task that writes, and a session between them.

    receive --decode--> Session --effects--> outbox --encode--> send

This file moves bytes; every decision is the session's, and `shell` carries out its effects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
from starlette.websockets import WebSocketDisconnect

from paceline.server.effects import Close
from paceline.server.shell import SessionShell
from paceline_protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import Message
    from starlette.websockets import WebSocket

    from paceline.server.bridge import Bridge
    from paceline.server.prompts import TargetCodec
    from paceline.server.session import Session
    from paceline.server.worker_threads import WorkerThreads
    from paceline_protocol.codecs import Codec

CLOSE_UNSUPPORTED_DATA = 1003
CLOSE_INTERNAL_ERROR = 1011
_MAX_REASON_BYTES = 123
_EVENTS_PER_TURN = 16


class Connection(SessionShell):
    """The shell around a socket's session. `run` returns when the socket is closed.

    slow_reader_s: how long a write may make no progress before the reader is cut off.
    """

    def __init__(
        self,
        websocket: WebSocket,
        session: Session,
        codec: Codec,
        bridge: Bridge,
        target_codec: TargetCodec,
        *,
        encoders: WorkerThreads,
        outbox_bytes: int,
        slow_reader_s: float,
        num_sessions: Callable[[], int] = lambda: 1,
        log_prompts: bool = False,
    ) -> None:
        super().__init__(
            session,
            bridge,
            target_codec,
            encoders=encoders,
            outbox_bytes=outbox_bytes,
            num_sessions=num_sessions,
            log_prompts=log_prompts,
        )
        self._websocket = websocket
        self._codec = codec
        self._slow_reader_s = slow_reader_s
        self._write_scope: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Serve the accepted socket until it is closed, from either side."""
        try:
            async with anyio.create_task_group() as self._tasks:
                self._tasks.start_soon(self._write)
                await self._read()
                self._tasks.cancel_scope.cancel()
        finally:
            self._carry_out(self.session.on_disconnect())
            self._outbox.clear()

    # Reading

    async def _read(self) -> None:
        while True:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                self._log.info(
                    "session closed",
                    code=message.get("code"),
                    reason=message.get("reason") or None,
                    num_cancelled=self.session.num_open,
                )
                return
            try:
                self._on_frame(message)
            except Exception:
                self._fail()

    def _on_frame(self, message: Message) -> None:
        text = message.get("text")
        try:
            event = self._codec.decode_client(message["bytes"] if text is None else text)
        except ProtocolError as error:
            if error.code is ErrorCode.UNEXPECTED_FRAME_TYPE:
                self._abandon(CLOSE_UNSUPPORTED_DATA, error.message)
            else:
                self._carry_out(self.session.on_invalid_message(error))
        else:
            self._carry_out(self.session.on_message(event))

    # Ends

    def _begin_close(self, close: Close) -> None:
        if self._close is not None:
            return
        self._close = close
        if not close.flush:
            self._outbox.clear()
            if self._write_scope is not None:
                self._write_scope.cancel()
        self._wake.set()

    def _cut_off(self, why: str) -> None:
        self._log.warning("slow reader", why=why, num_cancelled=self.session.num_open)
        self._carry_out(self.session.on_slow_reader(why))

    def _abandon(self, code: int, reason: str) -> None:
        self._carry_out([*self.session.on_disconnect(), Close(code, reason, flush=False)])

    def _fail(self) -> None:
        """A fault of ours: this connection ends, the others live on."""
        self._log.exception("internal error")
        self._abandon(CLOSE_INTERNAL_ERROR, "internal error")

    # Writing

    async def _write(self) -> None:
        try:
            while self._close is None or len(self._outbox):
                await self._wake.wait()
                self._wake = anyio.Event()
                await self._write_waiting()
            await self._websocket.close(self._close.code, _cut(self._close.reason))
        except WebSocketDisconnect:
            return  # the reader sees it too, and ends the connection
        except Exception:
            self._log.exception("internal error")
            self._carry_out(self.session.on_disconnect())
            await self._websocket.close(CLOSE_INTERNAL_ERROR, "internal error")

    async def _write_waiting(self) -> None:
        num_written = 0
        while (event := self._outbox.take()) is not None:
            if not await self._send(self._codec.encode(event)):
                return
            num_written += 1
            if num_written % _EVENTS_PER_TURN == 0:
                await anyio.lowlevel.checkpoint()

    async def _send(self, payload: str | bytes) -> bool:
        """Whether the socket took it in time."""
        key = "text" if isinstance(payload, str) else "bytes"
        with anyio.CancelScope() as self._write_scope:
            self._write_scope.deadline = anyio.current_time() + self._slow_reader_s
            await self._websocket.send({"type": "websocket.send", key: payload})
        was_cut = self._write_scope.cancelled_caught
        self._write_scope = None
        if was_cut and self._close is None:
            self._cut_off(f"nothing was read for {self._slow_reader_s:g} s")
        return not was_cut


def _cut(reason: str) -> str:
    """The reason in the bytes that a close frame has for it, in whole characters."""
    return reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
