"""Carries out what a session asks for, whatever its client is connected by.

    Session --effects--> outbox (events for the client)
       ^    \\----------> bridge (submit, cancel)
       \\---------------- bridge (engine events), worker threads (encoded prompts)

Effects are carried out synchronously, so facts reach the session one at a time and its answers keep
their order. How the outbox is emptied and what a close means is the subclass's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import anyio
import structlog

from paceline.core.errors import EngineError, PacelineError, RequestError
from paceline.core.events import FinishEvent
from paceline.server.effects import Cancel, Close, EncodePrompt, Send, Submit, Unwatch, Watch
from paceline.server.outbox import TERMINAL_EVENTS, Outbox
from paceline.server.prompts import encode, readable
from paceline.server.telemetry import TelemetryFeed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyio.abc import TaskGroup

    from paceline.core.events import EngineEvent
    from paceline.server.bridge import Bridge
    from paceline.server.effects import Effect
    from paceline.server.prompts import TargetCodec
    from paceline.server.session import Session
    from paceline.server.worker_threads import WorkerThreads
    from paceline_protocol.events import TelemetrySample
    from paceline_protocol.requests import TelemetryScope, TelemetrySubscribe

log: structlog.stdlib.BoundLogger = structlog.get_logger("paceline.server")


class SessionShell(ABC):
    """The shell around one session.

    target_codec: encodes prompts, in `encoders`.
    outbox_bytes: text that may wait for the client. num_sessions: how many clients there are, for
    telemetry. log_prompts: texts of prompts and answers go
    into the log too.
    """

    def __init__(
        self,
        session: Session,
        bridge: Bridge,
        target_codec: TargetCodec,
        *,
        encoders: WorkerThreads,
        outbox_bytes: int,
        num_sessions: Callable[[], int] = lambda: 1,
        log_prompts: bool = False,
    ) -> None:
        self._num_sessions = num_sessions
        self._feeds: dict[TelemetryScope, anyio.CancelScope] = {}
        self.session = session
        self._bridge = bridge
        self._target_codec = target_codec
        self._encoders = encoders
        self._log_prompts = log_prompts
        self._outbox = Outbox(outbox_bytes)
        self._wake = anyio.Event()
        self._close: Close | None = None
        self._tasks: TaskGroup | None = None
        self._log = log.bind(session_id=session.session_id)

    def drain(self) -> None:
        """Take nothing new; close once what was taken has ended."""
        self._carry_out(self.session.on_drain())

    def end_drain(self) -> None:
        """Cancel what has not ended."""
        self._carry_out(self.session.on_drain_deadline())

    @abstractmethod
    def _begin_close(self, close: Close) -> None:
        """The session has ended; the first reason counts."""

    @abstractmethod
    def _cut_off(self, why: str) -> None:
        """The client does not read."""

    @abstractmethod
    def _fail(self) -> None:
        """A fault of ours, called inside its handler: this client's work ends, the others' not."""

    def _on_event(self, event: EngineEvent) -> None:
        try:
            if isinstance(event, FinishEvent):
                self._log_finish(event)
            self._carry_out(self.session.on_event(event))
        except Exception:
            self._fail()

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
                case Watch():
                    self._subscribe(effect.message)
                case Unwatch():
                    self._unsubscribe(effect.scope)
                case Close():
                    self._begin_close(effect)
        if self._outbox.is_over_limit and self._close is None:
            self._cut_off("more waits to be read than the server holds for one connection")

    def _submit(self, effect: Submit) -> None:
        try:
            self._bridge.submit(effect.request, self._on_event)
        except PacelineError as error:
            self._carry_out(self.session.on_submit_failed(effect.request.request_id, error))

    def _subscribe(self, message: TelemetrySubscribe) -> None:
        self._unsubscribe(message.scope)
        if self._tasks is not None:
            scope = self._feeds[message.scope] = anyio.CancelScope()
            self._tasks.start_soon(self._feed, message, scope)

    def _unsubscribe(self, scope: TelemetryScope) -> None:
        running = self._feeds.pop(scope, None)
        if running is not None:
            running.cancel()

    async def _feed(self, message: TelemetrySubscribe, scope: anyio.CancelScope) -> None:
        feed = TelemetryFeed(
            message, self.session.session_id, self._bridge, self._put_sample, self._num_sessions
        )
        with scope:
            await feed.run()

    def _put_sample(self, sample: TelemetrySample) -> None:
        self._outbox.put_sample(sample)
        self._wake.set()

    async def _encode(self, effect: EncodePrompt) -> None:
        if self._log_prompts:
            self._log.info("prompt", response_id=effect.response_id, text=readable(effect.prompt))
        try:
            encoded = await self._encoders.run(
                encode, effect.prompt, self._target_codec, effect.grammar
            )
            facts = self.session.on_prompt_ready(effect.response_id, encoded)
        except RequestError as error:
            facts = self.session.on_prompt_failed(effect.response_id, error)
        except Exception:
            self._log.exception("encoding a prompt failed", response_id=effect.response_id)
            failed = EngineError("the server could not encode the prompt")
            facts = self.session.on_prompt_failed(effect.response_id, failed)
        self._carry_out(facts)

    def _log_finish(self, event: FinishEvent) -> None:
        summary = event.summary
        self._log.info(
            "response finished",
            **gen_ai_attributes(event),
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


def gen_ai_attributes(event: FinishEvent) -> dict[str, object]:
    """What OpenTelemetry's semantic conventions for generative AI have a name for."""
    attributes: dict[str, object] = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "paceline",
        "gen_ai.response.id": event.request_id,
        "gen_ai.response.finish_reasons": [event.reason.value],
        "gen_ai.usage.input_tokens": event.usage.num_prompt,
        "gen_ai.usage.output_tokens": event.usage.num_output,
    }
    if event.error_code is not None:
        attributes["error.type"] = event.error_code
    return attributes


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None or math.isnan(milliseconds) else round(milliseconds, 1)
