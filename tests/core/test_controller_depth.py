"""The per-step choice, against exhaustive search and at its edges."""

from __future__ import annotations

import itertools
import random

import pytest

from paceline.core.controller_depth import (
    DraftOffer,
    choose_depths,
    drafting_shape,
    plain_tokens,
    steady_gain,
    steady_seconds,
)
from paceline.core.cost import CostModel, CostTable, Curve, StepShape

KNEE = CostTable(
    target=Curve((1, 8, 16, 64), (0.024, 0.026, 0.030, 0.078)),
    sample_greedy=Curve((1, 64), (0.0002, 0.004)),
    verify_greedy=Curve((1, 64), (0.0001, 0.004)),
    draft_greedy=Curve((1, 64), (0.002, 0.005)),
    draft_drawn=Curve((1, 64), (0.002, 0.005)),
)
STEPPED = CostTable(target=Curve((1, 4, 5, 8, 9, 12), (1.0, 1.0, 1.4, 1.4, 1.8, 1.8)))
COMPUTE_BOUND = CostTable(target=Curve((1, 100), (0.001, 0.1)))


def geometric(rate: float, depth: int) -> list[float]:
    return [rate**j for j in range(1, depth + 1)]


def exhaustive(cost: CostModel, base: StepShape, tokens: float, offers: list[DraftOffer]) -> float:
    best = 0.0
    for counts in itertools.product(*(range(len(offer.survivals) + 1) for offer in offers)):
        seconds = cost.step_seconds(drafting_shape(base, offers, counts))
        gained = sum(
            sum(offer.survivals[:count]) for offer, count in zip(offers, counts, strict=True)
        )
        best = max(best, (tokens + gained) / seconds)
    return best


def test_the_time_told_is_that_of_the_step_chosen() -> None:
    rng = random.Random(4)
    cost = CostModel(KNEE)
    cost.draft_factor = 1.2
    for _ in range(60):
        count = rng.randint(1, 6)
        offers = [
            DraftOffer(geometric(rng.uniform(0.4, 0.95), rng.randint(1, 6)), rng.random() < 0.6, 1)
            for _ in range(count)
        ]
        base = StepShape(count, count + 2, count + 2, 10 * count, num_drafted=2, draft_rows=(2, 1))
        found = choose_depths(cost, base, float(count), offers)
        shape = drafting_shape(base, offers, found.counts)
        assert found.seconds == pytest.approx(cost.step_seconds(shape))


@pytest.mark.parametrize("table", [KNEE, STEPPED])
def test_within_a_hundredth_of_exhaustive_search(table: CostTable) -> None:
    rng = random.Random(9)
    cost = CostModel(table)
    has_draft = table.draft_greedy is not None
    for _ in range(60):
        count = rng.randint(1, 4)
        offers = [
            DraftOffer(
                geometric(rng.uniform(0.2, 0.95), rng.randint(0, 4)),
                uses_model=has_draft and rng.random() < 0.5,
            )
            for _ in range(count)
        ]
        base = StepShape(count, count + rng.randint(0, 4), count, 10 * count)
        found = choose_depths(cost, base, float(count), offers)
        assert found.rate >= 0.99 * exhaustive(cost, base, float(count), offers)
        shape = drafting_shape(base, offers, found.counts)
        assert found.seconds == pytest.approx(cost.step_seconds(shape))


def test_the_scan_looks_past_a_step_that_does_not_pay() -> None:
    """4 rows cost 1, the 5th lifts the cost to 1.4, and only with the 6th to 8th it pays."""
    cost = CostModel(STEPPED)
    base = StepShape(4, 4, 4, 0)
    offers = [DraftOffer([0.9]) for _ in range(4)]
    assert choose_depths(cost, base, 4.0, offers).counts == [1, 1, 1, 1]
    assert choose_depths(cost, base, 4.0, offers[:1]).counts == [0]


def test_compute_bound_is_where_nothing_is_drafted() -> None:
    cost = CostModel(COMPUTE_BOUND)
    found = choose_depths(cost, StepShape(8, 8, 8, 0), 8.0, [DraftOffer([0.9, 0.81])] * 8)
    assert found.counts == [0] * 8
    assert found.tokens == 8.0


def test_memory_bound_drafts_deep_and_more_for_who_accepts_more() -> None:
    cost = CostModel(KNEE)
    offers = [DraftOffer(geometric(0.9, 6), uses_model=True), DraftOffer(geometric(0.3, 6), True)]
    deep, shallow = choose_depths(cost, StepShape(2, 2, 2, 0), 2.0, offers).counts
    assert deep > shallow
    assert deep >= 3


def test_looked_up_drafts_are_free_where_rows_are() -> None:
    cost = CostModel(KNEE)
    base = StepShape(1, 1, 1, 0)
    looked_up = choose_depths(cost, base, 1.0, [DraftOffer(geometric(0.8, 16))])
    modelled = choose_depths(cost, base, 1.0, [DraftOffer(geometric(0.8, 16), uses_model=True)])
    assert looked_up.counts[0] > modelled.counts[0] > 0
    assert looked_up.rate > modelled.rate


def test_catching_up_is_a_price() -> None:
    cost = CostModel(KNEE)
    base = StepShape(1, 1, 1, 0)
    ready = DraftOffer(geometric(0.7, 6), uses_model=True, lag=1, horizon=32)
    assert choose_depths(cost, base, 1.0, [ready]).counts[0] > 0
    late = ready._replace(lag=5000, horizon=2)
    assert choose_depths(cost, base, 1.0, [late]).counts == [0]


def test_prefill_rows_do_not_make_drafts_look_cheap() -> None:
    """Beside a long prefill a drafted row is a small part of the step; it is worth it only if the
    token would have cost more by plain decoding."""
    cost = CostModel(COMPUTE_BOUND)
    base = StepShape(9, 60, 9, 0)
    worth = plain_tokens(cost, base, StepShape(8, 8, 8, 0), 8)
    assert worth == pytest.approx(60.0)
    assert choose_depths(cost, base, worth, [DraftOffer([0.9])] * 8).counts == [0] * 8
    assert any(choose_depths(cost, base, 8.0, [DraftOffer([0.9])] * 8).counts)


def test_survivals_of_nothing_are_not_drafted() -> None:
    found = choose_depths(CostModel(KNEE), StepShape(1, 1, 1, 0), 1.0, [DraftOffer([0.0, 0.0])])
    assert found.counts == [0]
    assert choose_depths(CostModel(KNEE), StepShape(1, 1, 1, 0), 1.0, []).counts == []


def test_steady_gain_is_that_of_everybody_drafting() -> None:
    cost = CostModel(KNEE)
    base = StepShape(2, 2, 2, 0)
    seconds = steady_seconds(cost, base, 3, uses_model=True)
    for depth in range(4):
        offers = [DraftOffer(geometric(0.7, 3), uses_model=True)] * 2
        shape = drafting_shape(base, offers, [depth, depth])
        assert seconds[depth] == pytest.approx(cost.step_seconds(shape))
    expected = max((1 + sum(geometric(0.7, d))) * seconds[0] / seconds[d] for d in range(4))
    assert steady_gain(geometric(0.7, 3), seconds) == pytest.approx(expected)
    assert steady_gain([0.01], seconds) == 1.0
