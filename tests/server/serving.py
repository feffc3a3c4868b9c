"""A whole server in this process, on a real socket, before a scripted engine."""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from paceline.core.config import ServeConfig
from paceline.server.listener import address_of, bind
from paceline.server.serving import serve
from tests.fakes_engine import LIMITS, CharacterCodec, ScriptedEngine, echo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from websockets.frames import Close

    from paceline.core.events import StepResult
    from paceline.core.limits import EngineLimits
    from paceline.core.request import Request
    from paceline.server.serving import Shutdown


@dataclass
class Server:
    http_url: str
    engine: ScriptedEngine
    shutdown: Shutdown

    @property
    def url(self) -> str:
        return self.http_url.replace("http", "ws") + "/v1/responses"

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.http_url.removeprefix("http://").split(":")
        return host, int(port)

    def connect(self, **options: Any) -> connect:
        return connect(self.url, **({"compression": None} | options))

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until a step, or a call of the engine's methods, made the condition true."""
        assert await anyio.to_thread.run_sync(self.engine.wait_until, condition)


@contextlib.asynccontextmanager
async def serving(
    answer: Callable[[Request], Sequence[str]] = echo,
    limits: EngineLimits = LIMITS,
    step_s: float = 0.0,
    tell: Callable[[str], None] = lambda what: None,
    **settings: Any,
) -> AsyncIterator[Server]:
    """The server runs inside the block and is shut down after it.

    step_s: how long a step of the engine takes; give it some where an answer has to last until
    somebody reacts to it. tell: hears what the operator does.
    """
    engines: list[ScriptedEngine] = []

    def build_engine(deliver: Callable[[StepResult], None]) -> ScriptedEngine:
        engines.append(ScriptedEngine(deliver, answer, limits, step_s=step_s))
        return engines[0]

    listener = bind("127.0.0.1", 0)
    async with anyio.create_task_group() as tasks:
        run = functools.partial(
            serve,
            listener,
            build_engine,
            CharacterCodec(),
            ServeConfig(**settings),
            handle_signals=False,
            tell=tell,
        )
        address = address_of(listener)
        shutdown = await tasks.start(run)
        try:
            yield Server(address, engines[0], shutdown)
        finally:
            engines[0].resume()
            shutdown.begin()
            shutdown.begin()


async def receive(socket: ClientConnection) -> dict[str, Any]:
    """The next event of a JSON connection."""
    event: dict[str, Any] = json.loads(await socket.recv())
    return event


async def receive_response(socket: ClientConnection) -> list[dict[str, Any]]:
    """Events up to the one that ends a response, or refuses it."""
    events = [await receive(socket)]
    while events[-1]["type"] not in (
        "response.completed",
        "response.incomplete",
        "response.failed",
        "error",
    ):
        events.append(await receive(socket))
    return events


async def ask(
    socket: ClientConnection, text: str | list[Any], **fields: Any
) -> list[dict[str, Any]]:
    """One response from beginning to end."""
    await socket.send(json.dumps({"type": "response.create", "input": text} | fields))
    return await receive_response(socket)


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(e["delta"] for e in events if e["type"] == "response.output_text.delta")


async def until_closed(socket: ClientConnection) -> Close:
    """Reads on to the end; what the server's close frame said."""
    while True:
        try:
            await socket.recv()
        except ConnectionClosed as closed:
            if closed.rcvd is None:
                raise
            return closed.rcvd
