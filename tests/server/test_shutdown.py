"""A server process and its signals."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.abc
import httpx
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from paceline.core.config import ServeConfig
from paceline.core.errors import ConfigError
from paceline.server.listener import address_of, bind
from paceline.server.serving import serve
from tests.fakes_engine import CharacterCodec, ScriptedEngine
from tests.server.serving import receive, receive_response, serving, text_of, until_closed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]


@contextlib.asynccontextmanager
async def _process(num_pieces: int) -> AsyncIterator[tuple[anyio.abc.Process, str]]:
    """The process and its address; killed at the end if it still runs."""
    command = [sys.executable, "-m", "tests.server.scripted_server", str(num_pieces)]
    path = ":".join(str(ROOT / each) for each in ("backend", "protocol", "."))
    async with await anyio.open_process(
        command,
        cwd=ROOT,
        env={"PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            line = await process.stdout.receive()
            yield process, line.decode().strip()
        finally:
            if process.returncode is None:
                process.kill()


def _connect(address: str) -> connect:
    return connect(address.replace("http", "ws") + "/v1/responses", compression=None)


async def _begin(client: ClientConnection) -> None:
    await client.send(json.dumps({"type": "response.create", "input": "hi"}))
    while (await receive(client))["type"] != "response.output_text.delta":
        pass


async def _until_draining(http: httpx.AsyncClient) -> None:
    """Signals arrive when they do, so another process can only be asked."""
    while (await http.get("/readyz")).status_code == 200:
        pass


async def _logs(process: anyio.abc.Process) -> list[str]:
    assert process.stderr is not None
    text = b"".join([chunk async for chunk in process.stderr]).decode()
    return [json.loads(line)["event"] for line in text.splitlines()]


async def test_a_sigterm_lets_running_responses_end() -> None:
    async with _process(num_pieces=150) as (process, address), _connect(address) as client:
        await _begin(client)
        process.send_signal(signal.SIGTERM)
        async with httpx.AsyncClient(base_url=address) as http:
            await _until_draining(http)
            assert (await http.get("/readyz")).json() == {"status": "draining"}
        with pytest.raises(InvalidStatus) as refused:
            await _connect(address)
        assert refused.value.response.status_code == 503
        events = await receive_response(client)
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "x" * 150
        assert len(text_of(events)) < 150  # the signal came in the middle
        assert (await until_closed(client)).code == 1012
        assert await process.wait() == 0
        logs = await _logs(process)
        assert logs[:2] == ["serving", "session opened"]
        assert logs[-1] == "stopped"
        assert await _told(process) == [
            "Shutting down: 1 answer is being finished, for 60 s at most; a second signal (Ctrl-C, "
            "SIGTERM) ends this at once",
            "Stopped",
        ]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_the_grace_time(second: signal.Signals) -> None:
    async with _process(num_pieces=1_000_000) as (process, address), _connect(address) as client:
        await _begin(client)
        process.send_signal(signal.SIGTERM)
        async with httpx.AsyncClient(base_url=address) as http:
            await _until_draining(http)
        process.send_signal(second)
        events = await receive_response(client)
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["type"] == "server_shutting_down"
        assert (await until_closed(client)).code == 1012
        assert await process.wait() == 0
        told = await _told(process)
        assert told[1:] == ["As asked: 1 answer is being ended", "Stopped"]


async def test_what_is_told_when_the_grace_time_is_over() -> None:
    told: list[str] = []
    endless = ["x"] * 1_000_000
    async with (
        serving(lambda _: endless, step_s=0.01, tell=told.append, grace_period_s=0.01) as server,
        server.connect() as first,
        server.connect() as second,
    ):
        await _begin(first)
        await _begin(second)
        server.shutdown.begin()
        assert (await receive_response(first))[-1]["type"] == "response.failed"
        assert (await receive_response(second))[-1]["type"] == "response.failed"
    assert told[0].startswith("Shutting down: 2 answers are being finished, for 0.01 s at most")
    assert told[1:] == ["0.01 s are over: 2 answers are being ended", "Stopped"]


async def test_without_connections_it_ends_at_once() -> None:
    async with _process(num_pieces=1) as (process, address):
        async with httpx.AsyncClient(base_url=address) as http:
            assert (await http.get("/readyz")).status_code == 200
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 0
        assert await _told(process) == ["Shutting down", "Stopped"]


async def _told(process: anyio.abc.Process) -> list[str]:
    """What the operator read after the address."""
    assert process.stdout is not None
    return b"".join([chunk async for chunk in process.stdout]).decode().splitlines()


def test_a_port_in_use_is_one_clear_line() -> None:
    listener = bind("127.0.0.1", 0)
    listener.listen()
    try:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(ConfigError, match=rf"^port {port} on 127.0.0.1 is in use$") as caught:
            bind("127.0.0.1", port)
        assert caught.value.field == "port"
    finally:
        listener.close()


def test_a_host_that_is_no_address() -> None:
    with pytest.raises(ConfigError, match="no address") as caught:
        bind("no such host", 0)
    assert caught.value.field == "host"


@pytest.mark.anyio
async def test_a_port_taken_since_is_one_clear_line_too() -> None:
    first, second = bind("127.0.0.1", 0), None
    try:
        second = bind("127.0.0.1", first.getsockname()[1])
        first.listen()
        with pytest.raises(ConfigError, match="is in use"):
            await serve(second, _no_engine, CharacterCodec(), ServeConfig())
    finally:
        first.close()
        if second is not None:
            second.close()


def _no_engine(deliver: object) -> ScriptedEngine:
    raise AssertionError("the engine is not built when there is no port")
