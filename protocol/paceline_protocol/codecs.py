"""Bytes to messages and back: JSON in text frames, MessagePack in binary frames.

A client event is decoded in steps, so that each fault gets its own precise answer: bytes to plain
values, the `type` to a message class, input items without a `type` to messages, plain values to
the class. Server events are decoded in one typed pass; a type that this version does not know
becomes an `UnknownEvent`, because a newer server may add some.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Final

import msgspec

from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.events import SERVER_EVENTS, ServerEvent
from paceline_protocol.expectations import one_of
from paceline_protocol.faults import as_protocol_error, json_fault, kind, refuse_misplaced_option
from paceline_protocol.requests import CLIENT_EVENTS, ClientEvent, ResponseCreate

JSON_SUBPROTOCOL: Final = "paceline.v1.json"
MSGPACK_SUBPROTOCOL: Final = "paceline.v1.msgpack"

_SERVER_CLASSES: Final[dict[str, type[ServerEvent]]] = {
    str(cls.__struct_config__.tag): cls for cls in SERVER_EVENTS
}
_CLIENT_CLASSES: Final[dict[str, type[ClientEvent]]] = {
    str(cls.__struct_config__.tag): cls for cls in CLIENT_EVENTS
}


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A server event of a type that this version does not know, as plain values."""

    type: str
    data: dict[str, Any]


class Codec(ABC):
    """What both encodings share. Stateless, safe to use from any thread."""

    subprotocol: str
    is_binary: bool

    @abstractmethod
    def encode(self, message: msgspec.Struct) -> str | bytes:
        """The frame's payload: str is sent as a text frame, bytes as a binary frame."""

    def decode_client(self, payload: str | bytes) -> ClientEvent:
        """Read what a client sent.

        Raises ProtocolError: UNEXPECTED_FRAME_TYPE for text where binary was agreed on, or the
        other way round (the caller closes with 1003); every other code is answered with an `error`
        event and the connection lives on.
        """
        self._check_frame(payload)
        value = self._plain(payload)
        if not isinstance(value, dict):
            raise ProtocolError(
                ErrorCode.INVALID_TYPE, f"a message must be an object, not {kind(value)}"
            )
        stream_id = value.get("stream_id")
        if not isinstance(stream_id, str):
            stream_id = None
        try:
            return client_event(value)
        except ProtocolError as error:
            error.stream_id = stream_id
            raise

    @abstractmethod
    def decode_server(self, payload: str | bytes) -> ServerEvent | UnknownEvent:
        """Read what a server sent. Raises ProtocolError."""

    @abstractmethod
    def _plain(self, payload: str | bytes) -> Any:
        """Bytes to plain values. Raises ProtocolError."""

    def _check_frame(self, payload: str | bytes) -> None:
        if isinstance(payload, str) == self.is_binary:
            got, wanted = ("text", "binary") if self.is_binary else ("binary", "text")
            raise ProtocolError(
                ErrorCode.UNEXPECTED_FRAME_TYPE,
                f"got a {got} frame; {self.subprotocol} uses {wanted} frames"
                + ("" if self.is_binary else f" (offer {MSGPACK_SUBPROTOCOL} for binary ones)"),
            )


class JsonCodec(Codec):
    """JSON in text frames; the default, and what official clients speak."""

    subprotocol = JSON_SUBPROTOCOL
    is_binary = False

    def __init__(self) -> None:
        self._encoder = msgspec.json.Encoder()
        self._values = msgspec.json.Decoder()
        self._server: msgspec.json.Decoder[ServerEvent] = msgspec.json.Decoder(ServerEvent)

    def encode(self, message: msgspec.Struct) -> str:
        return self._encoder.encode(message).decode()

    def decode_server(self, payload: str | bytes) -> ServerEvent | UnknownEvent:
        self._check_frame(payload)
        try:
            return self._server.decode(payload)
        except msgspec.ValidationError as error:
            return _unknown_event(self._plain(payload), error)
        except (msgspec.DecodeError, RecursionError):
            self._plain(payload)
            raise

    def _plain(self, payload: str | bytes) -> Any:
        try:
            return self._values.decode(payload)
        except RecursionError:
            raise ProtocolError(
                ErrorCode.INVALID_JSON, "the message is nested too deeply"
            ) from None
        except (msgspec.DecodeError, UnicodeError) as error:
            if not payload.strip():
                raise _empty(ErrorCode.INVALID_JSON, "JSON object") from None
            raise ProtocolError(
                ErrorCode.INVALID_JSON,
                f"the message is not valid JSON: {json_fault(payload, error)}",
            ) from None


class MsgpackCodec(Codec):
    """MessagePack in binary frames, by subprotocol."""

    subprotocol = MSGPACK_SUBPROTOCOL
    is_binary = True

    def __init__(self) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._values = msgspec.msgpack.Decoder()
        self._server: msgspec.msgpack.Decoder[ServerEvent] = msgspec.msgpack.Decoder(ServerEvent)

    def encode(self, message: msgspec.Struct) -> bytes:
        return self._encoder.encode(message)

    def decode_server(self, payload: str | bytes) -> ServerEvent | UnknownEvent:
        self._check_frame(payload)
        assert isinstance(payload, bytes)
        try:
            return self._server.decode(payload)
        except msgspec.ValidationError as error:
            return _unknown_event(self._plain(payload), error)
        except (msgspec.DecodeError, RecursionError):
            self._plain(payload)
            raise

    def _plain(self, payload: str | bytes) -> Any:
        assert isinstance(payload, bytes)
        try:
            return self._values.decode(payload)
        except RecursionError:
            raise ProtocolError(
                ErrorCode.INVALID_MSGPACK, "the message is nested too deeply"
            ) from None
        except (msgspec.DecodeError, UnicodeError, TypeError, ValueError, OverflowError) as error:
            if not payload:
                raise _empty(ErrorCode.INVALID_MSGPACK, "MessagePack map") from None
            raise ProtocolError(
                ErrorCode.INVALID_MSGPACK, f"the message is not valid MessagePack: {error}"
            ) from None


def _empty(code: ErrorCode, wanted: str) -> ProtocolError:
    return ProtocolError(code, f"the message is empty; it must be a {wanted} with a `type`")


JSON_CODEC: Final = JsonCodec()
MSGPACK_CODEC: Final = MsgpackCodec()
CODECS: Final[dict[str, Codec]] = {
    JSON_SUBPROTOCOL: JSON_CODEC,
    MSGPACK_SUBPROTOCOL: MSGPACK_CODEC,
}


def client_event(value: dict[str, Any]) -> ClientEvent:
    """A client event from plain values. Raises ProtocolError."""
    if "type" not in value:
        raise ProtocolError(
            ErrorCode.MISSING_REQUIRED_PARAMETER,
            f"type is missing; it must be {one_of(_CLIENT_CLASSES)}",
            param="type",
        )
    tag = value["type"]
    if not isinstance(tag, str):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, f"type must be a string, not {kind(tag)}", param="type"
        )
    cls = _CLIENT_CLASSES.get(tag)
    if cls is None:
        raise ProtocolError(
            ErrorCode.UNKNOWN_EVENT_TYPE,
            f'type is "{tag[:64]}"; it must be {one_of(_CLIENT_CLASSES)}',
            param="type",
        )
    refuse_misplaced_option(value, cls)
    if cls is ResponseCreate and isinstance(value.get("input"), list):
        value = value | {"input": [_typed_item(item) for item in value["input"]]}
    try:
        return msgspec.convert(value, cls, str_keys=True)
    except msgspec.ValidationError as error:
        raise as_protocol_error(error, cls, value) from None
    except RecursionError:
        raise ProtocolError(ErrorCode.INVALID_VALUE, "the message is nested too deeply") from None


def _typed_item(item: Any) -> Any:
    """An input item that leaves its `type` out is a message."""
    if isinstance(item, dict) and "type" not in item:
        return {"type": "message", **item}
    return item


def _unknown_event(value: Any, error: msgspec.ValidationError) -> UnknownEvent:
    """A well-formed event of an unknown type; otherwise raises ProtocolError."""
    if not isinstance(value, dict):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, f"a message must be an object, not {kind(value)}"
        )
    tag = value.get("type")
    if not isinstance(tag, str):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, f"type must be a string, not {kind(tag)}", param="type"
        )
    cls = _SERVER_CLASSES.get(tag)
    if cls is None:
        return UnknownEvent(type=tag, data=value)
    raise as_protocol_error(error, cls, value) from None
