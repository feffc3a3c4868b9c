"""What can go wrong on the wire: one code each, with its HTTP status and error type.

Names are those of the OpenAI API wherever it has one, so that clients written for it react well.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class ErrorCode(StrEnum):
    """`error.code` of an `error` event."""

    # The frame or the message in it.
    INVALID_JSON = "invalid_json"
    INVALID_MSGPACK = "invalid_msgpack"
    UNEXPECTED_FRAME_TYPE = "unexpected_frame_type"
    UNKNOWN_EVENT_TYPE = "unknown_event_type"
    MISSING_REQUIRED_PARAMETER = "missing_required_parameter"
    INVALID_TYPE = "invalid_type"
    INVALID_VALUE = "invalid_value"
    UNKNOWN_PARAMETER = "unknown_parameter"
    UNSUPPORTED_PARAMETER = "unsupported_parameter"
    UNSUPPORTED_VALUE = "unsupported_value"
    # What the message asks for.
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"
    MODEL_NOT_FOUND = "model_not_found"
    PREVIOUS_RESPONSE_NOT_FOUND = "previous_response_not_found"
    RESPONSE_NOT_FOUND = "response_not_found"
    # Who asks.
    INVALID_API_KEY = "invalid_api_key"
    ORIGIN_NOT_ALLOWED = "origin_not_allowed"
    PERMISSION_DENIED = "permission_denied"
    # Limits.
    QUEUE_FULL = "queue_full"
    TOO_MANY_LANES = "too_many_lanes"
    CONNECTION_LIMIT_REACHED = "connection_limit_reached"
    WEBSOCKET_CONNECTION_LIMIT_REACHED = "websocket_connection_limit_reached"
    SLOW_READER = "slow_reader"
    # The server itself.
    SERVER_SHUTTING_DOWN = "server_shutting_down"
    NON_FINITE_LOGITS = "non_finite_logits"
    SERVER_ERROR = "server_error"


class Meaning(NamedTuple):
    """HTTP status and `error.type` of a code."""

    status: int
    type: str


_INVALID = "invalid_request_error"
_BUSY = "rate_limit_error"
_OURS = "server_error"

MEANINGS: dict[ErrorCode, Meaning] = {
    ErrorCode.INVALID_JSON: Meaning(400, _INVALID),
    ErrorCode.INVALID_MSGPACK: Meaning(400, _INVALID),
    ErrorCode.UNEXPECTED_FRAME_TYPE: Meaning(400, _INVALID),
    ErrorCode.UNKNOWN_EVENT_TYPE: Meaning(400, _INVALID),
    ErrorCode.MISSING_REQUIRED_PARAMETER: Meaning(400, _INVALID),
    ErrorCode.INVALID_TYPE: Meaning(400, _INVALID),
    ErrorCode.INVALID_VALUE: Meaning(400, _INVALID),
    ErrorCode.UNKNOWN_PARAMETER: Meaning(400, _INVALID),
    ErrorCode.UNSUPPORTED_PARAMETER: Meaning(400, _INVALID),
    ErrorCode.UNSUPPORTED_VALUE: Meaning(400, _INVALID),
    ErrorCode.CONTEXT_LENGTH_EXCEEDED: Meaning(400, _INVALID),
    ErrorCode.MODEL_NOT_FOUND: Meaning(404, _INVALID),
    ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND: Meaning(404, _INVALID),
    ErrorCode.RESPONSE_NOT_FOUND: Meaning(404, _INVALID),
    ErrorCode.INVALID_API_KEY: Meaning(401, "authentication_error"),
    ErrorCode.ORIGIN_NOT_ALLOWED: Meaning(403, "permission_error"),
    ErrorCode.PERMISSION_DENIED: Meaning(403, "permission_error"),
    ErrorCode.QUEUE_FULL: Meaning(429, _BUSY),
    ErrorCode.TOO_MANY_LANES: Meaning(429, _BUSY),
    ErrorCode.CONNECTION_LIMIT_REACHED: Meaning(429, _BUSY),
    ErrorCode.WEBSOCKET_CONNECTION_LIMIT_REACHED: Meaning(400, _INVALID),
    ErrorCode.SLOW_READER: Meaning(429, _BUSY),
    ErrorCode.SERVER_SHUTTING_DOWN: Meaning(503, _OURS),
    ErrorCode.NON_FINITE_LOGITS: Meaning(500, _OURS),
    ErrorCode.SERVER_ERROR: Meaning(500, _OURS),
}


class ProtocolError(ValueError):
    """A message breaks the protocol; the connection lives on.

    param: where, as a path from the message's root: `temperature`, `input[2].content[0].type`,
    `paceline.top_k`; None when it is the frame as a whole. stream_id: the lane that the message
    named, if it could still be read, so that the answer finds its way back.
    """

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        param: str | None = None,
        stream_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.stream_id = stream_id

    @property
    def status(self) -> int:
        return MEANINGS[self.code].status

    @property
    def type(self) -> str:
        return MEANINGS[self.code].type
