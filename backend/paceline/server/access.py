"""Who may come in: origin and key. Pure decisions about one request's headers.

A WebSocket handshake is not covered by the browser's same-origin policy: any page can open one to a
server on localhost. So the Origin header is compared exactly with a list. Programs send no Origin
and are let in; what stops them is the key.

A key travels in `Authorization: Bearer ...` or, because browsers cannot set headers on a socket, as
an offered subprotocol. It is never read from the query (which ends up in logs), and compared in
constant time.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from starlette.responses import Response

from paceline_protocol.codecs import JSON_CODEC
from paceline_protocol.errors import MEANINGS, ErrorCode
from paceline_protocol.events import ErrorDetails
from paceline_protocol.subprotocols import KEY_SUBPROTOCOL_PREFIX

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is refused, in one sentence."""

    code: ErrorCode
    message: str

    def response(self, status: int | None = None) -> Response:
        """The HTTP answer, with a body of the shape that OpenAI clients read."""
        meaning = MEANINGS[self.code]
        details = ErrorDetails(
            type=meaning.type, code=self.code.value, message=self.message, param=None
        )
        headers = {"WWW-Authenticate": "Bearer"} if self.code is ErrorCode.INVALID_API_KEY else {}
        return Response(
            b'{"error":' + JSON_CODEC.encode(details).encode() + b"}",
            status_code=status or meaning.status,
            headers=headers,
            media_type="application/json",
        )


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Fixed for the life of the server.

    api_keys: any of them opens a connection; none means that no key is asked for.
    allowed_origins: exact origins (`https://host:port`) beside the server's own.
    admin_key: opens what concerns the whole server; without one, this machine's clients may.
    """

    api_keys: frozenset[str] = frozenset()
    allowed_origins: frozenset[str] = frozenset()
    admin_key: str | None = None

    def check_origin(self, headers: Mapping[str, str], scheme: str) -> Denial | None:
        """Compare Origin with the server's own (scheme and Host header) and the list.

        `scheme` is http, https, ws or wss.
        """
        origin = headers.get("origin")
        if origin is None or origin in self.allowed_origins:
            return None
        own_scheme = "https" if scheme in ("https", "wss") else "http"
        host = headers.get("host")
        if host is not None and origin == f"{own_scheme}://{host}" and _is_own_host(host):
            return None
        return Denial(
            ErrorCode.ORIGIN_NOT_ALLOWED,
            f"origin {origin[:200]!r} is not allowed; the operator can add it to the server's list "
            "of allowed origins",
        )

    def check_key(
        self, headers: Mapping[str, str], subprotocol_key: str | None = None
    ) -> Denial | None:
        """Look for a valid key. `subprotocol_key` is the one among the offered subprotocols."""
        if not self.api_keys:
            return None
        offered = _offered(headers, subprotocol_key)
        if any(_is_same(offer, key) for offer in offered for key in self.api_keys):
            return None
        message = (
            "the API key is not valid"
            if offered
            else "an API key is needed: send `Authorization: Bearer <key>` or, from a browser, "
            f"offer the subprotocol `{KEY_SUBPROTOCOL_PREFIX}<base64url of the key>` as well"
        )
        return Denial(ErrorCode.INVALID_API_KEY, message)

    def is_admin(
        self, headers: Mapping[str, str], subprotocol_key: str | None, client_host: str | None
    ) -> bool:
        """Whether a client that was let in may see the whole server. client_host: its address."""
        if self.admin_key is None:
            return _is_loopback(client_host)
        offered = _offered(headers, subprotocol_key)
        return any(_is_same(offer, self.admin_key) for offer in offered)


def _offered(headers: Mapping[str, str], subprotocol_key: str | None) -> list[str]:
    scheme, _, credentials = headers.get("authorization", "").partition(" ")
    bearer = credentials.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, subprotocol_key) if key]


def _is_loopback(host: str | None) -> bool:
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def _is_same(offer: str, key: str) -> bool:
    return hmac.compare_digest(offer.encode(errors="surrogateescape"), key.encode())


def _is_own_host(host: str) -> bool:
    """Whether the Host header is one that no foreign DNS record can stand for.

    Only localhost and literal addresses are: under any other name a page could be served from
    elsewhere and then rebound to this machine, with Origin and Host still in agreement. Servers
    reached by name put their origin on the list.
    """
    try:
        name = urlsplit(f"//{host}").hostname
    except ValueError:
        return False
    if name == "localhost":
        return True
    try:
        ipaddress.ip_address(name or "")
    except ValueError:
        return False
    return True
