"""The laws that sampling must follow, written a second time: float64, one row at a time, by the
textbook, sharing no code with Paceline. Slow on purpose.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    Row = npt.NDArray[np.float64]
    RowOf = Callable[[tuple[int, ...]], Row]
    Law = dict[tuple[int, ...], float]


def edited(
    logits: Row,
    prompt: Sequence[int],
    output: Sequence[int],
    *,
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    bias: Mapping[int, float] | None = None,
    banned: Sequence[int] = (),
    stops: Sequence[int] = (),
    min_tokens: int = 0,
) -> Row:
    """Logits of the token after prompt and output, with everything but temperature and cuts."""
    row = [float(value) for value in logits]
    for token in {*prompt, *output}:
        row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
    for token, count in Counter(output).items():
        row[token] -= presence + frequency * count
    for token, value in (bias or {}).items():
        row[token] += value
    for token in banned:
        row[token] = -math.inf
    if len(output) < min_tokens:
        for token in stops:
            row[token] = -math.inf
    return np.array(row)


def warped(
    logits: Row, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Row:
    """The law of a token: temperature, top-k, top-p, min-p in this order, ties at a cut kept."""
    row = np.array(logits, dtype=np.float64)
    if temperature == 0:
        law = np.zeros(len(row))
        law[list(row).index(max(row))] = 1.0
        return law
    row = row / temperature
    if top_k:
        cut = sorted(row, reverse=True)[min(top_k, len(row)) - 1]
        row[row < cut] = -math.inf
    law = np.exp(row - max(row))
    law /= law.sum()
    if top_p < 1:
        mass = 0.0
        for value in sorted(law, reverse=True):
            cut = value
            mass += value
            if mass >= top_p:
                break
        law[law < cut] = 0.0
        law /= law.sum()
    law[law < min_p * max(law)] = 0.0
    return np.asarray(law / law.sum())


def joint_law(row_of: RowOf, length: int, vocabulary_size: int) -> Law:
    """Probability of each sequence of `length` tokens; row_of(prefix) is the law of the next."""
    law: Law = {}
    for sequence in itertools.product(range(vocabulary_size), repeat=length):
        probability = 1.0
        for index, token in enumerate(sequence):
            probability *= row_of(sequence[:index])[token]
        law[sequence] = probability
    return law


def continue_law(partial: Law, row_of: RowOf, length: int, vocabulary_size: int) -> Law:
    """Prolong outputs of different lengths to `length` tokens by the target's own law."""
    law: Law = dict.fromkeys(itertools.product(range(vocabulary_size), repeat=length), 0.0)
    for output, weight in partial.items():
        rest = length - len(output)
        tails = itertools.product(range(vocabulary_size), repeat=max(rest, 0))
        for tail in tails:
            sequence = (*output, *tail)[:length]
            probability = weight
            for index in range(len(output), length):
                probability *= row_of(sequence[:index])[sequence[index]]
            law[sequence] += probability
    return law


def total_variation(left: Law, right: Law) -> float:
    keys = {*left, *right}
    return 0.5 * sum(abs(left.get(key, 0.0) - right.get(key, 0.0)) for key in keys)


def expected_accepted(target_of: RowOf, draft_of: RowOf, depth: int, rule: str) -> float:
    """Mean number of accepted tokens of a round that drafts `depth`, by the token or block rule."""

    def walk(prefix: tuple[int, ...], probability: float, chain: float) -> float:
        if len(prefix) == depth:
            return 0.0
        target, draft = target_of(prefix), draft_of(prefix)
        total = 0.0
        for token, draft_prob in enumerate(draft):
            if draft_prob > 0:
                ratio = target[token] / draft_prob
                value = chain * min(1, ratio) if rule == "token" else min(1, chain * ratio)
                weight = probability * draft_prob
                # P(at least this many accepted | drafted tokens) is `value` under either rule.
                total += weight * value + walk((*prefix, token), weight, value)
        return total

    return walk((), 1.0, 1.0)


def chi_square(observed: Mapping[tuple[int, ...], int], law: Law) -> float:
    """Probability of counts as far from the law as these, or farther, were the law right.

    Cells are merged, rarest first, until each expects 5 or more. A count in a cell that the law
    calls impossible gives 0.
    """
    total = sum(observed.values())
    expected: list[float] = []
    counts: list[int] = []
    spare_expected, spare_count = 0.0, 0
    for key, probability in sorted(law.items(), key=lambda item: item[1]):
        count = observed.get(key, 0)
        if probability < 1e-12:
            if count:
                return 0.0
            continue
        spare_expected += probability * total
        spare_count += count
        if spare_expected >= 5:
            expected.append(spare_expected)
            counts.append(spare_count)
            spare_expected, spare_count = 0.0, 0
    if any(key not in law for key in observed):
        return 0.0
    if spare_expected and expected:
        expected[-1] += spare_expected
        counts[-1] += spare_count
    if len(expected) < 2:
        return 1.0
    statistic = sum((c - e) ** 2 / e for c, e in zip(counts, expected, strict=True))
    return float(stats.chi2.sf(statistic, len(expected) - 1))
