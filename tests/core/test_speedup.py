"""The arithmetic of speculation against the tables that were published about it."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import speedup as su

# Leviathan et al., table 1: alpha, gamma, arithmetic operations, speed; c = c' = 0.
LEVIATHAN_TABLE_1 = [
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
]

# The same paper's expected improvement for T5-XXL: task and draft, c, alpha, gamma, expected.
LEVIATHAN_EXPECTED = [
    ("EnDe small T=0", 0.02, 0.75, 7, 3.2),
    ("EnDe base T=0", 0.04, 0.80, 7, 3.3),
    ("EnDe large T=0", 0.11, 0.82, 7, 2.5),
    ("EnDe small T=1", 0.02, 0.62, 7, 2.3),
    ("EnDe base T=1", 0.04, 0.68, 5, 2.4),
    ("EnDe large T=1", 0.11, 0.71, 3, 2.0),
    ("CNNDM small T=0", 0.02, 0.65, 5, 2.4),
    ("CNNDM base T=0", 0.04, 0.73, 5, 2.6),
    ("CNNDM large T=0", 0.11, 0.74, 3, 2.0),
    ("CNNDM small T=1", 0.02, 0.53, 5, 1.9),
    ("CNNDM base T=1", 0.04, 0.55, 3, 1.8),
    ("CNNDM large T=1", 0.11, 0.56, 3, 1.6),
]

# Best gamma and speedup with a price for verification: v, c, {alpha: (gamma, speedup)}.
BEST_GAMMA = [
    (
        0.03,
        0.07,
        {
            0.4: (2, 1.30),
            0.5: (2, 1.46),
            0.6: (3, 1.67),
            0.7: (4, 1.98),
            0.8: (6, 2.47),
            0.9: (10, 3.43),
        },
    ),
    (
        0.06,
        0.07,
        {
            0.4: (1, 1.24),
            0.5: (2, 1.39),
            0.6: (3, 1.57),
            0.7: (4, 1.82),
            0.8: (5, 2.24),
            0.9: (8, 3.00),
        },
    ),
    (
        0.12,
        0.07,
        {
            0.4: (1, 1.18),
            0.5: (2, 1.27),
            0.6: (2, 1.42),
            0.7: (3, 1.61),
            0.8: (4, 1.91),
            0.9: (7, 2.44),
        },
    ),
    (
        0.24,
        0.07,
        {
            0.4: (1, 1.07),
            0.5: (1, 1.15),
            0.6: (1, 1.22),
            0.7: (2, 1.35),
            0.8: (3, 1.53),
            0.9: (5, 1.84),
        },
    ),
    (
        0.06,
        0.25,
        {
            0.4: (1, 1.07),
            0.5: (1, 1.15),
            0.6: (1, 1.22),
            0.7: (2, 1.35),
            0.8: (3, 1.53),
            0.9: (5, 1.84),
        },
    ),
    (
        0.12,
        0.0,
        {
            0.4: (2, 1.26),
            0.5: (2, 1.41),
            0.6: (3, 1.60),
            0.7: (4, 1.87),
            0.8: (5, 2.31),
            0.9: (9, 3.13),
        },
    ),
]
BEST_GAMMA_CELLS = [
    (verify, draft, alpha, gamma, gain)
    for verify, draft, cells in BEST_GAMMA
    for alpha, (gamma, gain) in cells.items()
]

alphas = st.floats(0.0, 1.0)
gammas = st.integers(0, 16)
costs = st.floats(0.0, 2.0)


@pytest.mark.parametrize(("alpha", "gamma", "operations", "speed"), LEVIATHAN_TABLE_1)
def test_leviathan_table_1(alpha: float, gamma: int, operations: float, speed: float) -> None:
    assert round(su.speedup_iid(alpha, gamma, 0.0), 2) == speed
    assert round(su.operations_factor(alpha, gamma, 0.0), 2) == operations


@pytest.mark.parametrize(("case", "cost", "alpha", "gamma", "expected"), LEVIATHAN_EXPECTED)
def test_leviathan_expected_improvement(
    case: str, cost: float, alpha: float, gamma: int, expected: float
) -> None:
    # The paper rounds alpha to two digits before it prints, so one unit of its last digit.
    assert su.speedup_iid(alpha, gamma, cost) == pytest.approx(expected, abs=0.1), case


@pytest.mark.parametrize(("verify", "draft", "alpha", "gamma", "gain"), BEST_GAMMA_CELLS)
def test_best_gamma_table(
    verify: float, draft: float, alpha: float, gamma: int, gain: float
) -> None:
    best = su.best_gamma(su.iid_survivals(alpha, 16), draft, verify)
    assert best.gamma == gamma
    assert round(best.speedup, 2) == pytest.approx(gain, abs=0.0051)


@pytest.mark.parametrize(
    ("published", "gamma", "draft_ms", "target_ms", "alpha"),
    [(1.92, 4, 1.8, 14.1, 0.72), (2.01, 4, 1.8, 14.1, 0.75), (2.46, 4, 1.8, 14.1, 0.85)],
)
def test_chen_speedups_imply_believable_acceptance(
    published: float, gamma: int, draft_ms: float, target_ms: float, alpha: float
) -> None:
    """Chinchilla 70B with a 4B draft: XSum nucleus, XSum greedy, HumanEval."""
    cost = draft_ms / target_ms
    implied = su.alpha_for_tokens(published * (1 + gamma * cost), gamma)
    assert implied == pytest.approx(alpha, abs=0.006)
    assert su.speedup_iid(implied, gamma, cost) == pytest.approx(published)


@pytest.mark.parametrize("alpha", [0.65, 0.7, 0.75, 0.8])
@pytest.mark.parametrize("draft", [0.03, 0.05])
def test_rule_of_thumb_when_memory_bound(alpha: float, draft: float) -> None:
    """A good small draft, verified tokens almost free, up to 5 drafted: 1.8x to 3.2x."""
    best = su.best_gamma(su.iid_survivals(alpha, 5), draft, 0.02)
    assert best.gamma >= 3
    assert 1.8 <= best.speedup <= 3.2


def test_rule_of_thumb_when_compute_bound() -> None:
    """Each verified row costs a plain row: the best is about 1x, and any fixed depth loses."""
    survivals = su.iid_survivals(0.8, 8)
    assert su.best_gamma(survivals, 0.05, 1.0) == su.BestDepth(0, 1.0)
    assert su.speedup(survivals[:4], 0.05, 1.0) < 0.7


def test_a_poor_draft_loses() -> None:
    assert su.speedup_iid(0.3, 4, 0.25, 0.06) < 0.7
    assert su.best_gamma(su.iid_survivals(0.3, 8), 0.25, 0.06).gamma == 0
    assert su.guaranteed_speedup(0.25, 0.3) is None


def test_corollary_3_9() -> None:
    assert su.guaranteed_speedup(0.6, 0.1) == pytest.approx(1.6 / 1.1)
    assert su.guaranteed_speedup(0.1, 0.1) is None


def test_the_ratio_trap() -> None:
    """accepted / drafted falls with gamma although the draft is as good as ever."""
    for gamma, ratio in ((1, 0.70), (2, 0.59), (3, 0.51), (4, 0.44), (8, 0.27)):
        accepted = su.expected_tokens_iid(0.7, gamma) - 1
        assert round(accepted / gamma, 2) == pytest.approx(ratio, abs=0.0101)
        assert su.alpha_for_ratio(accepted / gamma, gamma) == pytest.approx(0.7)
    for gamma, alpha in ((1, 0.40), (2, 0.525), (3, 0.607), (4, 0.666), (6, 0.742), (8, 0.791)):
        assert su.alpha_for_ratio(0.4, gamma) == pytest.approx(alpha, abs=6e-4)


@given(alphas, gammas)
def test_closed_form_equals_sum_of_survivals(alpha: float, gamma: int) -> None:
    closed = su.expected_tokens_iid(alpha, gamma)
    assert closed == pytest.approx(su.expected_tokens(su.iid_survivals(alpha, gamma)), rel=1e-9)
    assert 1.0 <= closed <= gamma + 1 + 1e-9


@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_alpha_for_tokens_inverts_equation_1(alpha: float, gamma: int) -> None:
    tokens = su.expected_tokens_iid(alpha, gamma)
    assert su.alpha_for_tokens(tokens, gamma) == pytest.approx(alpha, abs=1e-9)


@given(st.lists(alphas, max_size=10))
def test_survivals_never_rise(accept_probs: list[float]) -> None:
    survivals = su.survivals_from_conditional(accept_probs)
    assert len(survivals) == len(accept_probs)
    assert all(deep <= shallow for shallow, deep in zip(survivals, survivals[1:], strict=False))


@given(st.lists(alphas, min_size=1, max_size=8), costs, costs)
def test_best_gamma_is_the_best_of_all(
    accept_probs: list[float], draft: float, verify: float
) -> None:
    survivals = su.survivals_from_conditional(accept_probs)
    best = su.best_gamma(survivals, draft, verify)
    every = [su.speedup(survivals[:gamma], draft, verify) for gamma in range(len(survivals) + 1)]
    assert best.speedup == pytest.approx(max(every), rel=1e-12)
    assert best.speedup >= 1.0


def test_expected_tokens_by_simulation() -> None:
    """Draw real accept chains; 200,000 of them keep the mean within five standard errors."""
    accept_probs = (0.8, 0.6, 0.5)
    source = random.Random(7)
    rounds = 200_000
    total = 0
    for _ in range(rounds):
        for accept_prob in accept_probs:
            total += 1
            if source.random() >= accept_prob:
                break
        else:
            total += 1
    expected = su.expected_tokens(su.survivals_from_conditional(accept_probs))
    assert total / rounds == pytest.approx(expected, abs=5 * 1.2 / math.sqrt(rounds))


def test_best_depth_looks_past_a_step_in_the_cost() -> None:
    """Depth 1 does not pay on a stepped table, depth 3 does: scanning must not stop early."""
    survivals = su.iid_survivals(0.8, 3)
    stepped = [1.0, 1.9, 1.9, 1.9]
    assert su.best_depth(survivals, stepped).gamma == 3
    assert su.best_depth(survivals[:1], stepped[:2]) == su.BestDepth(0, 1.0)


def test_break_even_alpha() -> None:
    assert su.break_even_alpha(1, 0.07, 0.06) == pytest.approx(0.13)
    alpha = su.break_even_alpha(4, 0.07, 0.06)
    assert alpha is not None
    assert su.speedup_iid(alpha, 4, 0.07, 0.06) == pytest.approx(1.0)
    assert su.break_even_alpha(2, 0.9, 0.2) is None


@pytest.mark.parametrize(
    ("survival", "cheap_draft", "dear_draft"),
    [(0.4, 6.9, 4.4), (0.6, 14.4, 8.0), (0.7, 21.0, 10.5), (0.8, 32.0, 13.7)],
)
def test_break_even_batch_table(survival: float, cheap_draft: float, dear_draft: float) -> None:
    """12 free rows, draft row a tenth and a half of a target row."""
    for draft_row, expected in ((0.1, cheap_draft), (0.5, dear_draft)):
        batch = su.break_even_batch(
            survival, fixed_seconds=12.0, row_seconds=1.0, draft_row_seconds=draft_row
        )
        assert batch == pytest.approx(expected, abs=0.06)


def test_break_even_batch_is_where_the_rates_meet() -> None:
    """Exact rationals: at B* the step with one draft token commits as fast as the plain one."""
    s, a, b, a_d, d = (Fraction(x) for x in ("0.7", "10", "0.8", "1.5", "0.1"))
    batch = (s * a - a_d) / (b * (1 - s) + d)
    plain = batch / (a + b * batch)
    drafted = batch * (1 + s) / (a + 2 * b * batch + a_d + d * batch)
    assert plain == drafted
    got = su.break_even_batch(
        0.7,
        fixed_seconds=10.0,
        row_seconds=0.8,
        draft_fixed_seconds=1.5,
        draft_row_seconds=0.1,
    )
    assert got == pytest.approx(float(batch))


def test_break_even_batch_at_its_ends() -> None:
    never = su.break_even_batch(
        0.3, fixed_seconds=1.0, row_seconds=0.1, draft_fixed_seconds=0.5, draft_row_seconds=0.0
    )
    always = su.break_even_batch(1.0, fixed_seconds=1.0, row_seconds=0.1)
    assert never == 0.0
    assert always == math.inf


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: su.iid_survivals(1.1, 3), "alpha"),
        (lambda: su.expected_tokens_iid(0.5, -1), "gamma"),
        (lambda: su.survivals_from_conditional([0.5, -0.1]), "depth 2"),
        (lambda: su.alpha_for_tokens(6.0, 4), "tokens_per_step"),
        (lambda: su.alpha_for_ratio(1.2, 4), "accepted_per_drafted"),
        (lambda: su.speedup([0.5], -0.1), "draft_cost_ratio"),
        (lambda: su.speedup([0.5], 0.1, math.nan), "verify_cost_ratio"),
        (lambda: su.best_depth([0.5], [1.0]), "step_seconds"),
        (lambda: su.best_depth([0.5], [1.0, 0.0]), "step_seconds"),
        (lambda: su.break_even_alpha(0, 0.1), "gamma"),
        (lambda: su.break_even_batch(0.5, fixed_seconds=-1.0, row_seconds=0.1), "fixed_seconds"),
    ],
)
def test_bad_numbers_are_named(call: object, word: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError, match=word):
        call()
