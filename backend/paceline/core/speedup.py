"""What a speculative step yields and what it costs: the arithmetic, and nothing else.

Symbols follow Leviathan et al., "Fast Inference from Transformers via Speculative Decoding"
(arXiv 2211.17192):

    alpha   acceptance rate: probability that one draft token is accepted, given that all
            before it were
    gamma   draft tokens proposed in a step
    c       draft cost ratio: time of one draft pass / time of one plain target step
    v       verify cost ratio: extra time of the target pass for each draft token it verifies,
            as a part of one plain target step. The paper sets v = 0 (purely memory-bound)
    s_j     survival of depth j: probability that the first j draft tokens are all accepted,
            the product of the conditional acceptances. With one alpha for all, s_j = alpha**j

Survivals are what the general formulas take, because real acceptance changes with depth: a
feature head loses some with every token, an n-gram match gains. This module knows neither
models nor devices nor time: times are arguments.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "BestDepth",
    "alpha_for_ratio",
    "alpha_for_tokens",
    "best_depth",
    "best_gamma",
    "break_even_alpha",
    "break_even_batch",
    "expected_tokens",
    "expected_tokens_iid",
    "guaranteed_speedup",
    "iid_survivals",
    "operations_factor",
    "speedup",
    "speedup_iid",
    "survivals_from_conditional",
]

_BISECTION_STEPS = 60  # halves [0, 1] down to below the spacing of float64


class BestDepth(NamedTuple):
    """The depth that commits most tokens a second. `gamma` 0 means: do not speculate."""

    gamma: int
    speedup: float


def _check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie between 0 and 1, got {value!r}")


def _check_gamma(gamma: int, least: int = 0) -> None:
    if gamma < least:
        raise ValueError(f"gamma must be at least {least}, got {gamma!r}")


def _check_cost(name: str, value: float) -> None:
    if not value >= 0.0 or math.isinf(value):
        raise ValueError(f"{name} must be a finite number and not negative, got {value!r}")


# ------------------------------------------------------------------------------- tokens


def iid_survivals(alpha: float, gamma: int) -> tuple[float, ...]:
    """Survivals `(alpha, alpha**2, ..., alpha**gamma)` of one acceptance rate for all depths."""
    _check_probability("alpha", alpha)
    _check_gamma(gamma)
    return tuple(alpha**depth for depth in range(1, gamma + 1))


def survivals_from_conditional(accept_probs: Sequence[float]) -> tuple[float, ...]:
    """Survivals from the acceptance at each depth given that the depths before were accepted."""
    survival = 1.0
    survivals = []
    for depth, accept_prob in enumerate(accept_probs, start=1):
        _check_probability(f"acceptance at depth {depth}", accept_prob)
        survival *= accept_prob
        survivals.append(survival)
    return tuple(survivals)


def expected_tokens(survivals: Sequence[float]) -> float:
    """Tokens committed by one step, at least 1: the accepted drafts and the token after them.

    `1 + s_1 + ... + s_gamma`. The sum of survivals is the expected number of accepted tokens
    for any acceptance, independent or not, so this holds where the closed form does not.
    """
    return 1.0 + math.fsum(survivals)


def expected_tokens_iid(alpha: float, gamma: int) -> float:
    """The closed form for one alpha: `(1 - alpha**(gamma + 1)) / (1 - alpha)`, equation (1)."""
    _check_probability("alpha", alpha)
    _check_gamma(gamma)
    if alpha == 1.0:
        return float(gamma + 1)
    return (1.0 - alpha ** (gamma + 1)) / (1.0 - alpha)


def alpha_for_tokens(tokens_per_step: float, gamma: int) -> float:
    """The alpha whose `expected_tokens_iid` is `tokens_per_step`: equation (1) solved for alpha.

    Raises:
        ValueError: no alpha gives it, that is, it lies outside 1 to gamma + 1.
    """
    _check_gamma(gamma, least=1)
    if not 1.0 <= tokens_per_step <= gamma + 1:
        raise ValueError(
            f"tokens_per_step must lie between 1 and gamma + 1 = {gamma + 1}, "
            f"got {tokens_per_step!r}"
        )
    low, high = 0.0, 1.0
    for _ in range(_BISECTION_STEPS):
        middle = (low + high) / 2.0
        if expected_tokens_iid(middle, gamma) < tokens_per_step:
            low = middle
        else:
            high = middle
    return high


def alpha_for_ratio(accepted_per_drafted: float, gamma: int) -> float:
    """The alpha behind an `accepted / drafted` figure measured at one fixed gamma.

    Many engines report accepted / drafted and call it acceptance. It is lower than alpha as
    soon as gamma exceeds 1, because drafts behind a rejection count as drafted although nobody
    tested them: alpha 0.7 shows as 0.44 at gamma 4.
    """
    _check_probability("accepted_per_drafted", accepted_per_drafted)
    return alpha_for_tokens(1.0 + gamma * accepted_per_drafted, gamma)


# ------------------------------------------------------------------------------- speed


def speedup(
    survivals: Sequence[float], draft_cost_ratio: float, verify_cost_ratio: float = 0.0
) -> float:
    """Wall-clock speedup over plain decoding: `(1 + sum s_j) / (1 + gamma (c + v))`.

    Theorem 3.8 with survivals for alpha and with the price v of each verified token, which the
    paper takes as 0. Below 1 the step loses time.
    """
    _check_cost("draft_cost_ratio", draft_cost_ratio)
    _check_cost("verify_cost_ratio", verify_cost_ratio)
    step_cost = 1.0 + len(survivals) * (draft_cost_ratio + verify_cost_ratio)
    return expected_tokens(survivals) / step_cost


def speedup_iid(
    alpha: float, gamma: int, draft_cost_ratio: float, verify_cost_ratio: float = 0.0
) -> float:
    """`speedup` for one alpha at all depths; with `verify_cost_ratio` 0 this is Theorem 3.8."""
    return speedup(iid_survivals(alpha, gamma), draft_cost_ratio, verify_cost_ratio)


def guaranteed_speedup(alpha: float, draft_cost_ratio: float) -> float | None:
    """The speedup that gamma = 1 already reaches if v = 0: `(1 + alpha) / (1 + c)`.

    Corollary 3.9: a gain exists exactly if alpha exceeds c, and it is at least this large.
    None if alpha does not exceed c.
    """
    _check_probability("alpha", alpha)
    _check_cost("draft_cost_ratio", draft_cost_ratio)
    if alpha <= draft_cost_ratio:
        return None
    return (1.0 + alpha) / (1.0 + draft_cost_ratio)


def operations_factor(alpha: float, gamma: int, draft_operations_ratio: float = 0.0) -> float:
    """How many times more arithmetic speculation does for each token it commits.

    `(1 - alpha)(gamma c' + gamma + 1) / (1 - alpha**(gamma + 1))` with c' the operations of a
    draft pass / those of a target pass of one token: Theorem 3.11. Where a device is bound by
    arithmetic and not by memory, this is the slowdown.
    """
    _check_cost("draft_operations_ratio", draft_operations_ratio)
    operations = gamma * draft_operations_ratio + gamma + 1
    return operations / expected_tokens_iid(alpha, gamma)


def best_depth(survivals: Sequence[float], step_seconds: Sequence[float]) -> BestDepth:
    """The best number of drafted tokens given the time of a step of each depth.

    Every prefix is tried. Stopping at the first depth that does not pay would be wrong where
    step time rises in jumps (matrix tiles, captured graph sizes): the next depths may be free.

    Args:
        survivals: s_1, s_2, ...
        step_seconds: time of a step with 0, 1, 2, ... draft tokens, drafting and verifying
            together; one entry more than `survivals`.
    """
    if len(step_seconds) != len(survivals) + 1:
        raise ValueError(
            f"step_seconds needs one entry more than survivals: "
            f"{len(survivals) + 1}, got {len(step_seconds)}"
        )
    if not all(seconds > 0.0 for seconds in step_seconds):
        raise ValueError("step_seconds must all be greater than 0")
    plain_rate = 1.0 / step_seconds[0]
    best = BestDepth(0, 1.0)
    tokens = 1.0
    for gamma, survival in enumerate(survivals, start=1):
        tokens += survival
        gain = tokens / step_seconds[gamma] / plain_rate
        if gain > best.speedup:
            best = BestDepth(gamma, gain)
    return best


def best_gamma(
    survivals: Sequence[float], draft_cost_ratio: float, verify_cost_ratio: float = 0.0
) -> BestDepth:
    """`best_depth` where every draft token costs the same `c + v`."""
    _check_cost("draft_cost_ratio", draft_cost_ratio)
    _check_cost("verify_cost_ratio", verify_cost_ratio)
    cost = draft_cost_ratio + verify_cost_ratio
    return best_depth(survivals, [1.0 + gamma * cost for gamma in range(len(survivals) + 1)])


# ------------------------------------------------------------------------------- break-even


def break_even_alpha(
    gamma: int, draft_cost_ratio: float, verify_cost_ratio: float = 0.0
) -> float | None:
    """The alpha at which drafting gamma tokens neither gains nor loses; None if none does.

    Solves `alpha + ... + alpha**gamma = gamma (c + v)`. For gamma = 1 it is simply `c + v`.
    """
    _check_gamma(gamma, least=1)
    _check_cost("draft_cost_ratio", draft_cost_ratio)
    _check_cost("verify_cost_ratio", verify_cost_ratio)
    cost = draft_cost_ratio + verify_cost_ratio
    if cost > 1.0:
        return None
    return alpha_for_tokens(1.0 + gamma * cost, gamma)


def break_even_batch(
    survival: float,
    *,
    fixed_seconds: float,
    row_seconds: float,
    draft_fixed_seconds: float = 0.0,
    draft_row_seconds: float = 0.0,
) -> float:
    """The batch from which one more draft token for every sequence no longer pays.

    A target step of N rows takes `a + b N`, a draft pass over B sequences `a_d + d B`. One
    draft token for each of B sequences commits s B tokens more and costs `a_d + d B + b B`;
    plain decoding would have needed `(a + b B) / B` a token. Equal at

        B* = (s a - a_d) / (b (1 - s) + d)

    Where a step's time has a knee, pass the tangent at the batch in question, not one line
    through everything.

    Returns:
        Sequences; 0 if it pays at no batch, infinity if at every batch.
    """
    _check_probability("survival", survival)
    for name, value in (
        ("fixed_seconds", fixed_seconds),
        ("row_seconds", row_seconds),
        ("draft_fixed_seconds", draft_fixed_seconds),
        ("draft_row_seconds", draft_row_seconds),
    ):
        _check_cost(name, value)
    gain = survival * fixed_seconds - draft_fixed_seconds
    if gain <= 0.0:
        return 0.0
    price = row_seconds * (1.0 - survival) + draft_row_seconds
    return gain / price if price > 0.0 else math.inf
