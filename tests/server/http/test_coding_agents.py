"""Requests as coding agents send them over the Responses API.

Every field that such a program always sends is served, or changes nothing; what it may leave out
and we do not serve is refused by name.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes_engine import CharacterCodec
from tests.server.serving import receive_response, serving

if TYPE_CHECKING:
    import httpx

pytestmark = pytest.mark.anyio

SHELL = {
    "type": "function",
    "name": "shell",
    "description": "Runs a command and returns what it prints.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {
            "command": {"type": "array", "items": {"type": "string"}},
            "workdir": {"type": "string"},
            "timeout_ms": {"type": "number"},
        },
        "required": ["command"],
        "additionalProperties": False,
    },
}
BODY: dict[str, Any] = {
    "model": "fake-model",
    "instructions": "You are a coding agent that runs in a terminal.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "The sandbox is read-only."}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "List the files."}],
        },
    ],
    "tools": [SHELL],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "2f1c7f0e",
    "service_tier": "auto",
    "text": {"verbosity": "medium"},
    "client_metadata": {"origin": "terminal"},
}
CALL = '<tool_call>\n{"name": "shell", "arguments": {"command": ["ls"]}}\n</tool_call>'


def _writes(text: str) -> list[str]:
    return [text[at : at + 6] for at in range(0, len(text), 6)]


def _events(answered: httpx.Response) -> list[dict[str, Any]]:
    lines = answered.text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]


async def test_a_turn_with_a_call_and_the_whole_conversation_sent_again() -> None:
    """`store: false` makes the client send all items anew, those of the answer included."""
    import httpx

    async with (
        serving(lambda _: _writes(CALL)) as server,
        httpx.AsyncClient(base_url=server.http_url, timeout=30) as http,
    ):
        events = _events(await http.post("/v1/responses", json=BODY))
        assert events[0]["type"] == "response.created"
        assert events[-1]["type"] == "response.completed"
        (call,) = events[-1]["response"]["output"]
        assert (call["type"], call["name"]) == ("function_call", "shell")
        assert json.loads(call["arguments"]) == {"command": ["ls"]}

        again = [
            *BODY["input"],
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA="},
            call,
            {"type": "function_call_output", "call_id": call["call_id"], "output": "a.txt"},
        ]
        events = _events(await http.post("/v1/responses", json=BODY | {"input": again}))
        assert events[-1]["type"] == "response.completed"
        before, after = server.engine.submitted
        text = CharacterCodec().text_of(after.prompt_ids)
        assert "a.txt" in text
        assert '"command": ["ls"]' in text
        # The same client, so that what was learned about its texts is used again.
        assert before.speculation_key == after.speculation_key != ""


async def test_the_same_body_over_the_socket() -> None:
    async with serving(lambda _: _writes(CALL)) as server, server.connect() as socket:
        await socket.send(json.dumps(BODY | {"type": "response.create"}))
        events = await receive_response(socket)
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"][0]["type"] == "function_call"


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "web_search"},
        {"type": "local_shell"},
        {"type": "custom", "name": "apply_patch", "format": {"type": "text"}},
        {"type": "mcp", "server_label": "docs", "server_url": "https://example.org"},
    ],
    ids=lambda tool: tool["type"],
)
async def test_tools_of_other_kinds_are_refused_by_name(
    http: httpx.AsyncClient, tool: dict[str, Any]
) -> None:
    """A model that was not told of a tool would answer as if there were none."""
    answered = await http.post("/v1/responses", json=BODY | {"tools": [SHELL, tool]})
    assert answered.status_code == 400
    error = answered.json()["error"]
    assert (error["param"], error["code"]) == ("tools[1].type", "unsupported_value")
    assert "function" in error["message"]
