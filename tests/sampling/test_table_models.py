"""Whole sequences of table models: the law over several rounds, which one round cannot show.

Each test rejects a right implementation with probability 1e-6 over seeds; seeds are fixed.
"""

from __future__ import annotations

import pytest

from paceline.core.request import SamplingParams
from paceline.sampling.acceptance import AcceptRule
from tests.reference import chi_square
from tests.sampling.table_models import TablePair, sample

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


def test_a_wrong_law_is_noticed() -> None:
    """The negative control: the same samples against a slightly different target."""
    pair, other = TablePair(), TablePair()
    other.target = other.target * 1.1
    made = sample(pair, 20_000, 4, 2, AcceptRule.BLOCK)
    assert chi_square(made.counts, other.law(4)) < REJECT
