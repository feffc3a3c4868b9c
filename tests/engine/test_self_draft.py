"""The target as its own draft: acceptance 1.00 and gamma + 1 tokens a verification.

Any stale, shifted or foreign row of the draft's K/V would cost acceptance without changing the
output, which is why only this test finds it. Alone and in a batch of 8 with joins and leaves.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING

import pytest

from paceline.core.config import Dtype
from paceline.core.events import FinishReason
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.engine.assembly import assemble
from paceline.model.default_weights import ensure_default_target
from paceline.model.loading import load_target
from paceline.model.tokenizer import TextCodec
from tests.engine.test_transformers_equality import smollm2_part
from tests.tiny_models import Outputs, run_to_end, tiny_engine, tiny_llama

if TYPE_CHECKING:
    from paceline.engine.engine import Engine


def serve(
    engine: Engine, gamma: int, prompts: list[tuple[int, ...]], generator: random.Random
) -> Outputs:
    """All prompts, greedy and sampled, joining while others run; one leaves early."""
    outputs = Outputs()
    for index, prompt in enumerate(prompts):
        new = (gamma + 1) * 6 + 1 + generator.randrange(gamma + 1)
        sampling = SamplingParams(temperature=generator.choice([0.0, 0.7, 1.0]))
        request = Request(f"r{index}", prompt, new, sampling, speculation=Speculation.ON)
        engine.submit(request)
        for _ in range(generator.randrange(3) if len(prompts) > 1 else 0):
            outputs.add(engine.step().events)
        if index == 4:
            engine.cancel("r3")
    return run_to_end(engine, outputs)


def assert_all_accepted(outputs: Outputs, gamma: int) -> None:
    finishes = [f for f in outputs.finished.values() if f.reason is FinishReason.LENGTH]
    assert len(finishes) >= len(outputs.finished) - 1
    examined = sum(finish.summary.num_examined for finish in finishes)
    accepted = sum(finish.summary.num_accepted for finish in finishes)
    assert examined > 4 * gamma * len(finishes)
    # Exactly 1 but for rounding between a row computed alone and computed among others.
    assert accepted >= 0.995 * examined
    runs = [run for f in finishes for run in outputs.runs[f.request_id][:-1] if run > 1]
    full = sum(run == gamma + 1 for run in runs)
    assert len(runs) - full <= examined - accepted, "an accepted draft was cut short"


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("gamma", range(1, 7))
def test_tiny_llama(gamma: int, batch: int) -> None:
    target = tiny_llama(3)
    engine = tiny_engine(
        target,
        copy.deepcopy(target),
        drafter=DrafterKind.MODEL,
        num_speculative_tokens=gamma,
        token_budget=200,
        max_sequences=8,
    )
    generator = random.Random(gamma)
    prompts = [
        tuple(generator.randrange(64) for _ in range(generator.randrange(1, 30)))
        for _ in range(1 if batch == 1 else 11)
    ]
    assert_all_accepted(serve(engine, gamma, prompts, generator), gamma)


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.timeout(600)
@pytest.mark.parametrize("gamma", range(1, 7))
def test_smollm2(gamma: int) -> None:
    folder = ensure_default_target()
    codec = TextCodec.load(folder)
    model = load_target(str(folder), dtype=Dtype.FLOAT32)
    for batch in (1, 8):
        engine = assemble(
            target=smollm2_part(model, 200, 16),
            draft=smollm2_part(model, 200, 16),
            drafter=DrafterKind.MODEL,
            limits=EngineLimits(2048, 200, 16, 8, 100, codec.vocabulary_size),
            text_stream=codec.detokenizer,
            token_budget=256,
            num_speculative_tokens=gamma,
        )
        generator = random.Random(gamma)
        prompts = [
            tuple(codec.encode("The tide rises and falls. " * generator.randrange(1, 6)))
            for _ in range(1 if batch == 1 else 9)
        ]
        assert_all_accepted(serve(engine, gamma, prompts, generator), gamma)
