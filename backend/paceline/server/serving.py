"""Runs the application on one port until a signal, and shuts it down in the right order.

SIGTERM or SIGINT: not ready, new sockets get 503, new requests an error; running responses have a
grace time, then they fail as `server_shutting_down`; each socket is closed with 1012 when its work
has ended; then uvicorn stops, then the engine. A second signal ends the grace time at once.

uvicorn's own signal handling is switched off: it would send 1012 to everybody first.
"""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import structlog
import uvicorn

from paceline.core.request import SamplingParams
from paceline.server.admission import SessionSettings
from paceline.server.app import build_app
from paceline.server.bridge import Bridge
from paceline.server.gateway import Gateway, GatewaySettings
from paceline.server.listener import address_of, listen
from paceline.server.tool_calls.style import AnswerStyle
from paceline.server.web_pages import web_routes
from paceline.server.websocket_transport import WebSocketTransport

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from anyio.abc import TaskStatus
    from starlette.applications import Starlette

    from paceline.core.config import ServeConfig
    from paceline.core.events import StepResult
    from paceline.core.limits import EngineLimits
    from paceline.server.bridge import EnginePort
    from paceline.server.prompts import TargetCodec

log: structlog.stdlib.BoundLogger = structlog.get_logger("paceline.server")

PING_INTERVAL_S = 20.0
PING_TIMEOUT_S = 60.0
CANCEL_TIMEOUT_S = 5.0
REQUESTS_PER_LANE = 4
ENGINE_STOP_TIMEOUT_S = 10.0
OPENAI_SAMPLING = SamplingParams()


def _tell_nobody(what: str) -> None:
    pass


async def serve(
    listener: socket.socket,
    build_engine: Callable[[Callable[[StepResult], None]], EnginePort],
    codec: TargetCodec,
    config: ServeConfig,
    *,
    default_sampling: SamplingParams = OPENAI_SAMPLING,
    handle_signals: bool = True,
    tell: Callable[[str], None] = _tell_nobody,
    task_status: TaskStatus[Shutdown] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until a signal, or until `Shutdown.begin`. Returns after a clean end.

    listener: from `listener.bind`, closed at the end. build_engine: gets the function that takes
    each step's result and gives back the engine's thread, not started. codec: the target's
    `TextCodec`. default_sampling: for what requests leave open. handle_signals: False where
    somebody else owns them. tell: hears, in words for the operator, how the server ends.
    task_status: is told, once the port answers, the handle that ends the server.

    Raises ConfigError when the port was taken since `bind`.
    """
    pages = await anyio.to_thread.run_sync(web_routes)
    listen(listener)
    bridge = Bridge()
    engine = build_engine(bridge.deliver)
    bridge.open(engine)
    gateway = Gateway(
        GatewaySettings.of(config),
        session_settings(codec, engine.limits, config, default_sampling),
        codec,
        bridge,
    )
    server = _Server(build_app(gateway, pages), config.max_message_bytes)
    shutdown = Shutdown(gateway, server, config.grace_period_s, tell)
    engine.start()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shutdown.run)
            if handle_signals:
                tasks.start_soon(_watch_signals, shutdown)
            tasks.start_soon(_announce, server, listener, shutdown, task_status)
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()
    finally:
        bridge.close()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(engine.stop, ENGINE_STOP_TIMEOUT_S)
        log.info("stopped")
        tell("Stopped")


def session_settings(
    codec: TargetCodec,
    limits: EngineLimits,
    config: ServeConfig,
    default_sampling: SamplingParams = OPENAI_SAMPLING,
) -> SessionSettings:
    """What sessions need to know of the model, the engine and the settings."""
    return SessionSettings(
        model=codec.name,
        limits=limits,
        eos_token_ids=codec.eos_token_ids,
        max_lanes=config.max_lanes,
        max_open=REQUESTS_PER_LANE * config.max_lanes,
        max_stored_tokens=config.max_stored_tokens,
        allow_forced=config.allow_forced_speculation,
        default_sampling=default_sampling,
        token_bytes=codec.token_bytes,
        style=AnswerStyle.of(codec),
    )


class Shutdown:
    """The way out: `begin` once for a graceful end, again to end the grace time."""

    def __init__(
        self,
        gateway: Gateway,
        server: uvicorn.Server,
        grace_s: float,
        tell: Callable[[str], None] = _tell_nobody,
    ) -> None:
        self._tell = tell
        self._gateway = gateway
        self._server = server
        self._grace_s = grace_s
        self._begun = anyio.Event()
        self._hurry = anyio.Event()

    def begin(self) -> None:
        """Start to shut down; if that has begun, stop waiting for running responses."""
        if self._begun.is_set():
            self._hurry.set()
        self._begun.set()

    async def run(self) -> None:
        """Carries the shutdown out, once it has begun."""
        await self._begun.wait()
        self._gateway.begin_drain()
        num_open = self._gateway.num_open_answers
        self._tell(
            f"Shutting down: {_answers(num_open)} being finished, for {self._grace_s:g} s at most; "
            "a second signal (Ctrl-C, SIGTERM) ends this at once"
            if num_open and self._grace_s
            else "Shutting down"
        )
        with anyio.move_on_after(self._grace_s):
            await self._first_of_drained_and_hurry()
        num_open = self._gateway.num_open_answers
        if num_open:
            cause = "As asked" if self._hurry.is_set() else f"{self._grace_s:g} s are over"
            self._tell(f"{cause}: {_answers(num_open)} being ended")
        self._gateway.end_drain()
        with anyio.move_on_after(CANCEL_TIMEOUT_S):
            await self._gateway.wait_drained()
        self._server.should_exit = True

    async def _first_of_drained_and_hurry(self) -> None:
        async with anyio.create_task_group() as tasks:

            async def wait_for_hurry() -> None:
                await self._hurry.wait()
                tasks.cancel_scope.cancel()

            tasks.start_soon(wait_for_hurry)
            await self._gateway.wait_drained()
            tasks.cancel_scope.cancel()


def _answers(number: int) -> str:
    return "1 answer is" if number == 1 else f"{number:,} answers are"


async def _watch_signals(shutdown: Shutdown) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("signal", name=signal.Signals(number).name)
            shutdown.begin()


async def _announce(
    server: _Server,
    listener: socket.socket,
    shutdown: Shutdown,
    task_status: TaskStatus[Shutdown],
) -> None:
    await server.has_started.wait()
    log.info("serving", address=address_of(listener))
    task_status.started(shutdown)


class _Server(uvicorn.Server):
    """uvicorn with our transport, without its signal handlers, access log and query strings."""

    def __init__(self, app: Starlette, max_message_bytes: int) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                ws=WebSocketTransport,
                ws_max_size=max_message_bytes,
                ws_ping_interval=PING_INTERVAL_S,
                ws_ping_timeout=PING_TIMEOUT_S,
                ws_per_message_deflate=False,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                timeout_graceful_shutdown=int(CANCEL_TIMEOUT_S),
            )
        )
        self.has_started = anyio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.has_started.set()
