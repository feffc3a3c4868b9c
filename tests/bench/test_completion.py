"""The benchmark of completions runs, before a scripted engine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

import pytest

from ops.bench.completion import CURSOR, MIN_PREFIX_TOKENS, document, run
from tests.fakes_engine import CharacterCodec
from tests.server.serving import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import Request


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _answer(request: Request) -> Sequence[str]:
    return ["ord in ", "text"]


def test_documents_differ_from_their_first_line_on() -> None:
    first, second = document("a", 3000), document("b", 3000)
    assert first != second
    assert first.split("\n")[1:] == second.split("\n")[1:]
    assert first.isascii()
    assert first.endswith(CURSOR)


@pytest.mark.anyio
async def test_every_keystroke_reaches_the_engine_and_is_counted() -> None:
    options = argparse.Namespace(rounds=2, keystrokes=3, characters=2000, max_tokens=24)
    async with serving(_answer) as server:
        result = await run(server.http_url, options)
        prompts = [CharacterCodec().text_of(each.prompt_ids) for each in server.engine.submitted]
    assert result["prefix_tokens"] >= MIN_PREFIX_TOKENS
    # two settings, 1 cold and 3 warm keystrokes, 2 rounds and one before them; one that counts
    assert len(prompts) == 2 * 4 * 3 + 1
    assert result["requests"] == result["requests_with_text"] == 2 * 4 * 2
    assert {name: row["count"] for name, row in result["milliseconds"].items()} == {
        "auto cold": 2,
        "auto warm": 6,
        "off cold": 2,
        "off warm": 6,
    }
    speculation = [each.speculation.value for each in server.engine.submitted[1:]]
    assert speculation.count("off") == speculation.count("auto") == 12
    assert set(result["warm_speedup"]) == {"auto", "off"}
