"""SmolLM2 at temperature 1 answers in the asked-for form, always, with speculation on."""

from __future__ import annotations

import json
from typing import Any

import anyio
import httpx
import jsonschema
import pytest

from tests.agents.schemas import SCHEMAS

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.e2e,
    pytest.mark.weights,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
]

ANSWERS_PER_SCHEMA = 20


def _body(name: str, schema: dict[str, Any], count: int) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"Make up a record of the kind {name}."}],
        "temperature": 1,
        "n": count,
        "max_tokens": 400,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "record", "schema": schema, "strict": True},
        },
        "paceline": {"speculation": "on", "num_speculative_tokens": 4},
    }


async def _valid_answers(http: httpx.AsyncClient, name: str, count: int) -> int:
    schema = SCHEMAS[name]
    answered = await http.post("/v1/chat/completions", json=_body(name, schema, count))
    assert answered.status_code == 200, answered.text
    body = answered.json()
    for choice in body["choices"]:
        assert choice["finish_reason"] == "stop", choice
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
    drafted = body["usage"]["completion_tokens_details"]
    assert drafted["accepted_prediction_tokens"] > 0
    return len(body["choices"])


async def test_two_hundred_answers_are_valid(real_server: str) -> None:
    async with httpx.AsyncClient(base_url=real_server, timeout=600) as http:
        counts = [await _valid_answers(http, name, ANSWERS_PER_SCHEMA) for name in SCHEMAS]
    assert sum(counts) == 200


async def test_also_under_preemption_and_neighbours_that_leave(crowded_server: str) -> None:
    """Three schemas at once in too little memory, beside streams that are cut off."""
    counts: list[int] = []

    async def ask(http: httpx.AsyncClient, name: str) -> None:
        counts.append(await _valid_answers(http, name, 8))

    async def leave(http: httpx.AsyncClient) -> None:
        body = _body("flat", SCHEMAS["nested"], 2) | {"stream": True}
        for _ in range(5):
            async with http.stream("POST", "/v1/chat/completions", json=body) as stream:
                async for line in stream.aiter_lines():
                    if "content" in line and '""' not in line:
                        break

    async with (
        httpx.AsyncClient(base_url=crowded_server, timeout=600) as http,
        anyio.create_task_group() as tasks,
    ):
        for name in ("flat", "union", "array of objects"):
            tasks.start_soon(ask, http, name)
        tasks.start_soon(leave, http)
    assert counts == [8, 8, 8]
