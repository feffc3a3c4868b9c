"""32 clients at once on one server: every greedy answer is the one that transformers gives."""

from __future__ import annotations

import random

import anyio
import pytest

from paceline.core.config import Dtype
from paceline.model.default_weights import ensure_default_target
from paceline.model.loading import load_target
from paceline.model.tokenizer import TextCodec
from paceline_client import connect
from paceline_protocol.messages import OutputTextDelta
from tests.e2e.conftest import serve_command
from tests.reference_decoding import compare_greedy

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.e2e,
    pytest.mark.weights,
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

NUM_CLIENTS = 32
OPENINGS = [
    "The tide rises because",
    "def quicksort(items):\n    ",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13,",
    "Once upon a time in a small town by the sea there lived",
    "A list of things to pack for a week in the mountains:\n-",
    "E = m c^2 means that",
]


async def test_every_answer_is_the_reference_s_own(capsys: pytest.CaptureFixture[str]) -> None:
    generator = random.Random(7)
    prompts = [
        f"{'Some words that come first. ' * generator.randrange(4)}{OPENINGS[i % len(OPENINGS)]}"
        for i in range(NUM_CLIENTS)
    ]
    folder = ensure_default_target()
    answers: dict[int, list[int]] = {}

    async def one_client(address: str, index: int) -> None:
        await anyio.sleep(generator.random() * 4)
        tokens: list[int] = []
        async with connect(address) as session:
            async for event in session.complete(
                prompts[index],
                max_output_tokens=generator.randrange(8, 40),
                temperature=0,
                paceline={"include": ["tokens"]},
            ):
                if isinstance(event, OutputTextDelta) and event.paceline:
                    tokens += [token.id for token in event.paceline.tokens]
        answers[index] = tokens

    options = ["--dtype", "float32", "--kv-memory", "1GiB", "--drafter", "model"]
    with serve_command(*options, "--draft", str(folder)) as address:
        async with anyio.create_task_group() as clients:
            for index in range(NUM_CLIENTS):
                clients.start_soon(one_client, address, index)
    codec = TextCodec.load(folder)
    reference = load_target(str(folder), dtype=Dtype.FLOAT32, attn_implementation="sdpa")
    num_tokens = num_ties = 0
    for index, tokens in answers.items():
        comparison = compare_greedy(reference, codec.encode(prompts[index]), tokens)
        assert comparison.wrong == (), prompts[index]
        num_tokens += comparison.num_tokens
        num_ties += comparison.num_ties
    with capsys.disabled():
        print(f"\n{NUM_CLIENTS} clients: {num_tokens} tokens, {num_ties} ties")  # noqa: T201
    assert len(answers) == NUM_CLIENTS
    assert num_tokens > NUM_CLIENTS * 8
    assert num_ties * 500 <= num_tokens
