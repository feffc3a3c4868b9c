"""The official Python client, unchanged, before a scripted engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pydantic
import pytest

from paceline.core.request import Grammar, GrammarKind
from tests.server.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.serving import Server

pytestmark = pytest.mark.anyio

MESSAGES: list[openai.types.chat.ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one two three"},
]
ECHO = "<assistant>"  # the fake answers with the prompt's last twelve characters


@pytest.fixture
async def client(server: Server) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.http_url}/v1", api_key="unused", max_retries=0
    ) as client:
        yield client


class TestChat:
    async def test_whole(self, client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(model="fake-model", messages=MESSAGES)
        (choice,) = answer.choices
        assert choice.message.content is not None
        assert choice.message.content.endswith(ECHO)
        assert choice.message.role == "assistant"
        assert choice.finish_reason == "stop"
        assert answer.object == "chat.completion"
        assert answer.model == "fake-model"
        assert answer.usage is not None
        assert answer.usage.total_tokens == (
            answer.usage.prompt_tokens + answer.usage.completion_tokens
        )
        assert answer.usage.completion_tokens == 13
        assert answer.usage.model_extra is not None
        assert answer.usage.model_extra["paceline"]["drafter"] == "ngram"

    async def test_stream_with_usage(self, client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="fake-model",
            messages=MESSAGES,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text.endswith(ECHO)
        assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 13
        assert all(chunk.usage is None for chunk in chunks[:-1])
        assert len({chunk.id for chunk in chunks}) == 1

    async def test_streaming_helper(self, client: openai.AsyncOpenAI) -> None:
        async with client.chat.completions.stream(model="fake-model", messages=MESSAGES) as stream:
            text = "".join([event.delta async for event in stream if event.type == "content.delta"])
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == text

    async def test_several_choices(self, client: openai.AsyncOpenAI, server: Server) -> None:
        answer = await client.chat.completions.create(
            model="fake-model", messages=MESSAGES, n=3, seed=7
        )
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert all((choice.message.content or "").endswith(ECHO) for choice in answer.choices)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 39
        assert answer.usage.prompt_tokens == len(server.engine.submitted[0].prompt_ids)
        assert sorted(r.sampling.seed or 0 for r in server.engine.submitted) == [7, 8, 9]

    async def test_several_choices_in_a_stream(self, client: openai.AsyncOpenAI) -> None:
        stream = await client.chat.completions.create(
            model="fake-model", messages=MESSAGES, n=2, stream=True
        )
        texts = {0: "", 1: ""}
        async for chunk in stream:
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
        assert texts[0] == texts[1]
        assert texts[0].endswith(ECHO)

    async def test_parameters_reach_the_engine(
        self, client: openai.AsyncOpenAI, server: Server
    ) -> None:
        await client.chat.completions.create(
            model="fake-model",
            messages=MESSAGES,
            temperature=0.5,
            top_p=0.9,
            seed=3,
            stop=["STOP"],
            max_completion_tokens=5,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias={"65": -5},
            extra_body={
                "top_k": -1,
                "min_p": 0.1,
                "repetition_penalty": 1.1,
                "min_tokens": 2,
                "stop_token_ids": [9],
                "paceline": {"speculation": "off"},
            },
        )
        (request,) = server.engine.submitted
        sampling = request.sampling
        assert (sampling.temperature, sampling.top_p, sampling.seed) == (0.5, 0.9, 3)
        assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -0.5)
        assert (sampling.top_k, sampling.min_p, sampling.repetition_penalty) == (0, 0.1, 1.1)
        assert (sampling.min_tokens, sampling.logit_bias) == (2, ((65, -5.0),))
        assert request.stop == ("STOP",)
        assert request.max_new_tokens == 5
        assert 9 in request.stop_token_ids
        assert request.speculation.value == "off"

    async def test_logprobs(self, client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="fake-model", messages=MESSAGES, logprobs=True, top_logprobs=2
        )
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.content is not None
        assert "".join(each.token for each in logprobs.content) == answer.choices[0].message.content
        assert [other.token for other in logprobs.content[0].top_logprobs] == ["?", "!"]
        assert bytes(logprobs.content[0].bytes or ()).decode() == logprobs.content[0].token
        stream = await client.chat.completions.create(
            model="fake-model", messages=MESSAGES, logprobs=True, stream=True
        )
        tokens = [
            each.token
            async for chunk in stream
            for choice in chunk.choices
            if choice.logprobs is not None
            for each in choice.logprobs.content or ()
        ]
        assert "".join(tokens) == answer.choices[0].message.content

    async def test_structured_output_reaches_the_engine(
        self, client: openai.AsyncOpenAI, server: Server
    ) -> None:
        await client.chat.completions.create(
            model="fake-model",
            messages=MESSAGES,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "integer"}, "strict": True},
            },
        )
        await client.chat.completions.create(
            model="fake-model", messages=MESSAGES, response_format={"type": "json_object"}
        )
        await client.chat.completions.create(
            model="fake-model", messages=MESSAGES, response_format={"type": "text"}
        )
        await client.chat.completions.create(
            model="fake-model", messages=MESSAGES, extra_body={"guided_choice": ["yes", "no"]}
        )
        grammars = [request.grammar for request in server.engine.submitted]
        assert grammars == [
            Grammar(GrammarKind.JSON_SCHEMA, '{"type":"integer"}'),
            Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}'),
            None,
            Grammar(GrammarKind.LARK, 'start: CHOICE\nCHOICE: "yes" | "no"'),
        ]

    async def test_a_parsed_answer(self) -> None:
        class City(pydantic.BaseModel):
            name: str
            size: int

        answer = '{"name": "Rome", "size": 3}'
        async with (
            serving(lambda _: [answer]) as server,
            openai.AsyncOpenAI(base_url=f"{server.http_url}/v1", api_key="x") as client,
        ):
            chat = await client.chat.completions.parse(
                model="fake-model", messages=MESSAGES, response_format=City
            )
            assert chat.choices[0].message.parsed == City(name="Rome", size=3)
            response = await client.responses.parse(
                model="fake-model", input="Rome?", text_format=City
            )
            assert response.output_parsed == City(name="Rome", size=3)
            assert all(request.grammar is not None for request in server.engine.submitted)

    async def test_a_cut_answer_says_length(self, client: openai.AsyncOpenAI) -> None:
        answer = await client.chat.completions.create(
            model="fake-model", messages=MESSAGES, max_tokens=2
        )
        assert answer.choices[0].finish_reason == "length"

    async def test_errors_name_the_field(self, client: openai.AsyncOpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.chat.completions.create(
                model="fake-model", messages=MESSAGES, temperature=-1
            )
        assert caught.value.param == "temperature"
        assert caught.value.code == "invalid_value"
        with pytest.raises(openai.NotFoundError) as missing:
            await client.chat.completions.create(model="gpt-9", messages=MESSAGES)
        assert missing.value.param == "model"

    async def test_a_stream_that_breaks_off_raises(self) -> None:
        async with (
            serving(lambda _: ["Hel", "lo", "!NonFiniteLogitsError"]) as server,
            openai.AsyncOpenAI(
                base_url=f"{server.http_url}/v1", api_key="x", max_retries=0
            ) as client,
        ):
            server.engine.pause()
            stream = await client.chat.completions.create(
                model="fake-model", messages=MESSAGES, stream=True
            )
            server.engine.resume()
            with pytest.raises(openai.APIError) as caught:
                [chunk async for chunk in stream]
            assert caught.value.code == "non_finite_logits"
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(model="fake-model", messages=MESSAGES)


class TestCompletions:
    async def test_whole(self, client: openai.AsyncOpenAI) -> None:
        answer = await client.completions.create(model="fake-model", prompt="abc", echo=True)
        assert answer.choices[0].text == "abcabc"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 3

    async def test_stream(self, client: openai.AsyncOpenAI) -> None:
        stream = await client.completions.create(
            model="fake-model", prompt="abcdef", stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].text for c in chunks if c.choices) == "abcdef"
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 7

    async def test_many_prompts_and_token_ids(self, client: openai.AsyncOpenAI) -> None:
        answer = await client.completions.create(model="fake-model", prompt=["abc", "xyz"], n=2)
        assert [choice.text for choice in answer.choices] == ["abc", "abc", "xyz", "xyz"]
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 6
        ids = [ord(character) + 1 for character in "pqr"]
        answer = await client.completions.create(model="fake-model", prompt=ids, echo=True)
        assert answer.choices[0].text == "pqrpqr"
        answer = await client.completions.create(model="fake-model", prompt=[ids, ids])
        assert [choice.text for choice in answer.choices] == ["pqr", "pqr"]

    async def test_logprobs(self, client: openai.AsyncOpenAI) -> None:
        answer = await client.completions.create(model="fake-model", prompt="abcdef", logprobs=1)
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens == list("abcdef")
        assert logprobs.text_offset == [0, 1, 2, 3, 4, 5]
        assert logprobs.token_logprobs == [-0.5] * 6
        assert logprobs.top_logprobs is not None
        assert logprobs.top_logprobs[0] == {"a": -0.5, "?": -1.5}
        stream = await client.completions.create(
            model="fake-model", prompt="abcdef", logprobs=0, stream=True
        )
        offsets = [
            offset
            async for chunk in stream
            for choice in chunk.choices
            if choice.logprobs is not None
            for offset in choice.logprobs.text_offset or ()
        ]
        assert offsets == [0, 1, 2, 3, 4, 5]


class TestResponses:
    async def test_whole(self, client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(
            model="fake-model", input="one two three", instructions="Be brief."
        )
        assert response.status == "completed"
        assert response.output_text.endswith(ECHO)
        assert response.usage is not None
        assert response.usage.output_tokens == 13

    async def test_stream(self, client: openai.AsyncOpenAI) -> None:
        stream = await client.responses.create(model="fake-model", input="hello", stream=True)
        events = [event async for event in stream]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert events[0].type == "response.created"
        assert events[-1].type == "response.completed"
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert text == events[-1].response.output_text

    async def test_streaming_helper(self, client: openai.AsyncOpenAI) -> None:
        async with client.responses.stream(model="fake-model", input="hello") as stream:
            async for event in stream:
                assert event.type != "error"
            final = await stream.get_final_response()
        assert final.output_text.endswith(ECHO)

    async def test_logprobs(self, client: openai.AsyncOpenAI) -> None:
        response = await client.responses.create(
            model="fake-model",
            input="hello",
            top_logprobs=1,
            include=["message.output_text.logprobs"],
        )
        (message,) = response.output
        assert message.type == "message"
        (part,) = message.content
        assert part.type == "output_text"
        assert part.logprobs is not None
        assert "".join(each.token for each in part.logprobs) == response.output_text

    async def test_the_next_turn(self, client: openai.AsyncOpenAI, server: Server) -> None:
        first = await client.responses.create(model="fake-model", input="one")
        second = await client.responses.create(
            model="fake-model", input="two", previous_response_id=first.id
        )
        assert second.previous_response_id == first.id
        before, after = (request.prompt_ids for request in server.engine.submitted)
        assert after[: len(before)] == before
        with pytest.raises(openai.NotFoundError) as caught:
            await client.responses.create(
                model="fake-model", input="three", previous_response_id="resp_no"
            )
        assert caught.value.param == "previous_response_id"

    async def test_sampling_fields_beside_paceline(
        self, client: openai.AsyncOpenAI, server: Server
    ) -> None:
        await client.responses.create(
            model="fake-model", input="one", extra_body={"top_k": 5, "paceline": {"seed": 3}}
        )
        assert server.engine.submitted[0].sampling.top_k == 5
        assert server.engine.submitted[0].sampling.seed == 3
        with pytest.raises(openai.BadRequestError) as caught:
            await client.responses.create(model="fake-model", input="one", extra_body={"top_k": -5})
        assert caught.value.param == "top_k"


async def test_models(client: openai.AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["fake-model"]
    assert (await client.models.retrieve("fake-model")).id == "fake-model"
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("gpt-9")
