"""Bodies as known programs send them get what those programs read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.serving import serving

if TYPE_CHECKING:
    import httpx

    from tests.server.serving import Server

pytestmark = pytest.mark.anyio


def _chunks(answered: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in answered.text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


async def test_continue_chats(http: httpx.AsyncClient) -> None:
    """Holds the usage chunk, which has no choices, to the end; sends its key in three headers."""
    answered = await http.post(
        "/v1/chat/completions",
        headers={"Authorization": "Bearer k", "x-api-key": "k", "api-key": "k"},
        json={
            "model": "fake-model",
            "messages": [
                {"role": "system", "content": "You are a helpful assistant."},
                {"role": "user", "content": [{"type": "text", "text": "hello"}]},
            ],
            "max_tokens": 2048,
            "stop": ["</s>", "\n\n\n", "```", "//"],
            "stream": True,
            "stream_options": {"include_usage": True},
            "parallel_tool_calls": False,
        },
    )
    chunks = _chunks(answered)
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks[:-1])
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] > 0


async def test_continue_fills_in(http: httpx.AsyncClient, server: Server) -> None:
    """Reads `choices[0].delta.content` of the fill-in-the-middle endpoint."""
    answered = await http.post(
        "/v1/fim/completions",
        json={
            "model": "fake-model",
            "prompt": "def add(a, b):\n    return ",
            "suffix": "\n\nprint(add(1, 2))",
            "max_tokens": 64,
            "temperature": 0.01,
            "top_p": 1,
            "stop": ["\n\n"],
            "stream": True,
        },
    )
    text = "".join(c["choices"][0]["delta"].get("content") or "" for c in _chunks(answered))
    assert text
    assert server.engine.submitted[0].max_new_tokens == 64


async def test_continue_completes_with_a_template_of_its_own(http: httpx.AsyncClient) -> None:
    answered = await http.post(
        "/v1/completions",
        json={
            "model": "fake-model",
            "prompt": "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
            "max_tokens": 64,
            "temperature": 0.01,
            "stop": ["<|endoftext|>", "\n\n"],
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    chunks = _chunks(answered)
    assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"])


async def test_zed_predicts_an_edit(http: httpx.AsyncClient) -> None:
    """Reads `choices[0].text` and `id` of a whole answer."""
    answered = await http.post(
        "/v1/completions",
        json={
            "model": "fake-model",
            "prompt": "<|fim_prefix|>let x = <|fim_suffix|>;<|fim_middle|>",
            "max_tokens": 256,
            "temperature": 0.2,
            "stop": ["<|endoftext|>", "<|file_sep|>", "<|fim_pad|>", "\n\n"],
        },
    )
    body = answered.json()
    assert body["id"]
    assert body["choices"][0]["text"]


async def test_open_webui_lists_and_chats(http: httpx.AsyncClient) -> None:
    """Sends null for whatever its user left open, and fields of its own."""
    models = (await http.get("/v1/models")).json()
    assert models["object"] == "list"
    answered = await http.post(
        "/v1/chat/completions",
        json={
            "model": models["data"][0]["id"],
            "messages": [{"role": "user", "content": "hello"}],
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": None,
            "max_tokens": None,
            "seed": None,
            "stop": None,
            "top_k": 40,
            "min_p": 0.0,
            "logit_bias": {},
            "tools": [],
            "chat_id": "local",
            "session_id": "abc",
            "features": {"web_search": False},
        },
    )
    assert _chunks(answered)[-1]["usage"]["prompt_tokens"] > 0


INFILL = {
    "id_slot": 0,
    "input_prefix": "def add(a, b):\n",
    "input_suffix": "\nprint(add(1, 2))\n",
    "input_extra": [{"filename": "sub.py", "text": "def sub(a, b): return a - b"}],
    "prompt": "    return ",
    "n_predict": 128,
    "n_indent": 4,
    "stop": [],
    "top_k": 40,
    "top_p": 0.99,
    "samplers": ["top_k", "top_p", "infill"],
    "stream": False,
    "cache_prompt": True,
    "t_max_prompt_ms": 500,
    "t_max_predict_ms": 1000,
}


async def test_llama_vim_fills_in(http: httpx.AsyncClient, server: Server) -> None:
    fields = ["content", "timings/prompt_n", "timings/predicted_ms", "truncated", "tokens_cached"]
    answered = await http.post("/infill", json=INFILL | {"response_fields": fields})
    body = answered.json()
    assert set(body) == set(fields)
    assert body["content"]
    assert body["timings/prompt_n"] > 0
    assert body["truncated"] is False
    (request,) = server.engine.submitted
    assert request.max_new_tokens == 128
    assert request.sampling.top_k == 40


async def test_llama_vim_without_a_choice_of_fields(http: httpx.AsyncClient) -> None:
    body = (await http.post("/infill", json=INFILL)).json()
    assert body["stop"] is True
    assert body["stop_type"] == "eos"
    assert body["timings"]["predicted_n"] == body["tokens_predicted"] > 0
    assert body["timings"]["draft_n"] == 4
    assert body["timings"]["draft_n_accepted"] == 2


async def test_llama_vim_warms_the_cache(http: httpx.AsyncClient, server: Server) -> None:
    body = (await http.post("/infill", json=INFILL | {"n_predict": 0})).json()
    assert body["content"] == ""
    assert body["tokens_predicted"] == 0
    assert server.engine.submitted[0].max_new_tokens == 1


async def test_llama_vscode_asks_for_several(http: httpx.AsyncClient) -> None:
    body = (await http.post("/infill", json=INFILL | {"n_cmpl": 3})).json()
    assert [each["index"] for each in body] == [0, 1, 2]
    assert all(each["content"] for each in body)


async def test_infill_streams(http: httpx.AsyncClient) -> None:
    answered = await http.post("/infill", json=INFILL | {"stream": True})
    lines = [line for line in answered.text.splitlines() if line]
    parts = [json.loads(line.removeprefix("data: ")) for line in lines]
    assert all(not part["stop"] for part in parts[:-1])
    assert parts[-1]["stop"] is True
    assert "".join(part["content"] for part in parts)


async def test_infill_ends_after_a_line_when_its_time_is_over() -> None:
    import httpx

    async with (
        serving(lambda _: ["a line\n", *["x"] * 100_000]) as server,
        httpx.AsyncClient(base_url=server.http_url, timeout=60) as http,
    ):
        late = INFILL | {"t_max_predict_ms": 20, "n_predict": 100_000}
        body = (await http.post("/infill", json=late)).json()
        assert body["content"].startswith("a line\n")
        assert body["stop_type"] == "limit"
        assert server.engine.num_running == 0


async def test_health(http: httpx.AsyncClient) -> None:
    assert (await http.get("/health")).json() == {"status": "ok"}
