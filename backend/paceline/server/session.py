"""One connection's conversation as a state machine without I/O.

Facts go in (a message, an encoded prompt, an engine event, a disconnect), effects come out; the
shell (`gateway.py`) carries them out. Nothing here waits, and nothing here knows sockets, threads,
tensors or the time of day.

    client event --> refused: one `error` event, the connection lives on
                 \\-> lane (FIFO by stream_id; lanes run in parallel)
                       at its head: WAITING -> ENCODING -> RUNNING -> one finish
                                                  \\            \\-> CANCELLING -> one finish
                                                   \\-> refused: one `error` event

Every accepted request is answered exactly once: by an `error` event or by a response that ends with
completed, incomplete or failed. Only a connection that is gone gets no answer.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from paceline.core.errors import PacelineError
from paceline.core.events import FinishEvent, FinishReason, TokenEvent
from paceline.model.chat import ChatMessage, EncodedChat
from paceline.model.fill_in_middle import EncodedInfill
from paceline.server.admission import COMPLETION_PREFIX, RequestState, admit
from paceline.server.effects import Cancel, Close, EncodePrompt, Send, Submit, Unwatch, Watch
from paceline.server.prompts import ChatPrompt, IdsPrompt, InfillPrompt, TextPrompt
from paceline.server.translation import (
    error_code,
    failure,
    failure_of,
    protocol_error,
    request_of,
    summary_of,
    usage_of,
)
from paceline.server.turns import Turn, TurnStore
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.events import ErrorEvent
from paceline_protocol.requests import (
    CompletionCreate,
    ResponseCancel,
    ResponseCreate,
    TelemetrySubscribe,
    TelemetryUnsubscribe,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paceline.core.events import EngineEvent
    from paceline.server.admission import OpenRequest, SessionSettings
    from paceline.server.effects import Effect
    from paceline.server.prompts import Prompt
    from paceline_protocol.events import ServerEvent
    from paceline_protocol.requests import ClientEvent
    from paceline_protocol.responses import PacelineSummary, ResponseUsage

CLOSE_SERVICE_RESTART = 1012
CLOSE_TRY_AGAIN_LATER = 1013
DEFAULT_INFILL_TOKENS = 256


class Session:
    """See the module. Not thread-safe; the shell calls it from one place only.

    session_id: stands in speculation keys, logs and telemetry. clock: seconds since 1970.
    new_id: a fresh id with the given prefix, unique in the server (the engine's request ids).
    turns: where finished responses are kept; its own if none is given. is_admin: may watch the
    whole server.
    """

    def __init__(
        self,
        session_id: str,
        settings: SessionSettings,
        *,
        clock: Callable[[], float],
        new_id: Callable[[str], str],
        turns: TurnStore | None = None,
        is_admin: bool = False,
    ) -> None:
        self.session_id = session_id
        self._settings = settings
        self._clock = clock
        self._new_id = new_id
        self._lanes: dict[str | None, deque[OpenRequest]] = {}
        self._open: dict[str, OpenRequest] = {}
        self._turns = TurnStore(settings.max_stored_tokens) if turns is None else turns
        self._is_admin = is_admin
        self._is_draining = False
        self._is_closed = False

    @property
    def num_open(self) -> int:
        """Requests that wait or run."""
        return len(self._open)

    # Facts from the client

    def on_message(self, message: ClientEvent) -> list[Effect]:
        """A well-formed client event."""
        if self._is_closed:
            return []
        try:
            match message:
                case ResponseCreate() | CompletionCreate():
                    return self._create(message)
                case ResponseCancel():
                    return self._cancel(message)
                case TelemetrySubscribe():
                    self._check_scope(message)
                    return [Watch(message)]
                case TelemetryUnsubscribe():
                    return [Unwatch(message.scope)]
        except ProtocolError as error:
            error.stream_id = message.stream_id
            return self.on_invalid_message(error)

    def on_invalid_message(self, error: ProtocolError) -> list[Effect]:
        """Something that is no client event, or one that is refused. Nothing else changes."""
        return [] if self._is_closed else [Send(ErrorEvent.from_error(error))]

    def on_disconnect(self) -> list[Effect]:
        """The socket is gone, or is about to be. Everything that runs is cancelled."""
        self._is_closed = True
        running = [
            Cancel(each.response_id)
            for each in self._open.values()
            if each.state is RequestState.RUNNING
        ]
        self._open.clear()
        self._lanes.clear()
        return [*running]

    def on_slow_reader(self, reason: str) -> list[Effect]:
        """The client does not read what is sent to it."""
        if self._is_closed:
            return []
        return [*self.on_disconnect(), Close(CLOSE_TRY_AGAIN_LATER, reason, flush=False)]

    # Facts from the server

    def on_prompt_ready(
        self, response_id: str, encoded: EncodedChat | EncodedInfill
    ) -> list[Effect]:
        """The answer to `EncodePrompt`."""
        each = self._open.get(response_id)
        if each is None or each.state is not RequestState.ENCODING:
            return []  # cancelled meanwhile
        fill = encoded if isinstance(encoded, EncodedInfill) else EncodedInfill(encoded.ids)
        try:
            request = request_of(
                each.message,
                request_id=response_id,
                prompt_ids=encoded.ids,
                max_new_tokens=self._max_new_tokens(each, len(encoded.ids)),
                sampling=each.sampling,
                eos_token_ids=self._settings.eos_token_ids | fill.stop_token_ids,
                speculation_key=f"{self.session_id}/{each.lane or ''}",
                prompt_stop=fill.stop,
                grammar=None if each.form is None else each.form.grammar,
            )
            self._settings.limits.check(request)
        except PacelineError as error:
            return self._refuse(each, protocol_error(error, each.message))
        each.encoded = encoded if isinstance(encoded, EncodedChat) else None
        each.state = RequestState.RUNNING
        return [*self._send(each, each.stream.begin()), Submit(request)]

    def on_prompt_failed(self, response_id: str, error: PacelineError) -> list[Effect]:
        """The prompt cannot be encoded, by the fault of what it holds."""
        each = self._open.get(response_id)
        if each is None or each.state is not RequestState.ENCODING:
            return []
        refusal = protocol_error(error, each.message)
        if each.form is not None and refusal.param == "paceline.grammar":
            refusal.param = each.form.param
        return self._refuse(each, refusal)

    def on_submit_failed(self, response_id: str, error: PacelineError) -> list[Effect]:
        """The engine did not take the request of a `Submit`."""
        each = self._open.get(response_id)
        if each is None:
            return []
        events = each.stream.finish_failed(failure(error_code(error), str(error)), None, None)
        return self._finish(each, events)

    def on_event(self, event: EngineEvent) -> list[Effect]:
        """A fact about a submitted request. Those of requests that are gone are ignored."""
        each = self._open.get(event.request_id)
        if each is None:
            return []
        match event:
            case TokenEvent():
                each.token_ids.extend(token.token_id for token in event.tokens)
                if each.is_warm_up:
                    return []
                text = self._settings.style.text_of(event.tokens)
                return self._send(each, each.stream.append(text, event.tokens))
            case FinishEvent():
                return self._on_finish(each, event)

    def on_drain(self) -> list[Effect]:
        """The server is going away: take nothing new, close when what was taken has ended."""
        if self._is_closed or self._is_draining:
            return []
        self._is_draining = True
        return self._close_if_drained()

    def on_drain_deadline(self) -> list[Effect]:
        """The grace time is over: what still waits or runs fails, and the error says why."""
        return self._cancel_all(list(self._open.values()), is_cut_off=True)

    # Requests

    def _create(self, message: ResponseCreate | CompletionCreate) -> list[Effect]:
        """Raises ProtocolError for whatever can be refused before the lane gets to it."""
        if self._is_draining:
            raise ProtocolError(
                ErrorCode.SERVER_SHUTTING_DOWN, "the server is shutting down; try again later"
            )
        each = admit(message, self._settings, now=self._clock(), new_id=self._new_id)
        self._check_room(each.lane)
        self._open[each.response_id] = each
        self._lanes.setdefault(each.lane, deque()).append(each)
        return self._advance(each.lane)

    def _check_room(self, lane_id: str | None) -> None:
        if len(self._open) >= self._settings.max_open:
            raise ProtocolError(
                ErrorCode.QUEUE_FULL,
                f"{len(self._open)} requests wait or run on this connection, which is its limit",
            )
        if lane_id not in self._lanes and len(self._lanes) >= self._settings.max_lanes:
            raise ProtocolError(
                ErrorCode.TOO_MANY_LANES,
                f"{len(self._lanes)} lanes are busy on this connection, which is its limit",
                param="stream_id",
            )

    def _max_new_tokens(self, each: OpenRequest, num_prompt: int) -> int:
        """Without a limit of its own an answer may fill the context."""
        if each.is_warm_up:
            return 1
        room = max(1, self._settings.limits.max_sequence_tokens - num_prompt)
        if isinstance(each.message, CompletionCreate) and each.message.suffix is not None:
            room = min(room, each.message.max_output_tokens or DEFAULT_INFILL_TOKENS)
        return min(each.message.max_output_tokens or room, room)

    def _infill_room(self, message: CompletionCreate) -> int:
        """Tokens for what surrounds a gap: half of the context or more."""
        most = self._settings.limits.max_sequence_tokens
        return most - min(message.max_output_tokens or DEFAULT_INFILL_TOKENS, most // 2)

    def _check_scope(self, message: TelemetrySubscribe) -> None:
        if message.scope == "server" and not self._is_admin:
            raise ProtocolError(
                ErrorCode.PERMISSION_DENIED,
                "the scope `server` needs the server's admin key, or, where none is set, a "
                "connection from the same machine",
                param="scope",
            )

    # Lanes

    def _advance(self, lane_id: str | None) -> list[Effect]:
        """Let the lane's first request go if it has not yet."""
        lane = self._lanes.get(lane_id)
        if lane is None or lane[0].state is not RequestState.WAITING:
            return []
        each = lane[0]
        try:
            prompt = self._prompt(each)
        except ProtocolError as error:
            return self._refuse(each, error)
        each.state = RequestState.ENCODING
        grammar = None if each.form is None else each.form.grammar
        return [EncodePrompt(each.response_id, prompt, grammar)]

    def _prompt(self, each: OpenRequest) -> Prompt:
        """The whole conversation. Raises ProtocolError when the previous response is unknown."""
        message = each.message
        if isinstance(message, CompletionCreate):
            if not isinstance(message.prompt, str):
                return IdsPrompt(tuple(message.prompt))
            if message.suffix is None:
                return TextPrompt(message.prompt)
            return InfillPrompt(message.prompt, message.suffix, self._infill_room(message))
        previous = None
        if message.previous_response_id is not None:
            turn = self._turns.get(message.previous_response_id)
            if turn is None:
                raise ProtocolError(
                    ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND,
                    f"the response {message.previous_response_id!r} "
                    + self._why_unknown(message.previous_response_id),
                    param="previous_response_id",
                    stream_id=message.stream_id,
                )
            each.messages = turn.messages + each.messages
            previous = turn.encoded
        system = (ChatMessage("system", message.instructions),) if message.instructions else ()
        described = () if each.tools is None else each.tools.functions
        tools = tuple(function.described() for function in described)
        return ChatPrompt(system + each.messages, previous, tools)

    def _why_unknown(self, response_id: str) -> str:
        if response_id.startswith(f"{COMPLETION_PREFIX}_"):
            return "is a completion of raw text, which has no turns to go on from"
        if response_id in self._open:
            return "has not ended yet"
        return "is not known, or not any more; send the whole conversation as input"

    def _refuse(self, each: OpenRequest, error: ProtocolError) -> list[Effect]:
        return [Send(ErrorEvent.from_error(error)), *self._leave(each)]

    def _finish(self, each: OpenRequest, events: Iterable[ServerEvent]) -> list[Effect]:
        return [*self._send(each, events), *self._leave(each)]

    def _leave(self, each: OpenRequest) -> list[Effect]:
        """The request has had its answer: let the next one of its lane go."""
        self._remove(each)
        return [*self._advance(each.lane), *self._close_if_drained()]

    def _remove(self, each: OpenRequest) -> None:
        del self._open[each.response_id]
        lane = self._lanes[each.lane]
        lane.remove(each)
        if not lane:
            del self._lanes[each.lane]

    def _close_if_drained(self) -> list[Effect]:
        if not self._is_draining or self._open or self._is_closed:
            return []
        self._is_closed = True
        return [Close(CLOSE_SERVICE_RESTART, "the server is shutting down")]

    # Cancelling

    def _cancel(self, message: ResponseCancel) -> list[Effect]:
        """Raises ProtocolError when nothing of the kind is open."""
        if message.response_id is not None:
            each = self._open.get(message.response_id)
            if each is None or message.stream_id not in (None, each.lane):
                raise ProtocolError(
                    ErrorCode.RESPONSE_NOT_FOUND,
                    f"no response {message.response_id!r} waits or runs",
                    param="response_id",
                )
            return self._cancel_all([each])
        lane = self._lanes.get(message.stream_id)
        if lane is None:
            raise ProtocolError(
                ErrorCode.RESPONSE_NOT_FOUND,
                "nothing waits or runs in the lane"
                + (" without a name" if message.stream_id is None else f" {message.stream_id!r}"),
                param="stream_id",
            )
        return self._cancel_all(list(lane))

    def _cancel_all(self, requests: list[OpenRequest], *, is_cut_off: bool = False) -> list[Effect]:
        effects: list[Effect] = []
        for each in requests:
            if each.state is not RequestState.CANCELLING:
                each.is_cut_off = is_cut_off
            match each.state:
                case RequestState.WAITING | RequestState.ENCODING:
                    events = [*each.stream.begin(), *_cancelled(each, None, None)]
                    effects.extend(self._send(each, events))
                    self._remove(each)
                case RequestState.RUNNING:
                    each.state = RequestState.CANCELLING
                    effects.append(Cancel(each.response_id))
                case RequestState.CANCELLING:
                    pass
        for lane_id in dict.fromkeys(each.lane for each in requests):
            effects.extend(self._advance(lane_id))
        return [*effects, *self._close_if_drained()]

    # Ends

    def _on_finish(self, each: OpenRequest, event: FinishEvent) -> list[Effect]:
        summary = summary_of(event.summary, event.usage)
        if each.is_warm_up and event.reason in (FinishReason.STOP, FinishReason.LENGTH):
            usage = usage_of(event.usage, num_output=0)
            self._store(each, event)
            return self._finish(each, each.stream.finish_empty(usage, summary, self._clock()))
        usage = usage_of(event.usage, num_output=event.usage.num_output)
        events = each.stream.append(event.text, ())
        match event.reason:
            case FinishReason.STOP:
                events += each.stream.finish_completed(usage, summary, self._clock())
            case FinishReason.LENGTH:
                events += each.stream.finish_at_limit(usage, summary)
            case FinishReason.CANCELLED:
                events += _cancelled(each, usage, summary)
            case FinishReason.ERROR:
                events += each.stream.finish_failed(failure_of(event), usage, summary)
        has_failed = event.reason is FinishReason.CANCELLED and each.is_cut_off
        if event.reason is not FinishReason.ERROR and not has_failed:
            self._store(each, event)
        return self._finish(each, events)

    def _store(self, each: OpenRequest, event: FinishEvent) -> None:
        """Keep a turn for `previous_response_id`. Raw completions are not turns."""
        if isinstance(each.message, CompletionCreate) or each.encoded is None:
            return
        if each.is_warm_up:
            turn = Turn(each.messages, None, len(each.encoded.ids))
        else:
            text = each.stream.text
            # A stop string is committed but not shown: ids and text have parted.
            is_cut = isinstance(event.stop_match, str)
            turn = Turn(
                (*each.messages, ChatMessage("assistant", text)),
                None if is_cut else each.encoded.with_answer(each.token_ids, text),
                len(each.encoded.ids) + len(each.token_ids),
            )
        self._turns.put(each.response_id, turn)

    def _send(self, each: OpenRequest, events: Iterable[ServerEvent]) -> list[Effect]:
        return [Send(event, each.response_id) for event in events]


def _cancelled(
    each: OpenRequest, usage: ResponseUsage | None, summary: PacelineSummary | None
) -> list[ServerEvent]:
    """The end of a response that was cancelled: its client knows why, unless we did it."""
    if not each.is_cut_off:
        return each.stream.finish_cancelled(usage, summary)
    why = failure(ErrorCode.SERVER_SHUTTING_DOWN, "the server is shutting down; ask again")
    return each.stream.finish_failed(why, usage, summary)
