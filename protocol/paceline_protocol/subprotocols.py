"""What client and server agree on in the WebSocket handshake: encoding and, from browsers, a key.

Browsers can set no headers on a WebSocket, so a key may travel as one more offered subprotocol. It
is never echoed: the server selects the name of an encoding, or nothing when none was offered.

RFC 6455 (section 4.2.2) lets a server go on without any of the offered subprotocols. Ours refuses:
a client that names what it speaks, and names nothing that we do, would be misunderstood, and
browsers give up on such a connection anyway.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, NamedTuple

from paceline_protocol.codecs import CODECS, JSON_CODEC, Codec
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.expectations import one_of

if TYPE_CHECKING:
    from collections.abc import Iterable

KEY_SUBPROTOCOL_PREFIX: Final = "paceline.key."


class Negotiation(NamedTuple):
    """codec: how the connection is spoken. subprotocol: what the server echoes, None for nothing
    (then it is JSON). api_key: the key among the offers, None if there was none or it was
    unreadable."""

    codec: Codec
    subprotocol: str | None
    api_key: str | None


def key_subprotocol(api_key: str) -> str:
    """The subprotocol that carries a key; offer it after the name of an encoding."""
    encoded = base64.urlsafe_b64encode(api_key.encode()).decode().rstrip("=")
    return KEY_SUBPROTOCOL_PREFIX + encoded


def negotiate(offered: Iterable[str]) -> Negotiation:
    """The server's choice: the first encoding that it knows; JSON without a subprotocol where none
    is named.

    Raises ProtocolError (UNSUPPORTED_VALUE) when all that are named are unknown; the server answers
    the handshake with its HTTP status.
    """
    codec: Codec | None = None
    api_key: str | None = None
    unknown: list[str] = []
    for name in offered:
        if name.startswith(KEY_SUBPROTOCOL_PREFIX):
            if api_key is None:
                api_key = _decode_key(name.removeprefix(KEY_SUBPROTOCOL_PREFIX))
        elif name not in CODECS:
            unknown.append(name)
        elif codec is None:
            codec = CODECS[name]
    if codec is not None:
        return Negotiation(codec, codec.subprotocol, api_key)
    if any(unknown):
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VALUE,
            f"none of the offered subprotocols is known here; offer {one_of(CODECS)}, or none for "
            "JSON",
        )
    return Negotiation(JSON_CODEC, None, api_key)


def _decode_key(encoded: str) -> str | None:
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode() or None
    except (binascii.Error, UnicodeError, ValueError):
        return None
