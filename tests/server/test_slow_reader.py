"""A client that reads nothing: it goes with 1013, and nobody else notices."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, connect

from paceline.server import websocket_transport
from paceline.server.outbox import Outbox
from paceline.server.websocket_transport import WebSocketTransport
from tests.fakes_engine import LIMITS, CharacterCodec
from tests.server.serving import Server, ask, serving, text_of, until_closed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import Request
    from paceline_protocol.events import ServerEvent

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_blocking")]

ROOMY = replace(LIMITS, max_model_len=1 << 24, num_blocks=1 << 20)
PIECE = "slow " * 400


def _is_slow(request: Request) -> bool:
    return "slow" in CharacterCodec().text_of(request.prompt_ids)


def _a_lot_and_then_a_trickle(request: Request) -> Sequence[str]:
    return [PIECE] * 800 + ["y"] * 2_000_000 if _is_slow(request) else ["fast"]


def _a_flood(request: Request) -> Sequence[str]:
    return [PIECE] * 1_000_000 if _is_slow(request) else ["fast"]


async def _connect_without_reading(server: Server) -> ClientConnection:
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect(server.address)
    raw.setblocking(False)
    return await connect(server.url, sock=raw, compression=None, max_queue=1, ping_interval=None)


@pytest.fixture
def high_water(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """The most bytes that ever waited in any outbox."""
    seen = {"bytes": 0}
    put = Outbox.put

    def spy(self: Outbox, event: ServerEvent, response_id: str | None = None) -> None:
        put(self, event, response_id)
        seen["bytes"] = max(seen["bytes"], self.num_bytes)

    monkeypatch.setattr(Outbox, "put", spy)
    return seen


async def test_past_its_deadline_it_is_cancelled_and_told_1013(high_water: dict[str, int]) -> None:
    async with serving(_a_lot_and_then_a_trickle, ROOMY, send_deadline_s=5.0) as server:
        slow = await _connect_without_reading(server)
        await slow.send(json.dumps({"type": "response.create", "input": "slow"}))
        await server.wait_until(lambda: server.engine.num_characters >= 1_600_000)
        async with anyio.create_task_group() as tasks:

            async def other() -> None:
                async with server.connect() as client:
                    for _ in range(5):
                        assert text_of(await ask(client, "hi")) == "fast"

            for _ in range(4):
                tasks.start_soon(other)
        assert server.engine.num_running == 1  # all others were served beside it
        await server.wait_until(lambda: server.engine.num_running == 0)
        (cancelled,) = (each for each in server.engine.finished if each.reason == "cancelled")
        assert cancelled.usage.num_output > 800
        closed = await until_closed(slow)
        assert closed.code == 1013
        assert "nothing was read for 5 s" in closed.reason
    assert high_water["bytes"] < 4 * 1024 * 1024


async def test_over_the_limit_it_is_cut_off_before_its_deadline(
    high_water: dict[str, int],
) -> None:
    async with serving(_a_flood, ROOMY, send_deadline_s=3600.0) as server:
        slow = await _connect_without_reading(server)
        await slow.send(json.dumps({"type": "response.create", "input": "slow"}))
        await server.wait_until(lambda: bool(server.engine.finished))
        assert server.engine.finished[0].reason == "cancelled"
        assert (await until_closed(slow)).code == 1013
        async with server.connect() as client:
            assert text_of(await ask(client, "hi")) == "fast"
    assert high_water["bytes"] < 5 * 1024 * 1024


async def test_one_that_never_reads_again_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its socket and buffers must not outlive it, though the close frame is never read."""
    lost = anyio.Event()
    connection_lost = WebSocketTransport.connection_lost

    def spy(self: WebSocketTransport, error: Exception | None) -> None:
        connection_lost(self, error)
        lost.set()

    monkeypatch.setattr(WebSocketTransport, "connection_lost", spy)
    monkeypatch.setattr(websocket_transport, "CLOSE_TIMEOUT_S", 0.2)
    async with serving(_a_flood, ROOMY, send_deadline_s=3600.0) as server:
        slow = await _connect_without_reading(server)
        await slow.send(json.dumps({"type": "response.create", "input": "slow"}))
        await lost.wait()
        slow.transport.abort()
