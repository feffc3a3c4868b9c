"""One socket: a task that always receives, a task that writes, and a session between them.

    receive --decode--> Session --effects--> outbox --encode--> send
                          ^   \\--> bridge (submit, cancel)
                          \\------- bridge (engine events), worker threads (encoded prompts)

This file moves bytes and carries out effects; every decision is the session's. Effects are carried
out synchronously, so facts reach the session one at a time and its answers keep their order.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import anyio.to_thread
import structlog
from starlette.websockets import WebSocketDisconnect

from paceline.core.errors import EngineError, PacelineError, RequestError
from paceline.core.events import FinishEvent
from paceline.server.effects import Cancel, Close, EncodePrompt, Send, Submit
from paceline.server.outbox import TERMINAL_EVENTS, Outbox
from paceline.server.prompts import encode, readable
from paceline_protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyio.abc import TaskGroup
    from starlette.types import Message
    from starlette.websockets import WebSocket

    from paceline.core.events import EngineEvent
    from paceline.server.bridge import Bridge
    from paceline.server.effects import Effect
    from paceline.server.prompts import TargetCodec
    from paceline.server.session import Session
    from paceline_protocol.codecs import Codec

CLOSE_UNSUPPORTED_DATA = 1003
CLOSE_INTERNAL_ERROR = 1011
_MAX_REASON_BYTES = 123
_EVENTS_PER_TURN = 16

log: structlog.stdlib.BoundLogger = structlog.get_logger("paceline.server")


class Connection:
    """The shell around one session. `run` returns when the socket is closed.

    target_codec: encodes prompts, in worker threads that `encode_limiter` counts.
    slow_reader_s: how long a write may make no progress before the reader is cut off.
    log_prompts: texts of prompts and answers go into the log too.
    """

    def __init__(
        self,
        websocket: WebSocket,
        session: Session,
        codec: Codec,
        bridge: Bridge,
        target_codec: TargetCodec,
        *,
        encode_limiter: anyio.CapacityLimiter,
        outbox_bytes: int,
        slow_reader_s: float,
        log_prompts: bool = False,
    ) -> None:
        self.session = session
        self._websocket = websocket
        self._codec = codec
        self._bridge = bridge
        self._target_codec = target_codec
        self._encode_limiter = encode_limiter
        self._slow_reader_s = slow_reader_s
        self._log_prompts = log_prompts
        self._outbox = Outbox(outbox_bytes)
        self._wake = anyio.Event()
        self._close: Close | None = None
        self._write_scope: anyio.CancelScope | None = None
        self._tasks: TaskGroup | None = None
        self._log = log.bind(session_id=session.session_id)

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

    def drain(self) -> None:
        """Take nothing new; close with 1012 once what was taken has ended."""
        self._carry_out(self.session.on_drain())

    def end_drain(self) -> None:
        """Cancel what has not ended."""
        self._carry_out(self.session.on_drain_deadline())

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

    def _on_event(self, event: EngineEvent) -> None:
        try:
            if isinstance(event, FinishEvent):
                self._log_finish(event)
            self._carry_out(self.session.on_event(event))
        except Exception:
            self._fail()

    # Effects

    def _carry_out(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._outbox.put(effect.event, effect.response_id)
                    self._wake.set()
                    if self._log_prompts and isinstance(effect.event, TERMINAL_EVENTS):
                        response = effect.event.response
                        self._log.info("answer", response_id=response.id, text=response.output_text)
                case Submit():
                    self._submit(effect)
                case Cancel():
                    self._bridge.cancel(effect.request_id)
                case EncodePrompt():
                    if self._tasks is not None:
                        self._tasks.start_soon(self._encode, effect)
                case Close():
                    self._begin_close(effect)
        if self._outbox.is_over_limit and self._close is None:
            self._cut_off("more waits to be read than the server holds for one connection")

    def _submit(self, effect: Submit) -> None:
        try:
            self._bridge.submit(effect.request, self._on_event)
        except PacelineError as error:
            self._carry_out(self.session.on_submit_failed(effect.request.request_id, error))

    async def _encode(self, effect: EncodePrompt) -> None:
        if self._log_prompts:
            self._log.info("prompt", response_id=effect.response_id, text=readable(effect.prompt))
        try:
            encoded = await anyio.to_thread.run_sync(
                encode,
                effect.prompt,
                self._target_codec,
                abandon_on_cancel=True,
                limiter=self._encode_limiter,
            )
            facts = self.session.on_prompt_ready(effect.response_id, encoded)
        except RequestError as error:
            facts = self.session.on_prompt_failed(effect.response_id, error)
        except Exception:
            self._log.exception("encoding a prompt failed", response_id=effect.response_id)
            failed = EngineError("the server could not encode the prompt")
            facts = self.session.on_prompt_failed(effect.response_id, failed)
        self._carry_out(facts)

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

    # Logs

    def _log_finish(self, event: FinishEvent) -> None:
        summary = event.summary
        self._log.info(
            "response finished",
            response_id=event.request_id,
            step=self._bridge.status.step,
            finish_reason=event.reason.value,
            error=event.error,
            num_prompt=event.usage.num_prompt,
            num_cached=event.usage.num_cached,
            num_output=event.usage.num_output,
            num_drafted=summary.num_drafted,
            num_accepted=summary.num_accepted,
            drafter=summary.drafter,
            time_to_first_token_ms=_rounded(summary.time_to_first_token_ms),
            generation_ms=_rounded(summary.generation_ms),
        )


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None or math.isnan(milliseconds) else round(milliseconds, 1)


def _cut(reason: str) -> str:
    """The reason in the bytes that a close frame has for it, in whole characters."""
    return reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
