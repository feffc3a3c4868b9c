"""The server over real sockets: what clients see, whatever they do."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import msgspec
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin, Subprotocol

from paceline.server.outbox import Outbox
from paceline.server.session import Session
from paceline_protocol.subprotocols import key_subprotocol
from tests.server.serving import ask, receive, receive_response, serving, text_of, until_closed

if TYPE_CHECKING:
    import io
    from collections.abc import Sequence

    from paceline.core.request import Request

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_blocking")]


STEP_S = 0.005


def _endless(request: Request) -> Sequence[str]:
    return ["x"] * 4000


async def test_a_response_and_a_next_turn() -> None:
    async with serving() as server, server.connect() as client:
        assert client.subprotocol is None
        events = await ask(client, "hello there")
        assert text_of(events) == "r><assistant>"[-12:]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["model"] == "fake-model"
        await ask(client, "more", previous_response_id=events[-1]["response"]["id"])
        first, second = server.engine.submitted
        assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


async def test_messagepack_by_subprotocol() -> None:
    async with (
        serving() as server,
        server.connect(subprotocols=[Subprotocol("paceline.v1.msgpack")]) as client,
    ):
        assert client.subprotocol == "paceline.v1.msgpack"
        await client.send(msgspec.msgpack.encode({"type": "completion.create", "prompt": "abc"}))
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "response.completed":
            payload = await client.recv()
            assert isinstance(payload, bytes)
            events.append(msgspec.msgpack.decode(payload))
        assert text_of(events) == "abc"


async def test_many_clients_at_once_get_each_their_own() -> None:
    texts: dict[int, str] = {}

    async with serving(max_connections=64) as server, anyio.create_task_group() as tasks:

        async def one(number: int) -> None:
            async with server.connect() as client:
                await client.send(
                    json.dumps({"type": "completion.create", "prompt": f"client {number:02}"})
                )
                texts[number] = text_of(await receive_response(client))

        for number in range(48):
            tasks.start_soon(one, number)
    assert texts == {number: f"client {number:02}" for number in range(48)}


async def test_lanes_of_one_socket_run_side_by_side() -> None:
    async with serving() as server, server.connect() as client:
        server.engine.pause()
        for lane in "ab":
            await client.send(
                json.dumps(
                    {"type": "completion.create", "prompt": f"lane {lane}", "stream_id": lane}
                )
            )
        await server.wait_until(lambda: len(server.engine.submitted) == 2)
        server.engine.resume()
        events = [*await receive_response(client), *await receive_response(client)]
        for lane in "ab":
            own = [event for event in events if event["stream_id"] == lane]
            assert text_of(own) == f"lane {lane}"
            assert [event["sequence_number"] for event in own] == list(range(len(own)))


async def test_wrong_messages_leave_the_connection_alive() -> None:
    async with serving() as server, server.connect() as client:
        for frame, code in [
            ("{", "invalid_json"),
            ("[]", "invalid_type"),
            ('{"type": "nope"}', "unknown_event_type"),
            ('{"type": "response.create"}', "missing_required_parameter"),
            ('{"type": "response.create", "input": "break the template"}', "server_error"),
        ]:
            await client.send(frame)
            event = await receive(client)
            assert event["type"] == "error"
            assert event["error"]["code"] == code
        assert (await ask(client, "hi"))[-1]["type"] == "response.completed"


async def test_a_failing_response_is_no_failing_connection() -> None:
    async with (
        serving(lambda _: ["ab", "!NonFiniteLogitsError"]) as server,
        server.connect() as client,
    ):
        events = await ask(client, "hi")
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["type"] == "non_finite_logits"
        await ask(client, "hi")


async def test_a_fault_of_ours_ends_one_connection_with_1011(
    monkeypatch: pytest.MonkeyPatch, log_stream: io.StringIO
) -> None:
    def broken(self: Session, message: object) -> object:
        raise ZeroDivisionError

    async with serving(_endless, step_s=STEP_S) as server, server.connect() as other:
        await other.send(json.dumps({"type": "response.create", "input": "hi"}))
        await receive(other)
        async with server.connect() as client:
            with monkeypatch.context() as patch:
                patch.setattr(Session, "on_message", broken)
                await client.send(json.dumps({"type": "response.create", "input": "hi"}))
                assert (await until_closed(client)).code == 1011
        assert "ZeroDivisionError" in log_stream.getvalue()
        async with server.connect() as client:
            with monkeypatch.context() as patch:
                patch.setattr(Session, "on_event", broken)
                await client.send(json.dumps({"type": "response.create", "input": "hi"}))
                assert (await until_closed(client)).code == 1011
        async with server.connect() as client:
            with monkeypatch.context() as patch:
                patch.setattr(Outbox, "take", broken)
                await client.send("{")
                assert (await until_closed(client)).code == 1011


async def test_a_full_engine_says_so() -> None:
    async with serving() as server, server.connect() as client:
        server.engine.is_full = True
        events = await ask(client, "hi")
        assert events[-1]["response"]["error"]["code"] == "rate_limit_exceeded"


async def test_cancel_ends_the_response_and_not_the_connection() -> None:
    async with serving(_endless, step_s=STEP_S) as server, server.connect() as client:
        await client.send(json.dumps({"type": "response.create", "input": "hi"}))
        created = await receive(client)
        while (await receive(client))["type"] != "response.output_text.delta":
            pass
        await client.send(
            json.dumps({"type": "response.cancel", "response_id": created["response"]["id"]})
        )
        events = await receive_response(client)
        assert events[-1]["type"] == "response.incomplete"
        assert events[-1]["response"]["status"] == "cancelled"
        assert server.engine.num_running == 0
        assert (await ask(client, "hi", max_output_tokens=2))[-1]["type"] == "response.incomplete"


async def test_a_killed_client_is_cancelled_at_the_next_step() -> None:
    async with serving(_endless, step_s=STEP_S) as server:
        async with server.connect(close_timeout=0) as client:
            await client.send(json.dumps({"type": "response.create", "input": "hi"}))
            await client.send(
                json.dumps({"type": "response.create", "input": "hi", "stream_id": "b"})
            )
            while (await receive(client))["type"] != "response.output_text.delta":
                pass
            await server.wait_until(lambda: server.engine.num_running == 2)
            server.engine.pause()
            # A reset instead of a closing handshake, as when the process is killed.
            raw = client.transport.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.transport.abort()
            ids = {request.request_id for request in server.engine.submitted}
            await server.wait_until(lambda: server.engine.pending_cancels == ids)
            server.engine.resume()
            await server.wait_until(lambda: server.engine.num_running == 0)
        assert server.engine.cancel_lags == [1, 1]
        async with server.connect() as other:
            assert (await ask(other, "hi", max_output_tokens=1))[-1]["type"].startswith("response")


async def test_a_binary_frame_without_the_subprotocol_is_closed_with_1003() -> None:
    async with serving(_endless, step_s=STEP_S) as server, server.connect() as client:
        await client.send(json.dumps({"type": "response.create", "input": "hi"}))
        await receive(client)
        await client.send(b"\x80")
        closed = await until_closed(client)
        assert closed.code == 1003
        assert "binary" in closed.reason
        await server.wait_until(lambda: server.engine.num_running == 0)


async def test_a_text_frame_under_messagepack_is_closed_with_1003() -> None:
    async with (
        serving() as server,
        server.connect(subprotocols=[Subprotocol("paceline.v1.msgpack")]) as client,
    ):
        await client.send("{}")
        closed = await until_closed(client)
        assert closed.code == 1003
        assert "text" in closed.reason


@pytest.mark.parametrize("num_bytes", [70_000, 4_000_000])
async def test_a_frame_over_the_limit_is_closed_with_1009(num_bytes: int) -> None:
    """Also when most of the frame is still on its way: the reason must not be lost to a reset."""
    async with serving(max_message_bytes=65_536) as server, server.connect() as client:
        with contextlib.suppress(ConnectionClosed):
            await client.send("x" * num_bytes)
        closed = await until_closed(client)
        assert closed.code == 1009
        assert "65536" in closed.reason
        async with server.connect() as other:
            assert (await ask(other, "x" * 3_000))[-1]["type"] == "response.completed"


async def test_origins() -> None:
    async with serving(allowed_origins=("https://chat.example.org",)) as server:
        for origin in ("https://chat.example.org", server.http_url, None):
            async with server.connect(origin=Origin(origin) if origin else None) as client:
                await ask(client, "hi")
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            with pytest.raises(InvalidStatus) as refused:
                await server.connect(origin=Origin(origin))
            assert refused.value.response.status_code == 403
            body = json.loads(refused.value.response.body or b"")
            assert body["error"]["code"] == "origin_not_allowed"


async def test_an_unknown_subprotocol_is_refused() -> None:
    async with serving() as server:
        with pytest.raises(InvalidStatus) as refused:
            await server.connect(subprotocols=[Subprotocol("paceline.v2.json")])
        assert refused.value.response.status_code == 400
        error = json.loads(refused.value.response.body or b"")["error"]
        assert error["code"] == "unsupported_value"
        assert "`paceline.v1.json`" in error["message"]


async def test_a_refusal_is_no_fault_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(api_key="secret") as server:
        with pytest.raises(InvalidStatus):
            await server.connect()
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_keys() -> None:
    async with serving(api_key="s3cret/é") as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(InvalidStatus) as refused:
                await server.connect(additional_headers=headers)
            assert refused.value.response.status_code == 401
        with pytest.raises(InvalidStatus) as refused:
            await server.connect(subprotocols=[Subprotocol(key_subprotocol("wrong"))])
        assert refused.value.response.status_code == 401
        key = Subprotocol(key_subprotocol("s3cret/é"))
        async with server.connect(subprotocols=[Subprotocol("paceline.v1.json"), key]) as client:
            assert client.subprotocol == "paceline.v1.json"
            await ask(client, "hi")
        async with server.connect(subprotocols=[key]) as client:
            assert client.subprotocol is None  # the key is not echoed
            await ask(client, "hi")
        async with httpx.AsyncClient(base_url=server.http_url) as http:
            assert (await http.get("/v1/models")).status_code == 401
            assert (await http.get("/healthz")).status_code == 200


async def test_a_key_in_the_query_does_not_count() -> None:
    async with serving(api_key="secret") as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url + "?api_key=secret&key=secret&authorization=secret")
        assert refused.value.response.status_code == 401


async def test_the_number_of_connections_is_bounded() -> None:
    async with (
        serving(max_connections=2) as server,
        server.connect(),
        server.connect() as second,
    ):
        with pytest.raises(InvalidStatus) as refused:
            await server.connect()
        assert refused.value.response.status_code == 429
        body = json.loads(refused.value.response.body or b"")
        assert body["error"]["code"] == "connection_limit_reached"
        await second.close()
        async with server.connect() as third:
            await ask(third, "hi")


async def test_http_endpoints() -> None:
    async with serving() as server, httpx.AsyncClient(base_url=server.http_url) as http:
        response = await http.get("/v1/responses")
        assert response.status_code == 426
        assert response.headers["upgrade"] == "websocket"
        assert response.json()["error"]["code"] == "upgrade_required"
        (model,) = (await http.get("/v1/models")).json()["data"]
        assert model["id"] == "fake-model"
        assert model["max_model_len"] == 4096
        assert (await http.get("/healthz")).json() == {"status": "ok"}
        assert (await http.get("/readyz")).status_code == 200
        assert (await http.get("/nope")).status_code == 404


async def test_draining_lets_responses_end_and_refuses_the_new() -> None:
    async with serving() as server, server.connect() as idle, server.connect() as busy:
        await ask(idle, "hi")
        server.engine.pause()
        await busy.send(json.dumps({"type": "completion.create", "prompt": "abc"}))
        await server.wait_until(lambda: len(server.engine.submitted) == 2)
        server.shutdown.begin()
        closed = await until_closed(idle)
        assert closed.code == 1012
        async with httpx.AsyncClient(base_url=server.http_url) as http:
            assert (await http.get("/readyz")).status_code == 503
            assert (await http.get("/healthz")).status_code == 200
        with pytest.raises(InvalidStatus) as refused:
            await server.connect()
        assert refused.value.response.status_code == 503
        await busy.send(json.dumps({"type": "completion.create", "prompt": "new"}))
        while (event := await receive(busy))["type"] != "error":
            pass
        assert event["error"]["code"] == "server_shutting_down"
        server.engine.resume()
        events = await receive_response(busy)
        assert text_of(events) == "abc"
        closed = await until_closed(busy)
        assert closed.code == 1012


async def test_what_outlives_the_grace_time_fails_and_is_told_why() -> None:
    async with (
        serving(_endless, step_s=STEP_S, grace_period_s=0.0) as server,
        server.connect() as client,
    ):
        await client.send(json.dumps({"type": "response.create", "input": "hi"}))
        while (await receive(client))["type"] != "response.output_text.delta":
            pass
        server.shutdown.begin()
        events = await receive_response(client)
        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["type"] == "server_shutting_down"
        assert events[-1]["response"]["output"][0]["status"] == "incomplete"
        closed = await until_closed(client)
        assert closed.code == 1012


@pytest.mark.parametrize("log_prompts", [False, True])
async def test_logs_tell_who_and_what_and_prompts_only_when_asked(
    log_prompts: bool, log_stream: io.StringIO
) -> None:
    async with (
        serving(log_prompts=log_prompts) as server,
        connect(server.url + "?token=topsecret") as client,
    ):
        events = await ask(client, "a private word")
    text = log_stream.getvalue()
    lines = [json.loads(line) for line in text.splitlines()]
    by_event = {line["event"]: line for line in lines}
    finished = by_event["response finished"]
    assert finished["session_id"] == by_event["session opened"]["session_id"]
    assert finished["response_id"] == events[-1]["response"]["id"]
    assert finished["step"] >= 1
    assert finished["finish_reason"] == "stop"
    assert finished["num_accepted"] == 2
    assert by_event["session closed"]["code"] == 1000
    if log_prompts:
        assert by_event["prompt"]["text"] == "user: a private word"
        assert by_event["answer"]["text"] == text_of(events)
    else:
        assert "a private word" not in text
        assert text_of(events) not in text
    assert "topsecret" not in text
