"""The simulator in short form: regret, the ledger's bound, swings, and that a seed fixes all."""

from __future__ import annotations

from statistics import fmean

import pytest

from ops.bench.scenarios import SCENARIOS, Scenario, always_on, simulate, swing
from ops.bench.simulate import MOST_REGRET, SWING_SHORTFALL, median_rate


def test_regret_and_bound_over_the_scenario_set() -> None:
    """A small part of the full run. The regret of single scenarios varies; their mean is held."""
    regrets = []
    for scenario in SCENARIOS:
        report = simulate(scenario, 20, seed=1, judge_every=8)
        assert report.num_sessions == 20
        assert report.excess <= report.capacity + report.worst_step, scenario.name
        assert report.speedup > 0.97 - report.capacity / report.seconds, scenario.name
        regrets.append(report.regret)
    assert fmean(regrets) <= MOST_REGRET


def test_never_speculating_would_not_pass() -> None:
    """The oracle sees what a controller that does nothing leaves behind."""
    report = simulate(SCENARIOS[0], 10, seed=1, policy=always_on(0))
    assert report.regret > 0.2


@pytest.mark.parametrize("scenario", SCENARIOS[:2], ids=lambda scenario: scenario.name)
def test_a_seed_fixes_everything(scenario: Scenario) -> None:
    first, second = (simulate(scenario, 5, seed=3) for _ in range(2))
    assert first == second
    assert simulate(scenario, 5, seed=4) != first


def test_swings_lose_nothing_to_either_extreme() -> None:
    adaptive, on, off = (
        swing(policy, seed=2, seconds=40.0) for policy in (None, always_on(4), always_on(0))
    )
    for label in ("1 session", "48 sessions"):
        best = max(median_rate(on, label), median_rate(off, label))
        assert median_rate(adaptive, label) >= (1 - SWING_SHORTFALL) * best
    assert adaptive.load_flips <= 2 * len(adaptive.phases)
