"""Edits of rows against the reference, and what fork and advance promise."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from paceline.core.request import SamplingParams
from paceline.sampling.constraints import RowEdits, SamplingConstraint
from paceline.sampling.edits import apply_edits
from tests.reference import edited

if TYPE_CHECKING:
    import numpy as np

WIDTH = 9
PROMPT, STOPS = (1, 2, 2, 5), (7, 8)
PARAMS = [
    SamplingParams(repetition_penalty=1.7),
    SamplingParams(presence_penalty=0.9),
    SamplingParams(frequency_penalty=-0.6),
    SamplingParams(logit_bias=((3, 4.0), (2, -100.0))),
    SamplingParams(banned_token_ids=(0, 4)),
    SamplingParams(min_tokens=3),
    SamplingParams(
        repetition_penalty=0.8,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        logit_bias=((2, 1.0), (6, 2.0)),
        banned_token_ids=(6,),
        min_tokens=4,
    ),
]


def expected(params: SamplingParams, logits: torch.Tensor, output: tuple[int, ...]) -> np.ndarray:
    return edited(
        logits.double().numpy(),
        PROMPT,
        output,
        repetition=params.repetition_penalty,
        presence=params.presence_penalty,
        frequency=params.frequency_penalty,
        bias=dict(params.logit_bias),
        banned=params.banned_token_ids,
        stops=STOPS,
        min_tokens=params.min_tokens,
    )


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_rows_of_a_round_see_their_own_prefix(params: SamplingParams) -> None:
    """Over several rounds, each of which drafts more than it commits."""
    assert SamplingConstraint.needed(params)
    constraint = SamplingConstraint(params, PROMPT, STOPS)
    output: tuple[int, ...] = ()
    logits = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    for committed in ((5,), (0, 5), (3, 3, 8), (1,)):
        drafted = (3, 5, 3)
        made = apply_edits(logits, constraint.fork(drafted))
        again = apply_edits(logits, constraint.fork(drafted))
        assert torch.equal(made, again), "a fork changed the state"
        for row in range(4):
            law = expected(params, logits[row], output + drafted[:row])
            assert made[row].tolist() == pytest.approx(law.tolist(), abs=1e-5)
        last = apply_edits(logits[3:], constraint.fork(drafted, first=3))
        assert torch.equal(last[0], made[3])
        constraint.advance(committed)
        output += committed


def test_edits_of_a_trimmed_vocabulary() -> None:
    params = PARAMS[-1]
    constraint = SamplingConstraint(params, PROMPT, STOPS)
    kept = torch.tensor([0, 2, 5, 6, 8])
    logits = torch.randn(1, WIDTH, generator=torch.Generator().manual_seed(1))
    whole = apply_edits(logits, constraint.fork(()))
    some = apply_edits(logits[:, kept], constraint.fork(()), kept)
    assert torch.equal(some, whole[:, kept])


def test_edits_of_several_sequences_keep_apart() -> None:
    logits = torch.randn(5, WIDTH, generator=torch.Generator().manual_seed(2))
    first = SamplingConstraint(PARAMS[0], PROMPT, ())
    second = SamplingConstraint(PARAMS[6], PROMPT, STOPS)
    joined = RowEdits.join([(0, first.fork((3,))), (3, second.fork((4,)))])
    made = apply_edits(logits, joined)
    assert torch.equal(made[0:2], apply_edits(logits[0:2], first.fork((3,))))
    assert torch.equal(made[2], logits[2])
    assert torch.equal(made[3:5], apply_edits(logits[3:5], second.fork((4,))))


def test_many_different_tokens() -> None:
    """More than the first allocation of the table holds."""
    params = SamplingParams(frequency_penalty=1.0)
    constraint = SamplingConstraint(params, range(300), ())
    constraint.advance([*range(200, 900), 5])
    made = apply_edits(torch.zeros(1, 1000), constraint.fork(()))[0]
    assert made[:10].tolist() == [0, 0, 0, 0, 0, -1, 0, 0, 0, 0]
    assert made[199:901].tolist() == [0] + [-1] * 700 + [0]


def test_plain_parameters_need_no_constraint() -> None:
    assert not SamplingConstraint.needed(SamplingParams(temperature=0.5, top_k=3, seed=1))
