"""Addresses as people write them."""

from __future__ import annotations

import pytest

from paceline_client.endpoint import Endpoint
from paceline_protocol import JSON_CODEC, MSGPACK_CODEC


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("ws://127.0.0.1:8765", "ws://127.0.0.1:8765/v1/responses"),
        ("127.0.0.1:8765", "ws://127.0.0.1:8765/v1/responses"),
        ("localhost", "ws://localhost/v1/responses"),
        ("http://host:1/", "ws://host:1/v1/responses"),
        ("https://host/v1", "wss://host/v1/responses"),
        ("wss://host/v1/responses", "wss://host/v1/responses"),
        ("https://host/paceline/v1/", "wss://host/paceline/v1/responses"),
        ("ws://[::1]:8765", "ws://[::1]:8765/v1/responses"),
        ("ws://host/?region=eu", "ws://host/v1/responses?region=eu"),
    ],
)
def test_every_way_to_write_an_address(written: str, url: str) -> None:
    assert Endpoint.of(written).url == url


@pytest.mark.parametrize("written", ["", "ftp://host", "ws://", "ws://host:99999", "host:port"])
def test_what_is_no_address_is_refused_in_one_line(written: str) -> None:
    with pytest.raises(ValueError, match=r"^url is .*; it must be like ws://127\.0\.0\.1:8765$"):
        Endpoint.of(written)


def test_codecs_by_name() -> None:
    assert Endpoint.of("h").codec is JSON_CODEC
    assert Endpoint.of("h", codec="msgpack").codec is MSGPACK_CODEC
    with pytest.raises(ValueError, match="json, msgpack"):
        Endpoint.of("h", codec="xml")  # type: ignore[arg-type]
