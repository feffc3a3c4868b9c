"""A seeded request gets the same text however it is drafted, with whom it runs, and how often it is
interrupted. On float32 models, whose rounding differences do not reach a decision here.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch

from paceline.core.events import FinishReason
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from tests.tiny_models import Outputs, run_to_end, tiny_engine, tiny_llama

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM

    from paceline.engine.engine import Engine

PROMPT = (5, 9, 5, 9, 5, 2)
LENGTH = 28
SEEDED = {
    "plain": SamplingParams(seed=11),
    "cut": SamplingParams(seed=12, temperature=0.9, top_k=20, top_p=0.9, min_p=0.01),
    "penalties": SamplingParams(
        seed=13, repetition_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2
    ),
}


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(0)


@pytest.fixture(scope="module")
def draft(target: LlamaForCausalLM) -> LlamaForCausalLM:
    model = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * weight.std() * 0.1)
    return model


def request(
    name: str, params: SamplingParams, speculation: Speculation = Speculation.ON, depth: int = 4
) -> Request:
    return Request(
        name,
        PROMPT,
        LENGTH,
        sampling=params,
        speculation=speculation,
        num_speculative_tokens=depth,
    )


def engine_of(target: LlamaForCausalLM, draft: LlamaForCausalLM, num_blocks: int = 512) -> Engine:
    return tiny_engine(target, draft, drafter=DrafterKind.MODEL, num_blocks=num_blocks)


@pytest.fixture(scope="module")
def expected(target: LlamaForCausalLM) -> dict[str, list[int]]:
    """Plain decoding, alone, without any drafter."""
    texts = {}
    for name, params in SEEDED.items():
        engine = tiny_engine(target, drafter=DrafterKind.NONE)
        engine.submit(request(name, params, Speculation.OFF))
        texts[name] = run_to_end(engine).tokens[name]
    return texts


def fill(engine: Engine, number: int) -> None:
    """Neighbours of all kinds."""
    kinds = (
        SamplingParams(),
        SamplingParams(temperature=0),
        SamplingParams(seed=99, top_k=5),
        SamplingParams(top_p=0.8, presence_penalty=0.5),
    )
    for index in range(number):
        prompt = tuple(range(index + 1, index + 9))
        engine.submit(
            Request(f"neighbour {index}", prompt, 30 + index, sampling=kinds[index % len(kinds)])
        )


@pytest.mark.parametrize("name", list(SEEDED))
@pytest.mark.parametrize("speculation", ["off", "2", "4", "flips"])
@pytest.mark.parametrize("company", ["alone", "in a batch", "preempted"])
def test_the_text_is_that_of_plain_decoding(
    target: LlamaForCausalLM,
    draft: LlamaForCausalLM,
    expected: dict[str, list[int]],
    name: str,
    speculation: str,
    company: str,
) -> None:
    # 15 neighbours of 50 to 60 tokens do not fit into 90 blocks of 4.
    engine = engine_of(target, draft, num_blocks=90 if company == "preempted" else 512)
    if company != "alone":
        fill(engine, 15)
        engine.step()
    depth = int(speculation) if speculation.isdigit() else 3
    choice = Speculation.OFF if speculation == "off" else Speculation.ON
    engine.submit(request(name, SEEDED[name], choice, depth))
    outputs = Outputs()
    step = num_preempted = 0
    scheduler = engine._scheduler
    while engine.has_work:
        if speculation == "flips":
            # On and off by turns, two steps each.
            scheduler._drafter.max_tokens = (  # type: ignore[method-assign]
                (lambda sequence: 0) if step % 4 < 2 else (lambda sequence: 3)
            )
        if company == "preempted" and step == 8:
            mine = [s for s in scheduler.running if s.request_id == name]
            for sequence in mine:
                scheduler._preempt(sequence)
                num_preempted += 1
        outputs.add(engine.step().events)
        step += 1
    assert outputs.finished[name].reason is FinishReason.LENGTH
    assert outputs.tokens[name] == expected[name]
    summary = outputs.finished[name].summary
    if speculation == "off":
        assert summary.num_drafted == 0
    else:
        assert summary.num_accepted > 0
        assert summary.num_accepted < summary.num_drafted
    if company == "preempted":
        assert num_preempted == 1


def test_different_seeds_give_different_texts(
    target: LlamaForCausalLM, draft: LlamaForCausalLM
) -> None:
    engine = engine_of(target, draft)
    for seed in range(8):
        engine.submit(request(f"r{seed}", SamplingParams(seed=seed)))
    texts = run_to_end(engine).tokens.values()
    assert len({tuple(text) for text in texts}) == 8


def test_without_a_seed_texts_differ(target: LlamaForCausalLM, draft: LlamaForCausalLM) -> None:
    engine = engine_of(target, draft)
    for index in range(4):
        engine.submit(request(f"r{index}", SamplingParams()))
    texts = run_to_end(engine).tokens.values()
    assert len({tuple(text) for text in texts}) == 4


def test_shared_noise_is_what_makes_drafts_match(
    target: LlamaForCausalLM, draft: LlamaForCausalLM
) -> None:
    """The target as its own draft guesses every seeded sample, which luck could not do."""
    engine = tiny_engine(target, copy.deepcopy(target), drafter=DrafterKind.MODEL)
    engine.submit(request("r", SamplingParams(seed=5)))
    summary = run_to_end(engine).finished["r"].summary
    assert summary.num_accepted == summary.num_drafted > 0
