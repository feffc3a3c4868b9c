"""The handshake's choice of encoding, and keys from browsers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_protocol import (
    JSON_CODEC,
    JSON_SUBPROTOCOL,
    MSGPACK_CODEC,
    MSGPACK_SUBPROTOCOL,
    ErrorCode,
    ProtocolError,
    key_subprotocol,
    negotiate,
)


@pytest.mark.parametrize(
    ("offered", "codec", "subprotocol"),
    [
        ([], JSON_CODEC, None),
        ([""], JSON_CODEC, None),
        ([JSON_SUBPROTOCOL], JSON_CODEC, JSON_SUBPROTOCOL),
        ([MSGPACK_SUBPROTOCOL, JSON_SUBPROTOCOL], MSGPACK_CODEC, MSGPACK_SUBPROTOCOL),
        (["x", JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL], JSON_CODEC, JSON_SUBPROTOCOL),
    ],
)
def test_the_first_known_encoding_wins(
    offered: list[str], codec: object, subprotocol: str | None
) -> None:
    chosen = negotiate(offered)
    assert (chosen.codec, chosen.subprotocol, chosen.api_key) == (codec, subprotocol, None)


@pytest.mark.parametrize("offered", [["graphql-ws"], ["paceline.v2.json", key_subprotocol("k")]])
def test_what_names_no_known_encoding_is_refused(offered: list[str]) -> None:
    with pytest.raises(ProtocolError, match=r"offer `paceline\.v1\.json` or") as caught:
        negotiate(offered)
    assert (caught.value.code, caught.value.status) == (ErrorCode.UNSUPPORTED_VALUE, 400)


@settings(deadline=None)
@given(key=st.text(min_size=1))
def test_a_key_travels_beside_the_encoding_and_is_never_chosen(key: str) -> None:
    offer = key_subprotocol(key)
    assert all(character.isalnum() or character in "-_." for character in offer)
    chosen = negotiate([offer, MSGPACK_SUBPROTOCOL])
    assert (chosen.api_key, chosen.subprotocol) == (key, MSGPACK_SUBPROTOCOL)


@pytest.mark.parametrize("encoded", ["", "a", "!!!!", "a b", "_____w"])
def test_an_unreadable_key_is_none(encoded: str) -> None:
    assert negotiate([f"paceline.key.{encoded}"]).api_key is None
