"""Drafts over the whole vocabulary by a draft that has outputs for a part of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from paceline.core.request import SamplingParams
from paceline.sampling.tail import LEAST_TEMPERATURE, SOFTENING, Tail, mean_tail, other_ids
from tests.reference import continue_law, joint_law, total_variation
from tests.sampling.rounds import RoundCase, output_law, random_law, restrict, settled

if TYPE_CHECKING:
    from tests.reference import RowOf

EXACT = 1e-6
IDS = torch.tensor([1, 2, 4])
HOT, COOL = SamplingParams(temperature=1.5), SamplingParams(temperature=1.0)


def test_other_ids_get_the_tail_at_the_level_of_the_own_ones() -> None:
    tail = Tail(torch.tensor([-1.0, -3.0]), IDS)
    own = torch.tensor([[1.0, 2.0, 6.0], [-5.0, -5.0, -5.0]], dtype=torch.bfloat16)
    wide = tail.widen(own, [HOT, HOT]) * SOFTENING
    expected = torch.tensor([[2.0, 1.0, 2.0, 0.0, 6.0], [-6.0, -5.0, -5.0, -8.0, -5.0]])
    torch.testing.assert_close(wide, expected)


def test_rows_that_are_not_hot_stay_what_they_are() -> None:
    tail = Tail(torch.tensor([-1.0, -3.0]), IDS)
    own = torch.tensor([[1.0, 2.0, 6.0]]).repeat(3, 1)
    warm = SamplingParams(temperature=LEAST_TEMPERATURE)
    cool, at_limit, hot = tail.widen(own, [COOL, warm, HOT])
    nothing = -math.inf
    assert cool.tolist() == at_limit.tolist() == [nothing, 1.0, 2.0, nothing, 6.0]
    assert hot.isfinite().all()


def test_probabilities_are_those_of_wide_rows() -> None:
    generator = torch.Generator().manual_seed(1)
    tail = Tail(torch.randn(2, generator=generator), IDS)
    logits = torch.randn(5, 3, generator=generator) * 4
    ids = torch.arange(5)
    expected = (tail.widen(logits, [HOT] * 5) / HOT.temperature).softmax(-1)
    found = tail.probabilities(logits, ids, HOT.temperature)
    torch.testing.assert_close(found.float(), expected[ids, ids])


def test_a_tail_is_the_mean_above_the_mean_of_the_own_ids() -> None:
    rows = torch.tensor([[0.0, 3.0, 4.0, -1.0, 5.0], [9.0, 1.0, 1.0, 2.0, 4.0]])
    # 4 and 2 are the means over ids 1, 2 and 4: -4 and 7 above them for id 0, -5 and 0 for id 3.
    expected = [1.5, -2.5]
    assert mean_tail([rows[:1], rows[1:]], IDS).tolist() == expected
    assert mean_tail([rows.to(torch.bfloat16)], IDS).tolist() == expected
    assert other_ids(IDS, 5).tolist() == [0, 3]


@pytest.mark.parametrize("rows", [[], [torch.zeros(0, 5)]], ids=["no block", "an empty block"])
def test_without_rows_there_is_no_tail(rows: list[torch.Tensor]) -> None:
    with pytest.raises(ValueError, match="at least one row"):
        mean_tail(rows, IDS)


def widened(own: RowOf) -> RowOf:
    """The law of a draft with outputs for `IDS` and a tail, at a high temperature."""
    tail = Tail(torch.tensor([0.5, -0.5]), IDS)

    def row_of(prefix: tuple[int, ...]) -> np.ndarray:
        logits = torch.from_numpy(np.log(own(prefix)[IDS.numpy()])).float()[None]
        return np.asarray((tail.widen(logits, [HOT])[0] / HOT.temperature).double().softmax(-1))

    return row_of


def distance(case: RoundCase) -> float:
    length = case.depth + 1
    made = continue_law(output_law(case, settled), case.target_of, length, case.vocabulary_size)
    return total_variation(made, joint_law(case.target_of, length, case.vocabulary_size))


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
def test_outputs_follow_the_target(is_block: bool) -> None:
    draft = widened(random_law(21, 5))
    assert all(draft(()) > 0), "every id can be drafted"
    assert distance(RoundCase(5, 2, random_law(22, 5), draft, is_block)) < EXACT


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
def test_rows_without_the_tail_that_was_drafted_from_are_noticed(is_block: bool) -> None:
    """The negative control: tokens of the tail, and rows that say they cannot be."""
    draft = widened(random_law(21, 5))
    declared = restrict(draft, tuple(IDS.tolist()))
    case = RoundCase(5, 2, random_law(22, 5), draft, is_block, declared_of=declared)
    assert distance(case) > 1e-3


def test_a_tail_is_worth_what_the_target_has_on_other_ids() -> None:
    """A target that is a tail itself on ids 0 and 3 is met there."""
    target = widened(random_law(21, 5))
    without = restrict(target, tuple(IDS.tolist()))
    overlap = np.minimum(target(()), without(())).sum()
    assert overlap == pytest.approx(target(())[IDS.numpy()].sum())
    assert overlap < 0.95
    assert math.isclose(np.minimum(target(()), target(())).sum(), 1.0)
