"""A loop of twenty tool calls over one connection computes only what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from websockets.asyncio.client import connect

from tests.server.serving import ask

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.e2e,
    pytest.mark.weights,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

NUM_TURNS = 20
BLOCK_SIZE = 16
TOOL = {
    "type": "function",
    "name": "measure",
    "description": "Measures the temperature of a room.",
    "parameters": {
        "type": "object",
        "properties": {"room": {"enum": ["hall", "cellar", "attic"]}},
        "required": ["room"],
        "additionalProperties": False,
    },
    "strict": True,
}


async def _turn(socket: ClientConnection, items: Any, **fields: Any) -> dict[str, Any]:
    events = await ask(
        socket, items, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, **fields
    )
    assert events[-1]["type"] == "response.completed", events[-1]
    response: dict[str, Any] = events[-1]["response"]
    return response


async def test_every_turn_finds_what_came_before(real_server: str) -> None:
    address = real_server.replace("http", "ws") + "/v1/responses"
    async with connect(address, compression=None) as socket:
        response = await _turn(socket, "How warm is each room? Measure all of them.")
        first_tokens = []
        for turn in range(2, NUM_TURNS + 1):
            (call,) = response["output"]
            assert call["name"] == "measure"
            known = response["usage"]["total_tokens"]
            output = {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": f"{turn % 10} degrees",
            }
            response = await _turn(socket, [output], previous_response_id=response["id"])
            usage = response["usage"]
            cached = usage["input_tokens_details"]["cached_tokens"]
            # All whole blocks that had been computed; an answer's last token has not.
            assert cached >= (known - 2) // BLOCK_SIZE * BLOCK_SIZE
            assert usage["input_tokens"] - cached < 4 * BLOCK_SIZE
            first_tokens.append(usage["input_tokens"] - cached)
        # Equal new text: what is computed before the first token stays the same, but for the rest
        # of a block.
        assert max(first_tokens) - min(first_tokens) <= 2 * BLOCK_SIZE
