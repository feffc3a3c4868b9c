"""Opening a connection where something else answers: one clear line each."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from websockets.asyncio.server import serve

from paceline_client import ConnectError, ConnectionLostError, ServerBusyError, connect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import SocketStream
    from websockets.asyncio.server import ServerConnection

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def _answering(reply: bytes) -> AsyncIterator[str]:
    """A server that answers whatever it gets with these bytes and hangs up."""

    async def answer(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            if reply:
                await stream.send(reply)

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, answer)
        yield f"127.0.0.1:{port}"
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (b"", "it closed the connection at once|no Paceline server"),
        (b"220 mail.example.org ESMTP\r\n\r\n", "no Paceline server"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "HTTP status 200"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nnot here\n", "not here"),
    ],
)
async def test_no_paceline_server(reply: bytes, said: str) -> None:
    async with _answering(reply) as address:
        with pytest.raises(ConnectError, match=said) as caught:
            async with connect(address):
                pass
    assert "\n" not in str(caught.value)


async def test_a_server_that_is_full() -> None:
    reply = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\nbusy\n"
    async with _answering(reply) as address:
        with pytest.raises(ServerBusyError, match="busy"):
            async with connect(address):
                pass


async def test_a_server_without_messagepack() -> None:
    async def hold(socket: ServerConnection) -> None:
        await socket.wait_closed()

    async with serve(
        hold, "127.0.0.1", 0, select_subprotocol=lambda connection, offered: None
    ) as server:
        host, port = next(iter(server.sockets)).getsockname()[:2]
        with pytest.raises(ConnectError, match=r"does not speak paceline\.v1\.msgpack"):
            async with connect(f"{host}:{port}", codec="msgpack"):
                pass


async def test_a_server_that_sends_what_is_no_message_is_left() -> None:
    async def babble(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send('{"type": "response.created"}')
        await socket.wait_closed()

    async with serve(babble, "127.0.0.1", 0) as server:
        host, port = next(iter(server.sockets)).getsockname()[:2]
        async with connect(f"{host}:{port}", reconnect_delays_s=()) as session:
            with pytest.raises(ConnectionLostError, match="response is missing"):
                await session.ask("hello")


async def test_events_of_a_newer_server_are_passed_over() -> None:
    async def newer(socket: ServerConnection) -> None:
        await socket.recv()
        await socket.send('{"type": "response.sung", "stream_id": "lane-1"}')
        await socket.send(
            '{"type":"error","status":429,"error":{"type":"t","code":"new_code","message":"no"},'
            '"stream_id":"lane-1"}'
        )
        await socket.wait_closed()

    async with serve(newer, "127.0.0.1", 0) as server:
        host, port = next(iter(server.sockets)).getsockname()[:2]
        async with connect(f"{host}:{port}") as session:
            with pytest.raises(Exception, match="no") as caught:
                await session.ask("hello")
    assert getattr(caught.value, "code", None) == "new_code"
