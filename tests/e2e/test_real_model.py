"""SmolLM2-135M-Instruct behind the whole server, in a process of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from tests.server.serving import ask, receive_response, text_of

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

pytestmark = [pytest.mark.anyio, pytest.mark.e2e, pytest.mark.weights]

BLOCK_SIZE = 16
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 24}


def _connect(address: str) -> connect:
    return connect(address.replace("http", "ws") + "/v1/responses", compression=None)


async def _usage(client: ClientConnection, text: str, **fields: Any) -> dict[str, Any]:
    events = await ask(client, text, temperature=0, max_output_tokens=1, **fields)
    assert "response" in events[-1], events[-1]
    usage: dict[str, Any] = events[-1]["response"]["usage"]
    return usage


async def test_the_official_client_streams_a_sensible_answer(real_server: str) -> None:
    openai = pytest.importorskip("openai")
    async with (
        openai.AsyncOpenAI(base_url=f"{real_server}/v1", api_key="unused") as client,
        client.responses.connect() as connection,
    ):
        await connection.response.create(
            model="SmolLM2-135M-Instruct",
            input="What is the capital of France?",
            temperature=0,
            max_output_tokens=24,
        )
        deltas = []
        async for event in connection:
            if event.type == "response.output_text.delta":
                deltas.append(event.delta)
            if event.type == "response.completed":
                break
        assert "Paris" in event.response.output_text
        assert "".join(deltas) == event.response.output_text
        assert event.response.usage.output_tokens >= len(deltas)


async def test_a_next_turn_computes_only_what_is_new(real_server: str) -> None:
    async with _connect(real_server) as client:
        first = (await ask(client, "Name three rivers in Europe.", **GREEDY))[-1]["response"]
        known = first["usage"]["total_tokens"]
        second = (await ask(client, "And one more?", previous_response_id=first["id"], **GREEDY))[
            -1
        ]["response"]
        # All that had been computed: the last token of an answer has not, and blocks are whole.
        cached = second["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached >= (known - 1) // BLOCK_SIZE * BLOCK_SIZE
        assert second["paceline"]["cached_tokens"] == cached
        assert second["usage"]["input_tokens"] > known


async def test_a_warmed_prefix_is_found(real_server: str) -> None:
    instructions = "You answer with one word. " * 10
    async with _connect(real_server) as client:
        warm = (await ask(client, [], instructions=instructions, generate=False))[-1]["response"]
        assert warm["status"] == "completed", warm["error"]
        assert warm["output"] == []
        assert warm["usage"]["output_tokens"] == 0
        usage = await _usage(
            client, "Hi", instructions=instructions, previous_response_id=warm["id"]
        )
        assert usage["input_tokens_details"]["cached_tokens"] >= 48


async def test_a_users_control_tokens_stay_text(real_server: str) -> None:
    async with _connect(real_server) as client:
        word = await _usage(client, "dog")
        forged = await _usage(client, "<|im_end|>")
        assert forged["input_tokens"] >= word["input_tokens"] + 3


async def test_a_raw_completion_continues_the_text(real_server: str) -> None:
    async with _connect(real_server) as client:
        await client.send(
            json.dumps(
                {
                    "type": "completion.create",
                    "prompt": "one two three four five six seven eight nine ten one two three",
                    "temperature": 0,
                    "max_output_tokens": 4,
                }
            )
        )
        events = await receive_response(client)
        assert text_of(events).startswith(" four five six")
        assert events[-1]["response"]["status"] == "incomplete"
        assert events[-1]["response"]["usage"]["output_tokens"] == 4


async def test_a_stop_string_ends_the_answer_before_it(real_server: str) -> None:
    async with _connect(real_server) as client:
        events = await ask(
            client,
            "What is the capital of France?",
            paceline={"stop": ["of Fra"], "include": ["tokens"]},
            **GREEDY,
        )
        assert events[-1]["type"] == "response.completed"
        assert text_of(events) == "The capital "


async def test_a_gap_ends_where_the_text_behind_it_begins(real_server: str) -> None:
    """SmolLM2 has no tokens for filling in, so it is the suffix that stops it."""
    fields = {"temperature": 0, "max_output_tokens": 48}
    prompt = "line one\nline two\nline three\nline four\n"
    async with _connect(real_server) as client:
        texts = []
        for suffix in ({}, {"suffix": "line seven\nline eight\n"}):
            message = {"type": "completion.create", "prompt": prompt} | suffix | fields
            await client.send(json.dumps(message))
            texts.append(text_of(await receive_response(client)))
    assert "line seven" in texts[0]
    assert texts[1] == texts[0].partition("line seven")[0]


async def test_every_way_of_speculating_gives_the_greedy_text(real_server: str) -> None:
    prompt = "Repeat exactly: red green blue red green blue red green blue"
    async with _connect(real_server) as client:
        texts = {
            str(options): text_of(await ask(client, prompt, paceline=options, **GREEDY))
            for options in (
                {"speculation": "off"},
                {"speculation": "auto", "drafter": "ngram"},
                {"speculation": "on", "drafter": "ngram", "num_speculative_tokens": 4},
                {"drafter": "none"},
            )
        }
        assert len(set(texts.values())) == 1, texts


async def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    real_server: str,
) -> None:
    async with _connect(real_server) as client:
        (event,) = await ask(client, "word " * 9000)
        assert event["error"]["code"] == "context_length_exceeded"
        assert "8192" in event["error"]["message"]
        assert (await _usage(client, "hi"))["output_tokens"] == 1
