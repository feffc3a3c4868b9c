"""Clients that leave, servers that leave, and readers that do not read."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from paceline.core.events import FinishReason
from paceline.server.http import answer
from tests.server.serving import serving

if TYPE_CHECKING:
    import io
    from collections.abc import Callable

    from tests.server.serving import Server

pytestmark = pytest.mark.anyio

STEP_S = 0.005
CHAT = {"messages": [{"role": "user", "content": "hello"}]}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/chat/completions", CHAT),
    ("/v1/completions", {"prompt": "hello", "max_tokens": 4000}),
    ("/v1/responses", {"input": "hello"}),
    ("/v1/fim/completions", {"prompt": "hello", "suffix": "x", "max_tokens": 4000}),
    ("/infill", {"input_prefix": "hello", "input_suffix": "x", "n_predict": 4000}),
]


def _endless(_: object) -> list[str]:
    return ["x"] * 100_000


async def _until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(60):
        while True:
            if condition():
                return
            await anyio.sleep(0.01)


def _request(server: Server, path: str, body: dict[str, Any]) -> socket.socket:
    """A request on a socket of its own, so that it can be dropped at any moment."""
    payload = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(payload)}\r\n\r\n"
    )
    client = socket.create_connection(server.address)
    client.sendall(head.encode() + payload)
    return client


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("path", "body"), BODIES, ids=[path for path, _ in BODIES])
async def test_a_client_that_leaves_cancels_within_one_step(
    path: str, body: dict[str, Any], is_stream: bool
) -> None:
    async with serving(_endless, step_s=STEP_S) as server:
        client = await anyio.to_thread.run_sync(
            _request, server, path, body | {"stream": is_stream}
        )
        await server.wait_until(lambda: server.engine.num_running == 1)
        await server.wait_until(lambda: server.engine.num_characters > 10)
        client.close()
        await server.wait_until(lambda: len(server.engine.finished) == 1)
        assert server.engine.finished[0].reason is FinishReason.CANCELLED
        assert server.engine.cancel_lags == [1]


async def test_all_choices_of_a_client_that_leaves_are_cancelled() -> None:
    async with serving(_endless, step_s=STEP_S) as server:
        client = await anyio.to_thread.run_sync(
            _request, server, "/v1/chat/completions", CHAT | {"n": 5, "stream": True}
        )
        await server.wait_until(lambda: server.engine.num_running == 5)
        client.close()
        await server.wait_until(lambda: len(server.engine.finished) == 5)
        assert {each.reason for each in server.engine.finished} == {FinishReason.CANCELLED}


async def test_a_client_that_leaves_in_the_middle_of_its_body_starts_nothing(
    server: Server, http: httpx.AsyncClient
) -> None:
    client = socket.create_connection(server.address)
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
    client.close()
    assert (await http.post("/v1/completions", json={"prompt": "abc"})).status_code == 200
    assert len(server.engine.submitted) == 1


async def test_silence_is_filled_with_comments(
    server: Server, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer, "KEEP_ALIVE_S", 0.01)
    server.engine.pause()
    async with http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.headers["cache-control"] == "no-cache"
        assert stream.headers["x-accel-buffering"] == "no"
        lines = stream.aiter_lines()
        async for line in lines:
            if line == ": keep-alive":
                break
        server.engine.resume()
        rest = [line async for line in lines if line]
    assert rest[-1] == "data: [DONE]"


async def test_a_reader_that_does_not_read_is_dropped(log_stream: io.StringIO) -> None:
    async with serving(lambda _: ["x" * 10_000] * 300, send_deadline_s=0.2) as server:
        client = await anyio.to_thread.run_sync(
            _request, server, "/v1/chat/completions", CHAT | {"stream": True}
        )
        await server.wait_until(lambda: len(server.engine.finished) == 1)
        await _until(lambda: "slow reader" in log_stream.getvalue())
        async with httpx.AsyncClient(base_url=server.http_url) as http:
            assert (await http.get("/healthz")).status_code == 200
        client.close()


async def test_running_answers_may_end_while_the_server_leaves() -> None:
    async with serving(lambda _: ["a", "b", "c"]) as server:
        server.engine.pause()
        async with (
            httpx.AsyncClient(base_url=server.http_url) as http,
            anyio.create_task_group() as tasks,
        ):
            answers: list[httpx.Response] = []

            async def ask() -> None:
                answers.append(await http.post("/v1/chat/completions", json=CHAT))

            tasks.start_soon(ask)
            await server.wait_until(lambda: len(server.engine.submitted) == 1)
            server.shutdown.begin()
            while (await http.get("/readyz")).status_code != 503:
                pass
            refused = await http.post("/v1/chat/completions", json=CHAT)
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "server_shutting_down"
            server.engine.resume()
        assert answers[0].json()["choices"][0]["message"]["content"] == "abc"


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_what_the_server_cancels_ends_with_an_error(is_stream: bool) -> None:
    async with (
        serving(_endless, step_s=STEP_S) as server,
        httpx.AsyncClient(base_url=server.http_url) as http,
        anyio.create_task_group() as tasks,
    ):
        answers: list[httpx.Response] = []

        async def ask() -> None:
            answers.append(
                await http.post("/v1/chat/completions", json=CHAT | {"stream": is_stream})
            )

        tasks.start_soon(ask)
        await server.wait_until(lambda: server.engine.num_running == 1)
        server.shutdown.begin()
        server.shutdown.begin()
        await _until(lambda: bool(answers))
        if is_stream:
            last = [line for line in answers[0].text.splitlines() if line][-1]
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            assert answers[0].status_code == 503
            error = answers[0].json()["error"]
        assert error["code"] == "server_shutting_down"


async def test_a_full_queue_is_told_before_a_stream_begins(
    server: Server, http: httpx.AsyncClient
) -> None:
    server.engine.is_full = True
    for path, body in BODIES:
        refused = await http.post(path, json=body | {"stream": True})
        assert refused.status_code == 429, path
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "queue_full"


async def test_a_client_with_a_name_keeps_what_speculation_learned(
    server: Server, http: httpx.AsyncClient
) -> None:
    keys = []
    for body, headers in (
        (CHAT | {"user": "ann"}, {}),
        (CHAT | {"user": "ann"}, {}),
        (CHAT | {"user": "ann"}, {"Authorization": "Bearer other"}),
        (CHAT, {"X-Session-Id": "editor"}),
        (CHAT, {"X-Session-Id": "editor"}),
        (CHAT, {}),
        (CHAT, {}),
    ):
        await http.post("/v1/chat/completions", json=body, headers=headers)
        keys.append(server.engine.submitted[-1].speculation_key)
    assert keys[0] == keys[1] != keys[2]
    assert keys[3] == keys[4]
    assert len(set(keys)) == 5


async def test_keys_and_origins() -> None:
    async with (
        serving(api_key="secret") as server,
        httpx.AsyncClient(base_url=server.http_url) as http,
    ):
        for headers, status in (
            ({}, 401),
            ({"Authorization": "Bearer wrong"}, 401),
            ({"Authorization": "Bearer secret"}, 200),
            ({"x-api-key": "secret"}, 200),
            ({"api-key": "secret"}, 200),
            ({"Authorization": "Bearer secret", "Origin": "https://evil.example"}, 403),
        ):
            answered = await http.post("/v1/chat/completions", json=CHAT, headers=headers)
            assert answered.status_code == status, headers
            assert status == 200 or answered.json()["error"]["message"]
        assert (await http.get("/v1/models")).status_code == 401
        assert (await http.get("/v1/models/fake-model")).status_code == 401


async def test_pages_of_allowed_origins_may_ask() -> None:
    async with (
        serving(allowed_origins=("https://app.example",)) as server,
        httpx.AsyncClient(base_url=server.http_url) as http,
    ):
        headers = {
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        preflight = await http.options("/v1/chat/completions", headers=headers)
        assert preflight.status_code == 200
        answered = await http.post(
            "/v1/chat/completions", json=CHAT, headers={"Origin": "https://app.example"}
        )
        assert answered.status_code == 200
        assert answered.headers["access-control-allow-origin"] == "https://app.example"
