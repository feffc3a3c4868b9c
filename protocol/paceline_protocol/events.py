"""Server events: everything that a server sends.

A response runs `response.created`, `response.in_progress`, its output items one after the other,
and exactly one of `response.completed`, `response.incomplete` and `response.failed`. An item is
framed by `response.output_item.added` and `response.output_item.done`; between them come

    message        content_part.added, output_text.delta ..., output_text.done, content_part.done
    function_call  function_call_arguments.delta ..., function_call_arguments.done
    reasoning      reasoning_text.delta ..., reasoning_text.done

sequence_number: counts from 0 without gaps within one response. It is given out when the event is
written, after adjacent text deltas were merged, hence the default while an event is being built.
stream_id: the lane of the client event that this one answers; absent if that had none.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.items import Logprob, OutputItem, OutputText
from paceline_protocol.requests import TelemetryScope
from paceline_protocol.responses import Response
from paceline_protocol.telemetry import ServerTelemetry, SessionTelemetry

TokenSource = Literal["accepted", "residual", "bonus", "plain"]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    sequence_number: int = 0
    stream_id: str | UnsetType = UNSET


class ResponseCreated(_Event, frozen=True, kw_only=True, tag="response.created"):
    """The request was taken."""

    response: Response


class ResponseInProgress(_Event, frozen=True, kw_only=True, tag="response.in_progress"):
    """The engine has it."""

    response: Response


class ResponseCompleted(_Event, frozen=True, kw_only=True, tag="response.completed"):
    """The model ended its answer, or a stop string did."""

    response: Response


class ResponseIncomplete(_Event, frozen=True, kw_only=True, tag="response.incomplete"):
    """Cut off: by a length limit (`incomplete_details.reason`), or by the client (status
    `cancelled`)."""

    response: Response


class ResponseFailed(_Event, frozen=True, kw_only=True, tag="response.failed"):
    """`response.error` says why. Text that was sent before stands."""

    response: Response


class OutputItemAdded(_Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class OutputItemDone(_Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class ContentPartAdded(_Event, frozen=True, kw_only=True, tag="response.content_part.added"):
    item_id: str
    output_index: int
    content_index: int
    part: OutputText


class ContentPartDone(_Event, frozen=True, kw_only=True, tag="response.content_part.done"):
    item_id: str
    output_index: int
    content_index: int
    part: OutputText


class SourcedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A committed token and where it came from: `accepted` (drafted and accepted), `residual`
    (drawn in place of a rejected draft), `bonus` (drawn after a full acceptance), `plain` (nothing
    was drafted). text: what became certain with it; it may be empty, and the texts of a delta's
    tokens join to the delta, except for text that was held back and is released without a token."""

    id: int
    text: str
    source: TokenSource


class DeltaTokens(msgspec.Struct, frozen=True, kw_only=True):
    """On a text delta when the request had `paceline.include: ["tokens"]`."""

    tokens: list[SourcedToken]


class OutputTextDelta(_Event, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More text: always whole characters, often of several tokens."""

    item_id: str
    output_index: int
    content_index: int
    delta: str
    logprobs: list[Logprob] = msgspec.field(default_factory=list)
    paceline: DeltaTokens | UnsetType = UNSET


class OutputTextDone(_Event, frozen=True, kw_only=True, tag="response.output_text.done"):
    """The whole text."""

    item_id: str
    output_index: int
    content_index: int
    text: str
    logprobs: list[Logprob] = msgspec.field(default_factory=list)


class FunctionCallArgumentsDelta(
    _Event, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"
):
    """More of the call's arguments."""

    item_id: str
    output_index: int
    delta: str


class FunctionCallArgumentsDone(
    _Event, frozen=True, kw_only=True, tag="response.function_call_arguments.done"
):
    """The whole arguments: JSON text, as the model wrote it."""

    item_id: str
    output_index: int
    name: str
    arguments: str


class ReasoningTextDelta(_Event, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More of what the model thinks."""

    item_id: str
    output_index: int
    content_index: int
    delta: str


class ReasoningTextDone(_Event, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """The whole thought."""

    item_id: str
    output_index: int
    content_index: int
    text: str


class ErrorDetails(msgspec.Struct, frozen=True, kw_only=True):
    """param: the path of what is wrong, as in `ProtocolError`."""

    type: str
    code: str
    message: str
    param: str | None = None


class ErrorEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="error"):
    """A client event was refused; nothing else will answer it, and the connection lives on.
    sequence_number: always null, no response was running for it."""

    status: int
    error: ErrorDetails
    sequence_number: int | None = None
    stream_id: str | UnsetType = UNSET

    @classmethod
    def of(
        cls,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        stream_id: str | None = None,
    ) -> ErrorEvent:
        """The event for a code, with the code's status and type."""
        return cls.from_error(ProtocolError(code, message, param=param, stream_id=stream_id))

    @classmethod
    def from_error(cls, error: ProtocolError) -> ErrorEvent:
        return cls(
            status=error.status,
            error=ErrorDetails(
                type=error.type, code=error.code.value, message=error.message, param=error.param
            ),
            stream_id=UNSET if error.stream_id is None else error.stream_id,
        )


class TelemetrySample(_Event, frozen=True, kw_only=True, tag="telemetry.sample"):
    """The state at one moment; a slow reader gets fewer samples, always the latest.

    time: seconds since 1970. sessions: this connection's lanes, or those of all connections in
    scope `server`. server: only in scope `server`. sequence_number: counts the connection's
    samples. ledger_level_ms: what speculation has cost beyond its allowance, in milliseconds;
    0 is the usual state. ledger_capacity_ms: from where on drafting pauses.
    """

    scope: TelemetryScope
    time: float
    sessions: list[SessionTelemetry]
    ledger_level_ms: float | None = None
    ledger_capacity_ms: float | None = None
    server: ServerTelemetry | None = None


ServerEvent = (
    ResponseCreated
    | ResponseInProgress
    | OutputItemAdded
    | ContentPartAdded
    | OutputTextDelta
    | OutputTextDone
    | FunctionCallArgumentsDelta
    | FunctionCallArgumentsDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | ContentPartDone
    | OutputItemDone
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ErrorEvent
    | TelemetrySample
)
TerminalEvent = ResponseCompleted | ResponseIncomplete | ResponseFailed
SERVER_EVENTS: tuple[type[ServerEvent], ...] = (
    ResponseCreated,
    ResponseInProgress,
    OutputItemAdded,
    ContentPartAdded,
    OutputTextDelta,
    OutputTextDone,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ContentPartDone,
    OutputItemDone,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
    ErrorEvent,
    TelemetrySample,
)
