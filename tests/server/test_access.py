"""Origins are compared exactly; keys come from a header or a subprotocol."""

from __future__ import annotations

import json

import pytest

from paceline.server.access import AccessPolicy
from paceline_protocol.errors import ErrorCode

POLICY = AccessPolicy(frozenset({"secret", "other"}), frozenset({"https://chat.example.org"}))


@pytest.mark.parametrize(
    ("headers", "scheme"),
    [
        ({}, "ws"),
        ({"origin": "https://chat.example.org", "host": "api.example.org"}, "wss"),
        ({"origin": "http://127.0.0.1:8765", "host": "127.0.0.1:8765"}, "ws"),
        ({"origin": "http://localhost:8765", "host": "localhost:8765"}, "ws"),
        ({"origin": "http://localhost", "host": "localhost"}, "http"),
        ({"origin": "http://[::1]:8765", "host": "[::1]:8765"}, "ws"),
        ({"origin": "https://10.0.0.5", "host": "10.0.0.5"}, "wss"),
    ],
)
def test_allowed_origins(headers: dict[str, str], scheme: str) -> None:
    assert POLICY.check_origin(headers, scheme) is None


@pytest.mark.parametrize(
    ("headers", "scheme"),
    [
        ({"origin": "https://evil.example"}, "ws"),
        ({"origin": "null", "host": "localhost:8765"}, "ws"),
        ({"origin": "", "host": "localhost"}, "ws"),
        ({"origin": "https://chat.example.org.evil.example"}, "wss"),
        ({"origin": "https://chat.example.org:444"}, "wss"),
        ({"origin": "http://chat.example.org"}, "wss"),
        ({"origin": "https://localhost:8765", "host": "localhost:8765"}, "ws"),
        ({"origin": "http://localhost:9999", "host": "localhost:8765"}, "ws"),
        # A name that was rebound to this machine: Origin and Host agree, and still.
        ({"origin": "http://evil.example:8765", "host": "evil.example:8765"}, "ws"),
        ({"origin": "http://[::1", "host": "[::1"}, "ws"),
    ],
)
def test_refused_origins(headers: dict[str, str], scheme: str) -> None:
    denial = POLICY.check_origin(headers, scheme)
    assert denial is not None
    assert denial.response().status_code == 403


@pytest.mark.parametrize(
    ("headers", "subprotocol_key"),
    [
        ({"authorization": "Bearer secret"}, None),
        ({"authorization": "bearer  other "}, None),
        ({}, "secret"),
        ({"authorization": "Bearer wrong"}, "secret"),
    ],
)
def test_valid_keys(headers: dict[str, str], subprotocol_key: str | None) -> None:
    assert POLICY.check_key(headers, subprotocol_key) is None


@pytest.mark.parametrize(
    ("headers", "subprotocol_key", "what"),
    [
        ({}, None, "is needed"),
        ({"authorization": "Basic secret"}, None, "is needed"),
        ({"authorization": "Bearer "}, None, "is needed"),
        ({"authorization": "Bearer wrong"}, None, "not valid"),
        ({"authorization": "Bearer \udcff"}, None, "not valid"),
        ({}, "Secret", "not valid"),
    ],
)
def test_missing_and_wrong_keys(
    headers: dict[str, str], subprotocol_key: str | None, what: str
) -> None:
    denial = POLICY.check_key(headers, subprotocol_key)
    assert denial is not None
    assert denial.code is ErrorCode.INVALID_API_KEY
    assert what in denial.message
    response = denial.response()
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    error = json.loads(bytes(response.body))["error"]
    assert error["code"] == "invalid_api_key"
    assert "secret" not in error["message"]


def test_without_keys_everybody_is_let_in() -> None:
    assert AccessPolicy().check_key({}, None) is None
