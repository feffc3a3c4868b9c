"""Whole sequences of table models: the law over several rounds, which one round cannot show.

Each test rejects a right implementation with probability 1e-6 over seeds; seeds are fixed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.core.request import SamplingParams
from paceline.sampling.acceptance import AcceptRule
from tests.reference import chi_square, expected_accepted, warped
from tests.sampling.table_models import TablePair, sample

if TYPE_CHECKING:
    import torch

    from tests.reference import RowOf

REJECT = 1e-6
PARAMS = {
    "plain": SamplingParams(),
    "cut": SamplingParams(temperature=0.8, top_k=2, top_p=0.9),
    "seeded": SamplingParams(seed=1),
}


@pytest.mark.parametrize("rule", [AcceptRule.TOKEN, AcceptRule.BLOCK], ids=["token", "block"])
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("kind", list(PARAMS))
def test_several_rounds_follow_the_target(rule: AcceptRule, depth: int, kind: str) -> None:
    """The seeds differ between sequences, so seeded ones follow the law as well."""
    pair = TablePair(params=PARAMS[kind])
    made = sample(pair, 20_000, 4, depth, rule)
    assert sum(count for (_, accepted), count in made.rounds.items() if 0 < accepted < depth) or (
        depth == 1
    )
    assert chi_square(made.counts, pair.law(4)) > REJECT


def conditional(pair: TablePair, table: torch.Tensor) -> RowOf:
    """The law of the next token of a fresh sequence by one of the pair's tables."""

    def row_of(prefix: tuple[int, ...]) -> np.ndarray:
        before, last = ((pair.vocabulary_size,) * 2 + prefix)[-2:]
        p = pair.params
        row = table[before, last].double().numpy()
        return warped(row, p.temperature, p.top_k, p.top_p, p.min_p)

    return row_of


@pytest.mark.parametrize("kind", ["plain", "cut"])
@pytest.mark.parametrize("seed", range(3))
def test_acceptance_is_what_theory_says(kind: str, seed: int) -> None:
    """First rounds: the share of accepted single drafts is the sum of min(target, draft), and the
    mean of accepted tokens at depth 3 is each rule's own, all within 4 standard errors; the block
    rule's mean is never the smaller one."""
    pair = TablePair(params=PARAMS[kind], seed=seed)
    target, draft = conditional(pair, pair.target), conditional(pair, pair.draft)
    number = 20_000
    overlap = float(np.minimum(target(()), draft(())).sum())
    rounds = sample(pair, number, 1, 1, AcceptRule.TOKEN).rounds
    error = math.sqrt(overlap * (1 - overlap) / number)
    assert abs(rounds[1, 1] / number - overlap) <= 4 * error
    means = {}
    for name, rule in (("token", AcceptRule.TOKEN), ("block", AcceptRule.BLOCK)):
        rounds = sample(pair, number, 1, 3, rule).rounds
        counts = np.repeat(np.arange(4), [rounds[3, accepted] for accepted in range(4)])
        means[name] = expected_accepted(target, draft, 3, name)
        assert abs(counts.mean() - means[name]) <= 4 * counts.std() / math.sqrt(number)
    assert means["block"] >= means["token"] - 1e-12


def test_a_wrong_law_is_noticed() -> None:
    """The negative control: the same samples against a slightly different target."""
    pair, other = TablePair(), TablePair()
    other.target = other.target * 1.1
    made = sample(pair, 20_000, 4, 2, AcceptRule.BLOCK)
    assert chi_square(made.counts, other.law(4)) < REJECT
