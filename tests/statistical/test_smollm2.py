"""The default target itself: greedy text with and without speculation, and seeded text with
`--deterministic`. Run with `-m slow -s` to see the counts.
"""

from __future__ import annotations

import sys

import pytest
import torch

from paceline.core.config import Dtype
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from tests.statistical.smollm2 import prompts, smollm2_engine, target
from tests.tiny_models import Outputs, run_to_end

pytestmark = [pytest.mark.slow, pytest.mark.weights, pytest.mark.timeout(1800)]

LENGTH = 24
TIE = 1e-3


def greedy(drafter: DrafterKind, gamma: int) -> Outputs:
    engine = smollm2_engine(Dtype.FLOAT32, drafter, gamma)
    for index, prompt in enumerate(prompts()):
        engine.submit(
            Request(
                f"r{index}",
                prompt,
                LENGTH,
                sampling=SamplingParams(temperature=0),
                speculation=Speculation.ON if gamma else Speculation.OFF,
            )
        )
    return run_to_end(engine)


@pytest.fixture(scope="module")
def plain() -> Outputs:
    return greedy(DrafterKind.NONE, 0)


@pytest.mark.parametrize("gamma", range(7))
@pytest.mark.parametrize("drafter", [DrafterKind.NGRAM, DrafterKind.MODEL], ids=str)
def test_greedy_text_is_that_of_plain_decoding(
    plain: Outputs, drafter: DrafterKind, gamma: int
) -> None:
    """Up to ties: where two texts part, their two tokens' logits differ by next to nothing."""
    made = greedy(drafter, gamma)
    ties = 0
    for index, prompt in enumerate(prompts()):
        mine, theirs = made.tokens[f"r{index}"], plain.tokens[f"r{index}"]
        if mine == theirs:
            continue
        place = next(i for i, pair in enumerate(zip(mine, theirs, strict=True)) if len({*pair}) > 1)
        gap = tie_gap((*prompt, *theirs[:place]), mine[place], theirs[place])
        assert gap < TIE, f"prompt {index}, token {place}: the logits are {gap} apart"
        ties += 1
    drafted = sum(finish.summary.num_drafted for finish in made.finished.values())
    accepted = sum(finish.summary.num_accepted for finish in made.finished.values())
    sys.stdout.write(
        f"\n{drafter}, gamma {gamma}: {len(prompts())} prompts, {ties} ties, "
        f"{drafted} drafted, {accepted} accepted\n"
    )
    assert (drafted > 0) == (gamma > 0)
    assert gamma == 0 or 0 < accepted < drafted


def tie_gap(ids: tuple[int, ...], left: int, right: int) -> float:
    """How far the two tokens' logits are apart, by a forward pass of its own, in their scale."""
    model = target(Dtype.FLOAT32)
    model.set_attn_implementation("eager")
    with torch.no_grad():
        row = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()
    assert {left, right} == {int(token) for token in row.topk(2).indices}
    return float((row[left] - row[right]).abs() / max(1.0, float(row.abs().max()) / 10))


SEEDED = [
    SamplingParams(seed=1, temperature=0.8, top_p=0.95),
    SamplingParams(seed=2),
    SamplingParams(seed=3, top_k=40, repetition_penalty=1.1),
    SamplingParams(temperature=0),
]


def seeded(speculation: Speculation, gamma: int, company: str) -> list[list[int]]:
    engine = smollm2_engine(Dtype.BFLOAT16, DrafterKind.MODEL, max(gamma, 1), fixed_rows=True)
    asked = prompts()
    texts = []
    groups = [range(len(SEEDED))] if company != "alone" else [[i] for i in range(len(SEEDED))]
    for group in groups:
        if company != "alone":
            for index in range(12):
                engine.submit(Request(f"n{index}", asked[20 + index], 12 + index))
            engine.step()
        for index in group:
            engine.submit(
                Request(
                    f"r{index}", asked[2 * index], LENGTH, SEEDED[index], speculation=speculation
                )
            )
        outputs = Outputs()
        step = 0
        while engine.has_work:
            if company == "preempted" and step == 5:
                scheduler = engine._scheduler
                for sequence in [s for s in scheduler.running if s.request_id.startswith("r")]:
                    scheduler._preempt(sequence)
            outputs.add(engine.step().events)
            step += 1
        texts += [outputs.tokens[f"r{index}"] for index in group]
    return texts


def test_deterministic_text_does_not_depend_on_anything() -> None:
    """bfloat16, seeded and greedy: off, gamma 2 and 4, alone, in company, preempted once."""
    expected = seeded(Speculation.OFF, 0, "alone")
    for speculation, gamma in ((Speculation.OFF, 0), (Speculation.ON, 2), (Speculation.ON, 4)):
        for company in ("alone", "in company", "preempted"):
            assert seeded(speculation, gamma, company) == expected, (speculation, gamma, company)
