"""The official OpenAI client, unchanged, over a real socket."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.serving import serving

openai = pytest.importorskip("openai")

pytestmark = [pytest.mark.anyio, pytest.mark.e2e]

TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}


async def _until_done(connection: Any) -> list[Any]:
    events = []
    async for event in connection:
        events.append(event)
        if event.type in TERMINAL:
            return events
    raise AssertionError("the connection ended in mid-response")


def _client(http_url: str, api_key: str = "unused") -> Any:
    return openai.AsyncOpenAI(base_url=f"{http_url}/v1", api_key=api_key)


async def test_it_streams_a_response_and_a_next_turn() -> None:
    async with (
        serving() as server,
        _client(server.http_url) as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(
            model="fake-model", input="hello", instructions="be brief", max_output_tokens=100
        )
        events = await _until_done(connection)
        assert [event.type for event in events] == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            *["response.output_text.delta"] * (len(events) - 8),
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.completed",
        ]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        response = events[-1].response
        text = "".join(event.delta for event in events if hasattr(event, "delta"))
        assert response.output_text == text == "r><assistant>"[-12:]
        assert response.status == "completed"
        assert response.usage.input_tokens == len(server.engine.submitted[0].prompt_ids)
        assert response.usage.total_tokens == response.usage.input_tokens + len(text) + 1
        assert response.paceline["num_accepted"] == 2

        await connection.response.create(
            model="fake-model",
            input=[{"role": "user", "content": [{"type": "input_text", "text": "more"}]}],
            previous_response_id=response.id,
        )
        events = await _until_done(connection)
        assert events[-1].response.previous_response_id == response.id


async def test_it_sees_errors_and_goes_on() -> None:
    async with (
        serving() as server,
        _client(server.http_url) as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(input="hi", previous_response_id="resp_gone")
        (event,) = await _until_done(connection)
        assert event.type == "error"
        assert event.status == 404
        assert event.error.code == "previous_response_not_found"
        assert event.error.param == "previous_response_id"
        await connection.response.create(input="hi")
        assert (await _until_done(connection))[-1].type == "response.completed"


async def test_its_send_carries_our_own_events() -> None:
    async with (
        serving() as server,
        _client(server.http_url) as client,
        client.responses.connect() as connection,
    ):
        server.engine.pause()
        await connection.send(
            {
                "type": "response.create",
                "input": "hi",
                "stream_id": "a",
                "paceline": {"top_k": 3, "speculation": "off"},
            }
        )
        await server.wait_until(lambda: len(server.engine.submitted) == 1)
        assert server.engine.submitted[0].sampling.top_k == 3
        await connection.send({"type": "response.cancel", "stream_id": "a"})
        await server.wait_until(lambda: bool(server.engine.pending_cancels))
        server.engine.resume()
        events = await _until_done(connection)
        assert events[-1].type == "response.incomplete"
        assert events[-1].response.status == "cancelled"
        assert {event.stream_id for event in events} == {"a"}


async def test_its_key_opens_the_connection() -> None:
    async with serving(api_key="secret") as server:
        async with (
            _client(server.http_url, "secret") as client,
            client.responses.connect() as connection,
        ):
            await connection.response.create(input="hi")
            assert (await _until_done(connection))[-1].type == "response.completed"
            assert [model.id async for model in client.models.list()] == ["fake-model"]
        async with _client(server.http_url, "wrong") as client:
            with pytest.raises(Exception, match="401"):
                await client.responses.connect().__aenter__()
