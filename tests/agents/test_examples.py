"""The example programs, as they are, each in a process of its own before a scripted engine."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest

from tests.e2e.conftest import PYTHON_PATH
from tests.fakes_engine import CharacterCodec
from tests.server.serving import serving

if TYPE_CHECKING:
    from paceline.core.request import Request

pytestmark = pytest.mark.anyio

EXAMPLES = Path(__file__).parents[2] / "clients" / "python" / "examples"
CALL = '<tool_call>\n{"name": "add", "arguments": {"first": 17, "second": 25}}\n</tool_call>'
MEETING = '{"place": "Bern", "day": "Friday", "people": ["Anna", "Ben"]}'


def _agent(request: Request) -> list[str]:
    """Calls the tool first; the second answer repeats what the tool said."""
    prompt = CharacterCodec().text_of(request.prompt_ids)
    _, found, rest = prompt.rpartition("<tool>")
    text = f"It is {rest.partition('<')[0]}." if found else CALL
    return [text[at : at + 5] for at in range(0, len(text), 5)]


async def _run(name: str, *arguments: str) -> str:
    process = await anyio.run_process(
        [sys.executable, str(EXAMPLES / name), *arguments],
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
        check=False,
    )
    assert process.returncode == 0, process.stderr.decode()
    return process.stdout.decode()


@pytest.mark.parametrize("transport", ["chat", "socket"])
async def test_an_agent_with_tools(transport: str) -> None:
    async with serving(_agent) as server:
        printed = await _run("agent_with_tools.py", server.http_url, transport)
        assert printed.splitlines()[0] == "It is 42."
        assert printed.splitlines()[1].startswith("2 turns")
        assert len(server.engine.submitted) == 2


async def test_structured_extraction() -> None:
    async with serving(lambda _: [MEETING]) as server:
        printed = await _run("structured_extraction.py", server.http_url)
        assert "day='Friday'" in printed
        assert "tokens were drafted" in printed
        assert server.engine.submitted[0].grammar is not None


async def test_parallel_lanes() -> None:
    async with serving() as server:
        printed = await _run("parallel_lanes.py", server.url.removesuffix("/v1/responses"))
        assert sorted(line.partition(":")[0] for line in printed.splitlines()) == sorted(
            ("Paris", "Rome", "Tokyo", "Cairo", "Lima", "Oslo", "Bern", "Quito")
        )


async def test_a_batch_of_prompts(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join(f"line {number}" for number in range(70)))
    async with serving() as server:
        printed = await _run("batch_of_prompts.py", str(prompts), server.http_url)
        assert printed.splitlines() == [f"line {number}" * 2 for number in range(70)]
