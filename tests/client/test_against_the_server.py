"""Our client and the official SDK against the real server, its engine scripted."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

import anyio
import pytest

from paceline_client import Conversation, RequestRefusedError, ServerBusyError, connect
from paceline_protocol import messages as m
from tests.server.serving import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import Request

pytestmark = pytest.mark.anyio

FULL_SEQUENCE = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def _words(request: Request) -> Sequence[str]:
    return ["Grüße, ", "Welt ", "🚴"]


def _endless(request: Request) -> Sequence[str]:
    return ["x"] * 4000


@pytest.mark.parametrize("codec", ["json", "msgpack"])
async def test_our_client_gets_the_whole_sequence(codec: Literal["json", "msgpack"]) -> None:
    async with (
        serving(_words) as server,
        connect(server.http_url, codec=codec) as session,
    ):
        stream = session.respond("hello", paceline={"include": ["tokens"]})
        events = [event async for event in stream]
    kinds = [str(type(event).__struct_config__.tag) for event in events]
    assert list(dict.fromkeys(kinds)) == FULL_SEQUENCE
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert {event.stream_id for event in events} == {"lane-1"}
    deltas = [event for event in events if isinstance(event, m.OutputTextDelta)]
    tokens = [token for event in deltas if event.paceline for token in event.paceline.tokens]
    assert "".join(token.text for token in tokens) == stream.text == "Grüße, Welt 🚴"
    assert stream.response is not None
    assert stream.response.output_text == stream.text


async def test_turns_of_our_client_build_on_one_another() -> None:
    async with serving() as server, connect(server.http_url) as session:
        conversation = Conversation(session)
        await conversation.respond("one").finish()
        await conversation.respond("two").finish()
        first, second = server.engine.submitted
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


async def test_a_conversation_outlives_its_connection() -> None:
    async with serving() as server, connect(server.http_url) as session:
        conversation = Conversation(session)
        await conversation.respond("one").finish()
        connection = await session.connected()
        await connection.close()
        answer = await conversation.respond("two").finish()
        first, second = server.engine.submitted
        assert session.connection_number == 2
    assert answer.status == "completed"
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids


async def test_leaving_early_frees_the_engine() -> None:
    async with serving(_endless) as server, connect(server.http_url) as session:
        async for event in session.respond("go on for ever"):
            if isinstance(event, m.OutputTextDelta):
                break
        await server.wait_until(lambda: len(server.engine.finished) == 1)
        assert server.engine.finished[0].reason == "cancelled"


async def test_a_refusal_names_the_field() -> None:
    async with serving() as server, connect(server.http_url) as session:
        with pytest.raises(RequestRefusedError) as caught:
            await session.ask("x" * 5000)
        assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


async def test_a_full_server_says_so() -> None:
    async with serving(max_connections=1) as server, connect(server.http_url):
        with pytest.raises(ServerBusyError):
            async with connect(server.http_url):
                pass


async def test_a_chain_of_lanes_in_parallel() -> None:
    async with serving() as server, connect(server.http_url) as session:
        answers: dict[int, str] = {}

        async def complete(number: int) -> None:
            stream = session.complete(f"prompt {number}")
            answers[number] = (await stream.finish()).output_text

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(complete, number)
    assert answers == {number: f"prompt {number}" for number in range(8)}


async def test_the_official_sdk_connects_and_every_event_is_one_of_its_own() -> None:
    """Raw frames, validated by the SDK's models as strictly as they can be."""
    openai = pytest.importorskip("openai")
    pydantic = pytest.importorskip("pydantic")
    models = pydantic.TypeAdapter(
        pytest.importorskip("openai.types.responses.responses_server_event").ResponsesServerEvent
    )
    async with serving(_words) as server:
        client = openai.AsyncOpenAI(api_key="unused", base_url=f"{server.http_url}/v1")
        async with client, client.responses.connect() as connection:
            await connection.response.create(
                model="fake-model",
                input=[{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}],
                instructions="Be brief.",
                max_output_tokens=50,
                temperature=0.5,
                metadata={"a": "b"},
                store=False,
                tools=[],
                tool_choice="auto",
                text={"format": {"type": "text"}},
                truncation="auto",
                reasoning={"effort": "low"},
            )
            raw = await _until_end(connection)
            events = [models.validate_python(event) for event in raw]
            assert list(dict.fromkeys(event.type for event in events)) == FULL_SEQUENCE
            assert events[-1].response.output_text == "Grüße, Welt 🚴"
            assert events[-1].response.paceline["cached_tokens"] == 0

            await connection.response.create(
                model="fake-model", input="and now?", previous_response_id=events[-1].response.id
            )
            async for event in connection:
                if event.type == "response.completed":
                    assert event.response.previous_response_id == events[-1].response.id
                    break


async def test_the_official_sdk_reads_our_errors_and_cancellations() -> None:
    openai = pytest.importorskip("openai")
    async with serving(_endless) as server:
        client = openai.AsyncOpenAI(api_key="unused", base_url=f"{server.http_url}/v1")
        async with client, client.responses.connect() as connection:
            await connection.response.create(model="fake-model", input="x", temperature=-1)
            event = await connection.recv()
            assert (event.type, event.status) == ("error", 400)
            assert (event.error.code, event.error.param) == ("invalid_value", "temperature")

            await connection.response.create(model="fake-model", input="go on for ever")
            created = await connection.recv()
            await connection.send({"type": "response.cancel", "response_id": created.response.id})
            raw = await _until_end(connection)
            assert raw[-1]["type"] == "response.incomplete"
            assert raw[-1]["response"]["status"] == "cancelled"


async def test_agents_of_the_official_framework_run_on_it() -> None:
    agents = pytest.importorskip("agents")
    openai = pytest.importorskip("openai")
    models = pytest.importorskip("agents.models.openai_responses")
    agents.set_tracing_disabled(True)
    async with serving(_words) as server:
        client = openai.AsyncOpenAI(api_key="unused", base_url=f"{server.http_url}/v1")
        model = models.OpenAIResponsesWSModel(model="fake-model", openai_client=client)
        agent = agents.Agent(name="greeter", instructions="Be brief.", model=model)
        async with client:
            first = agents.Runner.run_streamed(agent, "hello")
            kinds = [
                event.data.type
                async for event in first.stream_events()
                if event.type == "raw_response_event"
            ]
            assert list(dict.fromkeys(kinds)) == FULL_SEQUENCE
            again = [*first.to_input_list(), {"role": "user", "content": "and again"}]
            second = await agents.Runner.run(agent, again)
            await model.close()
    assert first.final_output == second.final_output == "Grüße, Welt 🚴"


async def _until_end(connection: Any) -> list[dict[str, Any]]:
    ends = {"response.completed", "response.incomplete", "response.failed", "error"}
    raw = [json.loads(await connection.recv_bytes())]
    while raw[-1]["type"] not in ends:
        raw.append(json.loads(await connection.recv_bytes()))
    return raw
