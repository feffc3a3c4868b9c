"""50,000 requests through the real engine against the exact law of the model: every rule.

Each comparison rejects a right implementation with probability 1e-6 (seeds of unseeded requests are
fresh in every run). Run with `-m slow -s` to see the rounds.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from paceline.core.request import DrafterKind, SamplingParams
from paceline.sampling.acceptance import AcceptRule
from tests.reference import chi_square
from tests.statistical.tiny_law import (
    MEASURED,
    VOCABULARY_SIZE,
    ExactLaw,
    Served,
    serve,
)

if TYPE_CHECKING:
    from tests.reference import Law

pytestmark = [pytest.mark.slow, pytest.mark.statistical, pytest.mark.timeout(900)]

NUMBER = 50_000
REJECT = 1e-6
EVERYTHING = SamplingParams(
    temperature=1.7,
    top_k=6,
    top_p=0.97,
    min_p=0.02,
    repetition_penalty=1.15,
    presence_penalty=0.2,
    frequency_penalty=0.3,
    logit_bias=((4, 0.7), (6, -0.5)),
    banned_token_ids=(3,),
)
CASES = {
    "token rule": (SamplingParams(), AcceptRule.TOKEN, DrafterKind.MODEL),
    "block rule": (SamplingParams(), AcceptRule.BLOCK, DrafterKind.MODEL),
    "block rule, every parameter": (EVERYTHING, AcceptRule.BLOCK, DrafterKind.MODEL),
    "seeded": (SamplingParams(seed=0), AcceptRule.BLOCK, DrafterKind.MODEL),
    "one-hot drafts": (SamplingParams(temperature=2.0), AcceptRule.BLOCK, DrafterKind.NGRAM),
}


@pytest.mark.parametrize("name", list(CASES))
def test_outputs_follow_the_exact_law(name: str) -> None:
    params, rule, drafter = CASES[name]
    exact = ExactLaw(params, MEASURED)
    served = serve(NUMBER, params, rule, drafter)
    total = sum(served.rounds.values())
    shares = {cell: count / total for cell, count in sorted(served.rounds.items())}
    report(
        f"\n{name}: {total} rounds, {served.num_preempted} preemptions, "
        f"{served.num_cancelled} neighbours cancelled; share of (drafted, accepted): "
        + ", ".join(f"{cell} {share:.1%}" for cell, share in shares.items())
    )
    assert min(shares.values()) >= 0.05
    assert len(shares) >= 5
    assert served.num_preempted > 0
    assert served.num_cancelled > 0
    first = exact.law(MEASURED)
    chances = {
        "first four": chi_square(served.counts(0, MEASURED), first),
        "pair 1-2": chi_square(served.counts(0, 2), marginal(first, 0, 2)),
        "pair 2-3": chi_square(served.counts(1, 3), marginal(first, 1, 3)),
        "pair 3-4": chi_square(served.counts(2, 4), marginal(first, 2, 4)),
    }
    for accepted in (0, 1):
        chance = continuation(served, exact, accepted)
        # N-grams seldom match here, so that their first rounds are few.
        assert chance is not None or drafter is DrafterKind.NGRAM
        if chance is not None:
            chances[f"after {accepted} accepted"] = chance
    report(", ".join(f"{what} {chance:.3g}" for what, chance in chances.items()))
    assert min(chances.values()) > REJECT


def test_a_law_that_is_slightly_wrong_is_noticed() -> None:
    """The negative controls: a temperature of 1.05 in place of 1 for the joint law, and of 1.15 for
    continuations, of which there are fewer."""
    exact = ExactLaw(SamplingParams(temperature=1.0), MEASURED)
    served = serve(NUMBER, SamplingParams(temperature=1.05), AcceptRule.BLOCK, DrafterKind.MODEL)
    assert chi_square(served.counts(0, MEASURED), exact.law(MEASURED)) < REJECT
    served = serve(NUMBER, SamplingParams(temperature=1.15), AcceptRule.BLOCK, DrafterKind.MODEL)
    chance = continuation(served, exact, 0)
    assert chance is not None
    assert chance < REJECT


def report(line: str) -> None:
    sys.stdout.write(line + "\n")


def marginal(law: Law, start: int, end: int) -> Law:
    sums: Law = defaultdict(float)
    for sequence, probability in law.items():
        sums[sequence[start:end]] += probability
    return dict(sums)


def continuation(served: Served, exact: ExactLaw, accepted: int) -> float | None:
    """The token that opens the second round, given everything before it, where the first round
    accepted so many: one chi-square over all prefixes that occur often enough; None if those are
    too few."""
    found: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for output, first in zip(served.outputs, served.first_round, strict=True):
        if first is not None and first[0] == accepted and first[1] <= MEASURED:
            found[output[: first[1]]][output[first[1]]] += 1
    statistic, freedom = 0.0, 0
    for prefix, counts in found.items():
        law = exact.row_of(prefix)
        total = sum(counts.values())
        expected = law * total
        if any(counts[token] for token in range(VOCABULARY_SIZE) if law[token] == 0):
            return 0.0
        often = expected >= 5
        if often.sum() == 0 or total < 20:
            continue
        observed = np.array([counts[token] for token in range(VOCABULARY_SIZE)])
        rest = total - observed[often].sum(), total - expected[often].sum()
        statistic += float(((observed - expected) ** 2)[often] @ (1 / expected[often]))
        freedom += int(often.sum()) - 1
        if rest[1] >= 5:
            statistic += (rest[0] - rest[1]) ** 2 / rest[1]
            freedom += 1
        elif rest[1] > 1e-6:
            # Too rare for a cell of its own: left out, it unties the sum of the others.
            freedom += 1
    return None if freedom < 10 else float(stats.chi2.sf(statistic, freedom))
