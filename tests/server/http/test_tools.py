"""Tool calls through the official client: whole, streamed, several, and the turn after."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

import openai
import pytest

from paceline.core.request import GrammarKind
from tests.fakes_engine import CharacterCodec
from tests.server.serving import ask, serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from paceline.core.request import Request
    from tests.server.serving import Server

pytestmark = pytest.mark.anyio

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
CHAT_TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "add", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "description": "The time."}},
]
TOOLS: list[Any] = [
    {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False},
    {"type": "function", "name": "now", "description": "The time.", "strict": False},
]
MESSAGES: list[Any] = [{"role": "user", "content": "What is 1 + 2?"}]
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 12, "s": "é\\n}"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now"}\n</tool_call>'
ARGUMENTS = '{"a": 12, "s": "é\\n}"}'
ANSWER = f"I will.\n{CALL}\n{NOW}\nDone."


def _writes(text: str, size: int) -> Any:
    """Several characters a step, so that one step may span several markers."""
    return lambda _: [text[at : at + size] for at in range(0, len(text), size)]


@contextlib.asynccontextmanager
async def _client(
    answer: str = ANSWER, size: int = 7
) -> AsyncIterator[tuple[openai.AsyncOpenAI, Server]]:
    async with (
        serving(_writes(answer, size)) as server,
        openai.AsyncOpenAI(base_url=f"{server.http_url}/v1", api_key="x", max_retries=0) as client,
    ):
        yield client, server


def _prompt(request: Request) -> str:
    return CharacterCodec().text_of(request.prompt_ids)


class TestChat:
    async def test_whole(self) -> None:
        async with _client() as (client, server):
            answer = await client.chat.completions.create(
                model="fake-model", messages=MESSAGES, tools=CHAT_TOOLS
            )
            (choice,) = answer.choices
            assert choice.finish_reason == "tool_calls"
            assert choice.message.content == "I will.\n\nDone."
            calls = choice.message.tool_calls or []
            assert [call.type for call in calls] == ["function", "function"]
            functions = [call.function for call in calls if call.type == "function"]
            assert [(f.name, f.arguments) for f in functions] == [("add", ARGUMENTS), ("now", "{}")]
            assert len({call.id for call in calls}) == 2
            assert server.engine.submitted[0].grammar is None
            assert '"name": "add"' in _prompt(server.engine.submitted[0])

    async def test_only_calls_have_no_content(self) -> None:
        async with _client(CALL) as (client, _):
            answer = await client.chat.completions.create(
                model="fake-model", messages=MESSAGES, tools=CHAT_TOOLS
            )
            assert answer.choices[0].message.content is None

    @pytest.mark.parametrize("size", [1, 5, 64])
    async def test_streaming_helper(self, size: int) -> None:
        async with _client(size=size) as (client, _):
            async with client.chat.completions.stream(
                model="fake-model", messages=MESSAGES, tools=CHAT_TOOLS
            ) as stream:
                async for _event in stream:
                    pass
                final = await stream.get_final_completion()
            (choice,) = final.choices
            assert choice.finish_reason == "tool_calls"
            calls = choice.message.tool_calls or []
            assert [(c.function.name, c.function.arguments) for c in calls] == [
                ("add", ARGUMENTS),
                ("now", "{}"),
            ]

    async def test_id_and_name_come_once(self) -> None:
        async with _client(size=1) as (client, _):
            stream = await client.chat.completions.create(
                model="fake-model", messages=MESSAGES, tools=CHAT_TOOLS, stream=True
            )
            parts = [
                call
                async for chunk in stream
                for choice in chunk.choices
                for call in choice.delta.tool_calls or ()
            ]
            named = [part for part in parts if part.function and part.function.name]
            assert [part.index for part in named] == [0, 1]
            assert all(part.id for part in named)
            assert all(not part.id for part in parts if part not in named)

    async def test_the_turn_after(self) -> None:
        async with _client() as (client, server):
            first = await client.chat.completions.create(
                model="fake-model", messages=MESSAGES, tools=CHAT_TOOLS
            )
            message = first.choices[0].message
            call = (message.tool_calls or [])[0]
            answer: Any = message.model_dump(exclude_none=True)
            await client.chat.completions.create(
                model="fake-model",
                messages=[
                    *MESSAGES,
                    answer,
                    {"role": "tool", "tool_call_id": call.id, "content": "3"},
                ],
                tools=CHAT_TOOLS,
            )
            prompt = _prompt(server.engine.submitted[1])
            assert f'<tool_call>\n{{"name": "add", "arguments": {ARGUMENTS}}}' in prompt
            assert "<tool>3</tool>" in prompt

    async def test_no_tools_no_calls(self) -> None:
        async with _client() as (client, server):
            cases: list[dict[str, Any]] = [{}, {"tools": CHAT_TOOLS, "tool_choice": "none"}]
            for more in cases:
                answer = await client.chat.completions.create(
                    model="fake-model", messages=MESSAGES, **more
                )
                assert answer.choices[0].message.content == ANSWER
                assert "add" not in _prompt(server.engine.submitted[-1])

    async def test_promises_become_grammars(self) -> None:
        async with _client(CALL) as (client, server):
            cases: list[dict[str, Any]] = [
                {"tool_choice": "required"},
                {"tool_choice": {"type": "function", "function": {"name": "add"}}},
                {"parallel_tool_calls": False},
            ]
            for more in cases:
                await client.chat.completions.create(
                    model="fake-model", messages=MESSAGES, tools=CHAT_TOOLS, **more
                )
                grammar = server.engine.submitted[-1].grammar
                assert grammar is not None
                assert grammar.kind is GrammarKind.LARK
                assert ('"now"' in grammar.text) == ("function" not in str(more))

    async def test_another_tool_format(self) -> None:
        bare = '{"name": "add", "parameters": {"a": 1}}'
        async with _client(bare) as (client, _):
            answer = await client.chat.completions.create(
                model="fake-model",
                messages=MESSAGES,
                tools=CHAT_TOOLS,
                extra_body={"paceline": {"tool_format": "llama"}},
            )
            assert answer.choices[0].finish_reason == "tool_calls"
            answer = await client.chat.completions.create(
                model="fake-model",
                messages=MESSAGES,
                tools=CHAT_TOOLS,
                extra_body={"paceline": {"tool_format": "hermes"}},
            )
            assert answer.choices[0].message.content == bare


class TestResponses:
    async def test_events_of_calls(self) -> None:
        async with _client(size=3) as (client, _):
            stream = await client.responses.create(
                model="fake-model", input="1 + 2?", tools=TOOLS, stream=True
            )
            events = [event async for event in stream]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            added = [e.item for e in events if e.type == "response.output_item.added"]
            assert [item.type for item in added] == [
                "message",
                "function_call",
                "function_call",
                "message",
            ]
            deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
            assert "".join(e.delta for e in deltas if e.output_index == 1) == ARGUMENTS
            done = [e for e in events if e.type == "response.function_call_arguments.done"]
            assert [e.arguments for e in done] == [ARGUMENTS, "{}"]
            final = events[-1]
            assert final.type == "response.completed"
            assert [item.type for item in final.response.output] == [item.type for item in added]
            assert final.response.output_text == "I will.\n\nDone."

    async def test_outputs_continue_the_turn_with_its_ids_kept(self) -> None:
        async with _client(CALL) as (client, server):
            first = await client.responses.create(model="fake-model", input="1 + 2?", tools=TOOLS)
            (call,) = first.output
            assert call.type == "function_call"
            await client.responses.create(
                model="fake-model",
                previous_response_id=first.id,
                input=[{"type": "function_call_output", "call_id": call.call_id, "output": "3"}],
                tools=TOOLS,
            )
            before, after = server.engine.submitted
            known = (*before.prompt_ids, *CharacterCodec().encode_prompt(CALL))
            assert after.prompt_ids[: len(known)] == known
            assert _prompt(after).endswith("<tool>3</tool><assistant>")

    async def test_over_the_socket(self) -> None:
        async with serving(_writes(ANSWER, 4)) as server, server.connect() as socket:
            events = await ask(socket, "1 + 2?", tools=TOOLS)
            calls = [
                item for item in events[-1]["response"]["output"] if item["type"] == "function_call"
            ]
            assert json.loads(calls[0]["arguments"]) == json.loads(ARGUMENTS)
            assert events[-1]["response"]["tools"] == TOOLS

    async def test_a_call_that_is_cut_off_is_incomplete(self) -> None:
        async with _client(CALL) as (client, _):
            response = await client.responses.create(
                model="fake-model", input="1 + 2?", tools=TOOLS, max_output_tokens=50
            )
            assert response.status == "incomplete"
            (call,) = response.output
            assert call.type == "function_call"
            assert call.status == "incomplete"
            assert ARGUMENTS.startswith(call.arguments)
