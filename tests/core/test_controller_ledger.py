"""The ledger's bound holds over every interval, and gains are not saved up."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.controller_ledger import TOLERANCE, Ledger, plain_equivalent


def test_a_speculative_step_needs_room_for_its_worst_case() -> None:
    ledger = Ledger(capacity=0.05)
    assert ledger.has_room(1.03 * 0.1 + 0.0499, 0.1)
    assert not ledger.has_room(1.03 * 0.1 + 0.0501, 0.1)


def test_gains_stop_at_zero() -> None:
    ledger = Ledger(1.0, 0.2).after_speculative(0.1, 5.0)
    assert ledger.level == 0.0
    assert ledger.after_speculative(0.5, 0.1).level == 0.5 - TOLERANCE * 0.1


def test_plain_steps_leak_three_percent() -> None:
    ledger = Ledger(1.0, 0.5).after_plain(2.0)
    assert abs(ledger.level - (0.5 - 0.06)) < 1e-12


def test_plain_equivalent_counts_prefill_once() -> None:
    assert plain_equivalent(2.0, 0.1, 0.4) == pytest.approx(0.4 + 0.2)
    assert plain_equivalent(1.0, 0.1, 0.0) == pytest.approx(0.1)
    assert plain_equivalent(1.0, 0.0, 0.4) == 0.4


steps = st.lists(
    st.tuples(st.floats(0.01, 1.0), st.floats(1.0, 2.0), st.integers(0, 4), st.booleans()),
    max_size=60,
)


@given(steps)
def test_the_bound_holds_over_every_interval(
    script: list[tuple[float, float, int, bool]],
) -> None:
    """Whatever is accepted, time exceeds 1.03 times plain decoding's by at most the capacity."""
    ledger = Ledger(capacity=0.3)
    excesses = []
    for plain, slowdown, num_accepted, wants in script:
        speculates = wants and ledger.has_room(plain * slowdown, plain)
        if speculates:
            equivalent = plain_equivalent(1.0 + num_accepted, plain, 0.0)
            ledger = ledger.after_speculative(plain * slowdown, equivalent)
            excesses.append(plain * slowdown - TOLERANCE * equivalent)
        else:
            ledger = ledger.after_plain(plain)
            excesses.append(plain - TOLERANCE * plain)
        assert ledger.level <= ledger.capacity + 1e-9
    sums = [0.0, *itertools.accumulate(excesses)]
    for start, end in itertools.combinations(range(len(sums)), 2):
        assert sums[end] - sums[start] <= ledger.capacity + 1e-9


def test_an_adversary_cannot_spend_more_than_the_capacity() -> None:
    rng = random.Random(5)
    ledger = Ledger(capacity=0.2)
    spent = plain_total = 0.0
    for _ in range(5000):
        worst = 0.1 * rng.uniform(1.0, 1.6)
        if ledger.has_room(worst, 0.1):
            ledger = ledger.after_speculative(worst, 0.1)
            spent += worst
        else:
            ledger = ledger.after_plain(0.1)
            spent += 0.1
        plain_total += 0.1
    assert spent <= TOLERANCE * plain_total + 0.2 + 1e-9
    assert spent > 1.02 * plain_total, "an adversary that spends nothing tests nothing"
