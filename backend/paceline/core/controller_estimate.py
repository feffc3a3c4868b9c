"""How likely the next drafted tokens are accepted: per session, against a shared baseline.

The baseline is a table shared by all sessions: by temperature and depth for a draft model (a head
loses acceptance with depth), by length of the match for n-grams (a long match goes on). A session
differs from it by a factor that is estimated three times, over about 256, 32 and 8 examined
positions, from a prior. The slow estimate is used until the fast one differs by more than chance,
and the newest positions alone where they are worse than both by far more: steady sessions have
quiet estimates, changes are followed, and a collapse at once.

Observations are fractions. For a drafted position j the chain c_j, the running product of
min(1, target / draft) (the clamped one under block verification), has the survival s_j as its
expectation; position j was then examined with weight c_{j-1} and accepted with weight c_j. These
use every drafted position, also those behind a rejection, and have less variance than zeros and
ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FAST = 32
SLOW = 256
NEWEST = 8
PRIOR = 8.0
OPTIMISM = 0.15

_BASELINE_MEMORY = 4096.0
# Standard errors that a shorter memory must differ by, to be believed.
_SURPRISE = 1.5
_SHOCK = 2.5
_LEAST_FAST = 12.0
_NEWEST_PRIOR = 2.0
_MOST = 0.995
_CELL_MEMORY = 64.0
_CELL_PRIOR = 4.0


class Baseline:
    """Acceptance rates of numbered cells, shared by all sessions.

    priors: where each cell starts, worth `weight` observations.
    """

    def __init__(self, priors: Sequence[float], weight: float) -> None:
        self.rates = list(priors)
        self._weights = [weight] * len(self.rates)

    def observe(self, cell: int, accepted: float, examined: float) -> None:
        """Fractions of positions; the oldest ones fade after some thousands."""
        if examined <= 0.0:
            return
        weight = self._weights[cell] + examined
        self.rates[cell] += (accepted - examined * self.rates[cell]) / weight
        self._weights[cell] = min(weight, _BASELINE_MEMORY)


@dataclass(slots=True)
class _Memory:
    """Faded sums: what was accepted, what the baseline expected, what was examined."""

    length: int
    accepted: float = 0.0
    expected: float = 0.0
    examined: float = 0.0

    def add(self, accepted: float, expected: float, examined: float) -> None:
        keep = max(0.0, 1.0 - examined / self.length)
        self.accepted = self.accepted * keep + accepted
        self.expected = self.expected * keep + expected
        self.examined = self.examined * keep + examined

    @property
    def rate(self) -> float:
        return self.accepted / self.examined if self.examined else 0.0

    def errors_above(self, other: _Memory) -> float:
        """How many standard errors of its own it is above `other`."""
        # Both rates are made comparable by what the baseline expected at their positions.
        rate = other.rate
        shift = (self.accepted - self.expected) / self.examined - (
            rate - other.expected / other.examined
        )
        return shift / math.sqrt(max(rate * (1.0 - rate), 0.02) / self.examined)


class SessionEstimate:
    """One session's deviation from a baseline: `worse` scales successes, `better` failures.

    A session of which little is known is taken for better than the mean, since nobody finds out
    about a session that never drafts. The optimism fades as it is examined.
    """

    __slots__ = ("_fast", "_newest", "_slow", "better", "worse")

    def __init__(self) -> None:
        self._fast = _Memory(FAST)
        self._slow = _Memory(SLOW)
        self._newest = _Memory(NEWEST)
        self.worse = 1.0
        self.better = 1.0 - OPTIMISM

    @property
    def num_examined(self) -> float:
        """Positions behind the slow estimate."""
        return self._slow.examined

    def observe(self, accepted: float, expected: float, examined: float) -> None:
        """expected: the baseline's rates at those positions, weighted alike."""
        if examined <= 0.0:
            return
        self._fast.add(accepted, expected, examined)
        self._slow.add(accepted, expected, examined)
        self._newest.add(accepted, expected, examined)
        memory, prior = self._slow, PRIOR
        if self._fast.examined >= _LEAST_FAST:
            if abs(self._fast.errors_above(memory)) > _SURPRISE:
                memory = self._fast
            is_shock = self._newest.errors_above(self._slow) < -_SHOCK
            if is_shock and self._newest.errors_above(memory) < -1.0:
                memory, prior = self._newest, _NEWEST_PRIOR
        self._compare(memory, prior)

    def rate(self, baseline_rate: float) -> float:
        """This session's acceptance where the baseline's is `baseline_rate`."""
        return min(_MOST, 1.0 - (1.0 - baseline_rate * self.worse) * self.better)

    def _compare(self, memory: _Memory, prior_weight: float) -> None:
        """Where less was accepted than expected, successes are scaled down; where more was,
        failures are. So every rate stays between 0 and 1, and no deviation changes nothing."""
        mean = memory.expected / memory.examined
        prior = prior_weight * mean
        hope = 1.0 - OPTIMISM * PRIOR / (PRIOR + self._slow.examined)
        if memory.accepted <= memory.expected:
            self.worse = (memory.accepted + prior) / (memory.expected + prior)
            self.better = hope
        else:
            prior = prior_weight * (1.0 - mean) + 1e-9
            missed = memory.examined - memory.accepted
            self.worse = 1.0
            failures = (missed + prior) / (memory.examined - memory.expected + prior)
            self.better = hope * failures


class CellEstimate:
    """One session's acceptance cell by cell, each pulled towards the baseline.

    For n-grams, which are scored for nothing on every emitted token: what a short match is worth
    differs more between sessions than what a long one is, so one factor would not do.
    """

    __slots__ = ("_accepted", "_examined")

    def __init__(self, num_cells: int) -> None:
        self._accepted = [0.0] * num_cells
        self._examined = [0.0] * num_cells

    def observe(self, cell: int, is_accepted: bool) -> None:
        keep = 1.0 - 1.0 / _CELL_MEMORY
        self._accepted[cell] = self._accepted[cell] * keep + is_accepted
        self._examined[cell] = self._examined[cell] * keep + 1.0

    def survivals(self, baseline: Baseline, cells: Sequence[int]) -> list[float]:
        """As `survivals`. cells: of the first, second, .. drafted token."""
        result = []
        survival = 1.0
        for cell in cells:
            prior = _CELL_PRIOR * baseline.rates[cell]
            rate = (self._accepted[cell] + prior) / (self._examined[cell] + _CELL_PRIOR)
            survival *= _MOST if rate > _MOST else rate
            result.append(survival)
        return result


def survivals(
    estimate: SessionEstimate, baseline: Baseline, first_cell: int, depth: int, last_cell: int
) -> list[float]:
    """Probabilities that the first 1 .. depth drafted tokens are all accepted.

    The cell moves on by one with each depth, up to `last_cell`.
    """
    rates, worse, better = baseline.rates, estimate.worse, estimate.better
    result = []
    survival = 1.0
    cell = first_cell
    for _ in range(depth):
        rate = 1.0 - (1.0 - rates[cell] * worse) * better
        survival *= _MOST if rate > _MOST else rate
        result.append(survival)
        if cell < last_cell:
            cell += 1
    return result
