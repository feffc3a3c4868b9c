"""Acceptance estimates: unbiased, quick where it matters, quiet where not."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from paceline.core.controller_estimate import (
    OPTIMISM,
    Baseline,
    CellEstimate,
    SessionEstimate,
    survivals,
)


def observe(
    estimate: SessionEstimate, rate: float, baseline: float, count: int, rng: random.Random
) -> None:
    for _ in range(count):
        estimate.observe(float(rng.random() < rate), baseline, 1.0)


def test_an_unknown_session_is_hoped_for() -> None:
    estimate = SessionEstimate()
    assert estimate.rate(0.6) == pytest.approx(1 - 0.4 * (1 - OPTIMISM))


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.6, 0.9])
def test_a_steady_session_is_estimated_without_bias(rate: float) -> None:
    """Mean of 40 sessions after 300 positions: its standard error is below 0.006."""
    rng = random.Random(11)
    found = []
    for _ in range(40):
        estimate = SessionEstimate()
        observe(estimate, rate, 0.6, 300, rng)
        found.append(estimate.rate(0.6))
    assert fmean(found) == pytest.approx(rate, abs=0.035)


def test_a_collapse_is_followed_within_a_window() -> None:
    rng = random.Random(2)
    estimate = SessionEstimate()
    observe(estimate, 0.85, 0.6, 300, rng)
    observe(estimate, 0.1, 0.6, 40, rng)
    assert estimate.rate(0.6) < 0.4


def test_a_sudden_collapse_is_followed_within_a_few_positions() -> None:
    """In the mean of 40 sessions; a bad moment of a steady one changes little."""
    moments, collapses = [], []
    for seed in range(40):
        rng = random.Random(seed)
        estimate = SessionEstimate()
        observe(estimate, 0.85, 0.6, 300, rng)
        observe(estimate, 0.0, 0.6, 2, rng)
        moments.append(estimate.rate(0.6))
        observe(estimate, 0.0, 0.6, 5, rng)
        collapses.append(estimate.rate(0.6))
    assert fmean(moments) > 0.75
    assert fmean(collapses) < 0.5


def test_rates_stay_probabilities() -> None:
    for outcome in (0.0, 1.0):
        estimate = SessionEstimate()
        for _ in range(500):
            estimate.observe(outcome, 0.5, 1.0)
        assert 0.0 <= estimate.rate(0.999) <= 1.0
        assert 0.0 <= estimate.rate(0.001) <= 1.0


def test_nothing_examined_changes_nothing() -> None:
    estimate = SessionEstimate()
    estimate.observe(0.0, 0.0, 0.0)
    assert estimate.num_examined == 0.0


def test_the_baseline_is_a_mean_that_starts_from_its_prior() -> None:
    baseline = Baseline((0.5, 0.9), weight=10.0)
    for _ in range(10):
        baseline.observe(0, 1.0, 1.0)
    assert baseline.rates == [pytest.approx(0.75), 0.9]
    baseline.observe(1, 0.0, 0.0)
    assert baseline.rates[1] == 0.9


def test_survivals_are_running_products_that_follow_the_baselines_depths() -> None:
    estimate = SessionEstimate()
    estimate.observe(60.0, 50.0, 100.0)
    baseline = Baseline((0.9, 0.5, 0.4), weight=1.0)
    found = survivals(estimate, baseline, 0, 4, 2)
    rates = [estimate.rate(rate) for rate in (0.9, 0.5, 0.4, 0.4)]
    product = 1.0
    for survival, rate in zip(found, rates, strict=True):
        product *= rate
        assert survival == pytest.approx(product)


def test_chains_estimate_survival_with_every_position() -> None:
    """Chains c_j as observations: the session's rate is sum c_j over sum c_{j-1}."""
    rng = random.Random(4)
    estimate = SessionEstimate()
    baseline = Baseline((0.6,) * 4, weight=1e9)
    true = 0.7
    for _ in range(400):
        before, accepted, examined, expected = 1.0, 0.0, 0.0, 0.0
        for _ in range(4):
            # min(1, p / q) has the mean `true` and is never 0 or 1.
            after = before * min(1.0, max(0.0, rng.gauss(true, 0.1)))
            examined += before
            accepted += after
            expected += before * 0.6
            before = after
        estimate.observe(accepted, expected, examined)
    assert survivals(estimate, baseline, 0, 1, 3)[0] == pytest.approx(true, abs=0.03)


def test_cells_learn_apart() -> None:
    baseline = Baseline((0.5, 0.5), weight=1e9)
    estimate = CellEstimate(2)
    for _ in range(100):
        estimate.observe(0, is_accepted=False)
        estimate.observe(1, is_accepted=True)
    first = estimate.survivals(baseline, (0, 1))
    assert first[0] < 0.05
    assert first[1] / first[0] > 0.95
    assert estimate.survivals(baseline, (1,))[0] > 0.95
