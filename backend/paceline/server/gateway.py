"""All clients of a server, on sockets or not: lets them in, counts them, and sees them out."""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
import structlog
from starlette.websockets import WebSocketDisconnect

from paceline.server.access import AccessPolicy, Denial
from paceline.server.connection import Connection
from paceline.server.http.exchange import Exchange
from paceline.server.metrics import Metrics
from paceline.server.session import Session
from paceline.server.turns import TurnStore
from paceline.server.worker_threads import WorkerThreads
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.subprotocols import negotiate

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from starlette.websockets import WebSocket

    from paceline.core.config import ServeConfig
    from paceline.core.events import EngineStatus
    from paceline.server.admission import SessionSettings
    from paceline.server.bridge import Bridge
    from paceline.server.prompts import TargetCodec
    from paceline.server.shell import SessionShell
    from paceline_protocol.subprotocols import Negotiation

MAX_LANES_PER_HTTP_REQUEST = 128

log: structlog.stdlib.BoundLogger = structlog.get_logger("paceline.server")


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """max_connections: sockets and HTTP requests at once. max_message_bytes: of an HTTP body.
    outbox_bytes: text that may wait for one reader.
    slow_reader_s: how long a reader may read nothing while something waits. encode_threads: prompts
    encoded at once. log_prompts: write prompts into the log."""

    access: AccessPolicy = AccessPolicy()
    max_connections: int = 256
    max_message_bytes: int = 1 << 20
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
                config.admin_key,
            ),
            max_connections=config.max_connections,
            max_message_bytes=config.max_message_bytes,
            slow_reader_s=config.send_deadline_s,
            log_prompts=config.log_prompts,
        )


class Gateway:
    """The WebSocket endpoint, its connections, and the exchanges of HTTP endpoints. Used from the
    event loop only."""

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
        self.codec = codec
        self._bridge = bridge
        self._shells: set[SessionShell] = set()
        self._http_settings = replace(
            session_settings,
            max_lanes=MAX_LANES_PER_HTTP_REQUEST,
            max_open=MAX_LANES_PER_HTTP_REQUEST,
        )
        self._http_turns = TurnStore(session_settings.max_stored_tokens)
        self._num_admitted = 0
        self.metrics = Metrics(
            session_settings.model,
            session_settings.limits.max_sequence_tokens,
            bridge.current_status,
            lambda: self._num_admitted,
        )
        bridge.observe(self.metrics)
        self._encoders = WorkerThreads(settings.encode_threads)
        self._all_gone = anyio.Event()

    @property
    def num_connections(self) -> int:
        """Sockets and HTTP requests that are open, or about to be."""
        return self._num_admitted

    @property
    def num_open_answers(self) -> int:
        """Requests of all clients that wait or run."""
        return sum(shell.session.num_open for shell in self._shells)

    @property
    def status(self) -> EngineStatus:
        """The engine as of its last step that had something to tell."""
        return self._bridge.status

    async def endpoint(self, websocket: WebSocket) -> None:
        """`GET /v1/responses` upgraded."""
        try:
            negotiation = negotiate(websocket.scope["subprotocols"])
        except ProtocolError as error:
            await _refuse(websocket, Denial(error.code, error.message))
            return
        denial = self.check(websocket.headers, websocket.url.scheme, negotiation.api_key)
        if denial is not None:
            await _refuse(websocket, denial)
            return
        session_id = _new_id("sess")
        with self.counted():
            try:
                await self._run_socket(websocket, session_id, negotiation)
            except WebSocketDisconnect:
                log.info("session lost", session_id=session_id)

    async def _run_socket(
        self, websocket: WebSocket, session_id: str, negotiation: Negotiation
    ) -> None:
        await websocket.accept(subprotocol=negotiation.subprotocol)
        client = websocket.client
        is_admin = self.settings.access.is_admin(
            websocket.headers, negotiation.api_key, None if client is None else client.host
        )
        connection = Connection(
            websocket,
            Session(
                session_id,
                self.session_settings,
                clock=time.time,
                new_id=_new_id,
                is_admin=is_admin,
            ),
            negotiation.codec,
            self._bridge,
            self.codec,
            encoders=self._encoders,
            outbox_bytes=self.settings.outbox_bytes,
            slow_reader_s=self.settings.slow_reader_s,
            num_sessions=lambda: self._num_admitted,
            log_prompts=self.settings.log_prompts,
        )
        log.info("session opened", session_id=session_id, codec=negotiation.codec.subprotocol)
        with self.watched(connection):
            await connection.run()

    def open_exchange(self, session_id: str | None) -> Exchange:
        """The shell of one HTTP request's session; `session_id` is None for a client without a
        name of its own. The caller has been `counted` and runs it while it is `watched`."""
        session = Session(
            session_id or _new_id("http"),
            self._http_settings,
            clock=time.time,
            new_id=_new_id,
            turns=self._http_turns,
        )
        return Exchange(
            session,
            self._bridge,
            self.codec,
            encoders=self._encoders,
            outbox_bytes=self.settings.outbox_bytes,
            log_prompts=self.settings.log_prompts,
        )

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """While the block runs a client counts as there."""
        self._num_admitted += 1
        try:
            yield
        finally:
            self._num_admitted -= 1
            if self.is_draining and self._num_admitted == 0:
                self._all_gone.set()

    @contextlib.contextmanager
    def watched(self, shell: SessionShell) -> Iterator[None]:
        """While the block runs the shell is told when the server goes away."""
        self._shells.add(shell)
        try:
            if self.is_draining:
                shell.drain()
            yield
        finally:
            self._shells.discard(shell)

    def begin_drain(self) -> None:
        """Refuse new clients and new requests; close each socket when its work has ended."""
        if self.is_draining:
            return
        self.is_draining = True
        log.info("draining", num_connections=self._num_admitted)
        for shell in list(self._shells):
            shell.drain()
        if self._num_admitted == 0:
            self._all_gone.set()

    def end_drain(self) -> None:
        """Cancel what has not ended."""
        for shell in list(self._shells):
            shell.end_drain()

    async def wait_drained(self) -> None:
        """Until the last client has gone; only after `begin_drain`."""
        await self._all_gone.wait()

    def check(
        self, headers: Mapping[str, str], scheme: str, key_beside_headers: str | None
    ) -> Denial | None:
        """Why a client may not come in; None if it may. key_beside_headers: an API key that does
        not travel in `Authorization`."""
        access = self.settings.access
        denial = access.check_origin(headers, scheme) or access.check_key(
            headers, key_beside_headers
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


async def _refuse(websocket: WebSocket, denial: Denial) -> None:
    log.info("connection refused", code=denial.code.value)
    await websocket.send_denial_response(denial.response())


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
