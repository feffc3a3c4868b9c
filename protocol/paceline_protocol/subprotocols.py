"""What client and server agree on in the WebSocket handshake: encoding and, from browsers, a key.

Browsers can set no headers on a WebSocket, so a key may travel as one more offered subprotocol. It
is never echoed: the server selects the name of an encoding, or nothing when none was offered.
"""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, NamedTuple

from paceline_protocol.codecs import CODECS, JSON_CODEC, Codec

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
    """The server's choice: the first encoding that it knows, else JSON without a subprotocol."""
    codec: Codec | None = None
    api_key: str | None = None
    for name in offered:
        if name in CODECS and codec is None:
            codec = CODECS[name]
        elif name.startswith(KEY_SUBPROTOCOL_PREFIX) and api_key is None:
            api_key = _decode_key(name.removeprefix(KEY_SUBPROTOCOL_PREFIX))
    if codec is None:
        return Negotiation(JSON_CODEC, None, api_key)
    return Negotiation(codec, codec.subprotocol, api_key)


def _decode_key(encoded: str) -> str | None:
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode() or None
    except (binascii.Error, UnicodeError, ValueError):
        return None
