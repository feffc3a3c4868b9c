"""All sockets of a server: lets them in, counts them, and sees them out."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import structlog
from starlette.websockets import WebSocketDisconnect

from paceline.server.access import AccessPolicy, Denial
from paceline.server.connection import Connection
from paceline.server.session import Session
from paceline_protocol.errors import ErrorCode
from paceline_protocol.subprotocols import negotiate

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

    from paceline.core.config import ServeConfig
    from paceline.core.events import EngineStatus
    from paceline.server.admission import SessionSettings
    from paceline.server.bridge import Bridge
    from paceline.server.prompts import TargetCodec

log: structlog.stdlib.BoundLogger = structlog.get_logger("paceline.server")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """max_connections: sockets at once. outbox_bytes: text that may wait for one reader.
    slow_reader_s: how long a reader may read nothing while something waits. encode_threads: prompts
    encoded at once. log_prompts: write prompts into the log."""

    access: AccessPolicy = AccessPolicy()
    max_connections: int = 256
    outbox_bytes: int = 4 * 1024 * 1024
    slow_reader_s: float = 30.0
    encode_threads: int = 2
    log_prompts: bool = False

    @classmethod
    def of(cls, config: ServeConfig) -> GatewaySettings:
        """Those of the operator's settings that concern sockets."""
        keys = (config.api_key, config.admin_key)
        return cls(
            access=AccessPolicy(
                frozenset(key for key in keys if key and config.api_key),
                frozenset(config.allowed_origins),
            ),
            max_connections=config.max_connections,
            slow_reader_s=config.send_deadline_s,
            log_prompts=config.log_prompts,
        )


class Gateway:
    """The WebSocket endpoint and its connections. Used from the event loop only."""

    def __init__(
        self,
        settings: GatewaySettings,
        session_settings: SessionSettings,
        codec: TargetCodec,
        bridge: Bridge,
    ) -> None:
        self.settings = settings
        self.session_settings = session_settings
        self.is_draining = False
        self._codec = codec
        self._bridge = bridge
        self._connections: set[Connection] = set()
        self._num_admitted = 0
        self._encode_limiter = anyio.CapacityLimiter(settings.encode_threads)
        self._all_gone = anyio.Event()

    @property
    def num_connections(self) -> int:
        """Sockets that are open, or about to be."""
        return self._num_admitted

    @property
    def status(self) -> EngineStatus:
        """The engine as of its last step that had something to tell."""
        return self._bridge.status

    async def endpoint(self, websocket: WebSocket) -> None:
        """`GET /v1/responses` upgraded."""
        negotiation = negotiate(websocket.scope["subprotocols"])
        denial = self._check(websocket, negotiation.api_key)
        if denial is not None:
            log.info("connection refused", code=denial.code.value)
            await websocket.send_denial_response(denial.response())
            return
        self._num_admitted += 1
        session_id = _new_id("sess")
        try:
            await websocket.accept(subprotocol=negotiation.subprotocol)
            connection = Connection(
                websocket,
                Session(session_id, self.session_settings, clock=time.time, new_id=_new_id),
                negotiation.codec,
                self._bridge,
                self._codec,
                encode_limiter=self._encode_limiter,
                outbox_bytes=self.settings.outbox_bytes,
                slow_reader_s=self.settings.slow_reader_s,
                log_prompts=self.settings.log_prompts,
            )
            log.info("session opened", session_id=session_id, codec=negotiation.codec.subprotocol)
            self._connections.add(connection)
            if self.is_draining:
                connection.drain()
            try:
                await connection.run()
            finally:
                self._connections.discard(connection)
        except WebSocketDisconnect:
            log.info("session lost", session_id=session_id)
        finally:
            self._num_admitted -= 1
            if self.is_draining and self._num_admitted == 0:
                self._all_gone.set()

    def begin_drain(self) -> None:
        """Refuse new sockets and new requests; close each socket when its work has ended."""
        if self.is_draining:
            return
        self.is_draining = True
        log.info("draining", num_connections=self._num_admitted)
        for connection in list(self._connections):
            connection.drain()
        if self._num_admitted == 0:
            self._all_gone.set()

    def end_drain(self) -> None:
        """Cancel what has not ended."""
        for connection in list(self._connections):
            connection.end_drain()

    async def wait_drained(self) -> None:
        """Until the last socket has gone; only after `begin_drain`."""
        await self._all_gone.wait()

    def _check(self, websocket: WebSocket, subprotocol_key: str | None) -> Denial | None:
        access = self.settings.access
        headers = websocket.headers
        denial = access.check_origin(headers, websocket.url.scheme) or access.check_key(
            headers, subprotocol_key
        )
        if denial is not None:
            return denial
        if self.is_draining:
            return Denial(ErrorCode.SERVER_SHUTTING_DOWN, "the server is shutting down")
        if self._num_admitted >= self.settings.max_connections:
            return Denial(
                ErrorCode.CONNECTION_LIMIT_REACHED,
                f"{self._num_admitted} connections are open, which is the server's limit; "
                "try again later",
            )
        return None


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
