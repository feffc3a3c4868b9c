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
    """Three schemas at a time in too little memory, beside streams that are cut off: again 200."""
    counts: list[int] = []
    waiting = list(SCHEMAS)
    num_left = 0

    async def ask(http: httpx.AsyncClient) -> None:
        while waiting:
            counts.append(await _valid_answers(http, waiting.pop(), ANSWERS_PER_SCHEMA))

    async def leave(http: httpx.AsyncClient) -> None:
        nonlocal num_left
        body = _body("flat", SCHEMAS["nested"], 2) | {"stream": True}
        while len(counts) < len(SCHEMAS):
            async with http.stream("POST", "/v1/chat/completions", json=body) as stream:
                async for line in stream.aiter_lines():
                    if "content" in line and '""' not in line:
                        num_left += 1
                        break

    async with httpx.AsyncClient(base_url=crowded_server, timeout=1200) as http:
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask, http)
            tasks.start_soon(leave, http)
        measured = (await http.get("/metrics")).text
    assert sum(counts) == 200
    assert num_left >= 5
    assert _total(measured, "vllm:num_preemptions_total") > 0
    assert _total(measured, "vllm:request_success_total", 'finished_reason="abort"') >= num_left


def _total(measured: str, name: str, label: str = "") -> float:
    """Sum over the series of this name with this label."""
    lines = [each for each in measured.splitlines() if each.startswith(name) and label in each]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)
