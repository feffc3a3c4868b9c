"""The wire of Paceline: messages, codecs, error codes. Depends on msgspec alone."""

from __future__ import annotations

from paceline_protocol.codecs import (
    JSON_CODEC,
    JSON_SUBPROTOCOL,
    MSGPACK_CODEC,
    MSGPACK_SUBPROTOCOL,
    Codec,
    UnknownEvent,
)
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.subprotocols import (
    KEY_SUBPROTOCOL_PREFIX,
    Negotiation,
    key_subprotocol,
    negotiate,
)

__all__ = [
    "JSON_CODEC",
    "JSON_SUBPROTOCOL",
    "KEY_SUBPROTOCOL_PREFIX",
    "MSGPACK_CODEC",
    "MSGPACK_SUBPROTOCOL",
    "PROTOCOL_VERSION",
    "Codec",
    "ErrorCode",
    "Negotiation",
    "ProtocolError",
    "UnknownEvent",
    "key_subprotocol",
    "negotiate",
]

PROTOCOL_VERSION = "1.0.0"
"""Version of the message set; the major number is that of the subprotocol names."""
