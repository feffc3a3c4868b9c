"""Where a server is, and opening one WebSocket to it."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit, urlunsplit

from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_websocket
from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from paceline_client.errors import AuthenticationError, ConnectError, ServerBusyError
from paceline_protocol import JSON_CODEC, MSGPACK_CODEC, Codec

if TYPE_CHECKING:
    from websockets.datastructures import HeadersLike

DEFAULT_URL = "ws://127.0.0.1:8765"
CodecName = Literal["json", "msgpack"]

_PATH = "/v1/responses"
_MAX_FRAME_BYTES = 16 * 2**20
_CODECS: dict[str, Codec] = {"json": JSON_CODEC, "msgpack": MSGPACK_CODEC}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server, how to speak to it and as whom.

    url: of the socket itself. api_key: sent in the Authorization header; never in the URL.
    """

    url: str
    codec: Codec
    api_key: str | None = None

    @classmethod
    def of(cls, url: str, *, api_key: str | None = None, codec: CodecName = "json") -> Endpoint:
        """From what people write: with ws, http or no scheme at all, with or without the path.

        Raises ValueError for what is no such address, or for an unknown codec.
        """
        if codec not in _CODECS:
            raise ValueError(f"codec is {codec!r}; it must be one of {', '.join(_CODECS)}")
        return cls(url=_socket_url(url), codec=_CODECS[codec], api_key=api_key)

    async def open(self) -> ClientConnection:
        """Open a socket. Raises ConnectError."""
        headers: HeadersLike = {}
        if self.api_key is not None:
            headers = {"Authorization": f"Bearer {self.api_key}"}
        subprotocols = [Subprotocol(self.codec.subprotocol)] if self.codec.is_binary else None
        try:
            opened = await open_websocket(
                self.url,
                additional_headers=headers,
                subprotocols=subprotocols,
                compression=None,
                max_size=_MAX_FRAME_BYTES,
                proxy=None if _is_loopback(self.url) else True,
                user_agent_header="paceline-client",
            )
        except InvalidStatus as error:
            raise self._refused(error) from None
        except InvalidURI as error:
            raise ConnectError(self.url, str(error)) from None
        except InvalidHandshake as error:
            raise ConnectError(
                self.url, f"what answers there is no Paceline server: {error}"
            ) from None
        except TimeoutError:
            raise ConnectError(self.url, "nothing answers in time") from None
        except EOFError:
            raise ConnectError(self.url, "it closed the connection at once") from None
        except OSError as error:
            raise ConnectError(self.url, _why(error)) from None
        if self.codec.is_binary and opened.subprotocol != self.codec.subprotocol:
            await opened.close()
            raise ConnectError(self.url, f"the server does not speak {self.codec.subprotocol}")
        return opened

    def _refused(self, error: InvalidStatus) -> ConnectError:
        status = error.response.status_code
        body = error.response.body or b""
        said = body[:200].decode(errors="replace").strip() or f"HTTP status {status}"
        match status:
            case 401 | 403:
                return AuthenticationError(self.url, said)
            case 429 | 503:
                return ServerBusyError(self.url, said)
            case _:
                return ConnectError(self.url, said)


def _socket_url(url: str) -> str:
    parts = urlsplit(url if "://" in url else f"ws://{url}")
    scheme = {"ws": "ws", "http": "ws", "wss": "wss", "https": "wss"}.get(parts.scheme)
    try:
        valid = scheme is not None and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        valid = False
    if not valid or scheme is None:
        raise ValueError(f"url is {url!r}; it must be like {DEFAULT_URL}")
    path = parts.path.rstrip("/")
    if not path.endswith(_PATH):
        path = path.removesuffix("/v1") + _PATH
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def _why(error: OSError) -> str:
    """What the system says; event loops put longer sentences of their own in its place."""
    if isinstance(error, socket.gaierror) or not error.errno:
        return (error.strerror or str(error) or "no server answers").lower()
    return os.strerror(error.errno).lower()


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
