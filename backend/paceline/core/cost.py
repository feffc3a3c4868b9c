"""What a step costs in time: a measured table, and what the running engine corrects in it.

    step = draft passes + target pass (rows, context) + sampling + verifying + everything else

The target pass is a table over rows, not a line: matrix kernels have steps and knees, and whether
one more row is free is the question that speculation depends on. Rows are rows: prefill rows count
like drafted ones, so the table knows nothing of requests. Times are seconds. No clock in here.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FORMAT = 2
_NUMBERS = ("format", "context_seconds", "sequence_seconds", "spread")

_WEIGHT = 0.05
_MOST_WEIGHT = 0.3
_CLIP = 1.5
_FADE = 0.01
_COMMON_WEIGHT = 0.1


class Curve:
    """Seconds against a count, from points: linear between them, the last slope beyond.

    A measured curve that falls somewhere was disturbed before, and a disturbance only ever adds
    time: no point is higher than any later one. Below the first point it is constant, and at a
    count of 0 it is 0.
    """

    def __init__(self, counts: Sequence[int], seconds: Sequence[float]) -> None:
        """Raises ValueError unless counts rise, from at least 1, and there is a time for each."""
        if not counts or len(counts) != len(seconds):
            raise ValueError("a curve needs as many seconds as counts, and at least one")
        if counts[0] < 1 or any(b <= a for a, b in zip(counts, counts[1:], strict=False)):
            raise ValueError(f"counts must rise from at least 1, got {tuple(counts)}")
        if not all(math.isfinite(second) and second >= 0 for second in seconds):
            raise ValueError(f"seconds must be finite and not negative, got {tuple(seconds)}")
        self.counts = tuple(counts)
        least = math.inf
        falling = []
        for second in reversed(seconds):
            least = min(least, second)
            falling.append(least)
        self.seconds = tuple(reversed(falling))
        self._dense = [0.0] + [self._between(count) for count in range(1, counts[-1] + 1)]

    def at(self, count: int) -> float:
        """Seconds for `count`."""
        if count < len(self._dense):
            return self._dense[count]
        return self._between(count)

    def dense(self, count: int) -> list[float]:
        """Seconds for 0, 1, .. at least `count`: for loops that cannot afford calls."""
        while len(self._dense) <= count:
            self._dense.append(self._between(len(self._dense)))
        return self._dense

    def _between(self, count: int) -> float:
        counts, seconds = self.counts, self.seconds
        if count <= counts[0] or len(counts) == 1:
            return seconds[0]
        right = min(bisect_left(counts, count), len(counts) - 1)
        left = right - 1
        slope = (seconds[right] - seconds[left]) / (counts[right] - counts[left])
        return seconds[left] + slope * (count - counts[left])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Curve):
            return NotImplemented
        return self.counts == other.counts and self.seconds == other.seconds

    def __hash__(self) -> int:
        return hash((self.counts, self.seconds))

    def __repr__(self) -> str:
        points = ", ".join(
            f"{count}: {second * 1e3:.3g} ms"
            for count, second in zip(self.counts, self.seconds, strict=True)
        )
        return f"Curve({points})"


NOTHING = Curve((1,), (0.0,))


@dataclass(frozen=True)
class CostTable:
    """Measured once for a model, dtype, device and number of threads.

    target: one target pass against its rows, all of one sequence, at next to no context.
    context_seconds: more for each token of context; sequence_seconds: for each further sequence.
    sample_greedy, sample_drawn: sampling against sequences that nothing was drafted for; verify_*:
    what acceptance takes more, against drafted tokens. draft_greedy, draft_drawn: one draft pass
    against its rows, with the sampling of one token each; None without a draft model. spread: by
    how much repeated measurements differed, 1 is not at all.
    """

    target: Curve
    context_seconds: float = 0.0
    sequence_seconds: float = 0.0
    sample_greedy: Curve = NOTHING
    sample_drawn: Curve = NOTHING
    verify_greedy: Curve = NOTHING
    verify_drawn: Curve = NOTHING
    draft_greedy: Curve | None = None
    draft_drawn: Curve | None = None
    spread: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them back."""
        curves = {
            name: None if curve is None else {"counts": curve.counts, "seconds": curve.seconds}
            for name, curve in self._curves().items()
        }
        return {
            "format": FORMAT,
            "context_seconds": self.context_seconds,
            "sequence_seconds": self.sequence_seconds,
            "spread": self.spread,
            **curves,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CostTable:
        """Raises ValueError for anything that `to_json` did not write."""
        try:
            if values["format"] != FORMAT:
                raise ValueError(f"cost tables of format {values['format']} are not read")
            curves = {
                name: None if points is None else Curve(points["counts"], points["seconds"])
                for name, points in values.items()
                if name not in _NUMBERS
            }
            return cls(
                context_seconds=float(values["context_seconds"]),
                sequence_seconds=float(values["sequence_seconds"]),
                spread=float(values["spread"]),
                **curves,  # type: ignore[arg-type]
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a cost table: {error}") from error

    def _curves(self) -> dict[str, Curve | None]:
        return {
            "target": self.target,
            "sample_greedy": self.sample_greedy,
            "sample_drawn": self.sample_drawn,
            "verify_greedy": self.verify_greedy,
            "verify_drawn": self.verify_drawn,
            "draft_greedy": self.draft_greedy,
            "draft_drawn": self.draft_drawn,
        }


class StepShape(NamedTuple):
    """All that the time of a step depends on.

    num_sequences: computed in it. num_rows: of the target pass (prefill, decoding and drafted).
    num_logits: rows that a token is sampled or verified on, num_drafted of them verified.
    context: known tokens of all its sequences together. is_drawn: some row is sampled, not greedy.
    draft_rows[i]: rows of the draft model's pass i, catching up included.
    """

    num_sequences: int
    num_rows: int
    num_logits: int
    context: int
    is_drawn: bool = False
    draft_rows: tuple[int, ...] = ()
    num_drafted: int = 0


class StageSeconds(NamedTuple):
    """Seconds of a step by stage."""

    draft: float
    target: float
    sample: float
    other: float

    @property
    def total(self) -> float:
        return self.draft + self.target + self.sample + self.other


class CostModel:
    """A cost table and its corrections. `observe` every step; the newest count most.

    Each stage has a factor, measured over predicted. The target's factor has two parts: one for
    all rows, which follows the machine (clocks, neighbours), and one for each range of rows. So
    the price of plain decoding stays true while nothing but speculative steps are run, up to what
    differs between their ranges; a real plain step now and then corrects that.
    """

    def __init__(self, table: CostTable) -> None:
        self.table = table
        self.draft_factor = 1.0
        self.sample_factor = 1.0
        self._target_factor = 1.0
        self._range_factors = [1.0] * (len(table.target.counts) + 1)
        self._last_visits = [0] * (len(table.target.counts) + 1)
        self._other: dict[int, float] = {}
        self._num_observed = 0

    @property
    def has_draft(self) -> bool:
        return self.table.draft_drawn is not None

    def stages(self, shape: StepShape) -> StageSeconds:
        """The predicted time of a step, by stage."""
        draft = 0.0
        curve = self.draft_curve(shape.is_drawn)
        for rows in shape.draft_rows:
            draft += curve.at(rows)
        return StageSeconds(
            draft * self.draft_factor,
            self.target_seconds(shape.num_rows, shape.context, shape.num_sequences),
            self.sample_seconds(shape),
            self.other_seconds(shape.num_sequences),
        )

    def step_seconds(self, shape: StepShape) -> float:
        """The predicted time of a step."""
        return self.stages(shape).total

    def target_seconds(self, num_rows: int, context: int, num_sequences: int = 1) -> float:
        """One target pass."""
        table = self.table
        extra = table.context_seconds * context + table.sequence_seconds * (num_sequences - 1)
        return (table.target.at(num_rows) + extra) * self.target_factor(num_rows)

    def target_range(self, base: StepShape, num_more: int) -> list[float]:
        """`target_seconds` of a step with 0, 1, .. num_more rows more, in one go."""
        first, last = base.num_rows, base.num_rows + num_more
        dense = self.table.target.dense(last)
        counts, factors, common = self.table.target.counts, self._range_factors, self._target_factor
        extra = self.table.context_seconds * base.context + self.table.sequence_seconds * (
            base.num_sequences - 1
        )
        where = self._range(first)
        end = counts[where] if where < len(counts) else last
        factor = common * factors[where]
        seconds = []
        highest = 0.0
        for rows in range(first, last + 1):
            if rows > end:
                where += 1
                end = counts[where] if where < len(counts) else last
                factor = common * factors[where]
            highest = max(highest, (dense[rows] + extra) * factor)
            seconds.append(highest)
        return seconds

    def target_factor(self, num_rows: int) -> float:
        """Measured over table for target passes of about so many rows."""
        return self._target_factor * self._range_factors[self._range(num_rows)]

    def sample_seconds(self, shape: StepShape) -> float:
        """Sampling and verifying."""
        table, drafted = self.table, shape.num_drafted
        sample = table.sample_drawn if shape.is_drawn else table.sample_greedy
        seconds = sample.at(shape.num_logits - drafted)
        if drafted:
            seconds += self.verify_curve(shape.is_drawn).at(drafted)
        return seconds * self.sample_factor

    def verify_curve(self, is_drawn: bool) -> Curve:
        """Uncorrected; `sample_factor` is for it too."""
        return self.table.verify_drawn if is_drawn else self.table.verify_greedy

    def draft_curve(self, is_drawn: bool) -> Curve:
        """Uncorrected; NOTHING without a draft model."""
        curve = self.table.draft_drawn if is_drawn else self.table.draft_greedy
        return NOTHING if curve is None else curve

    def draft_row_seconds(self, is_drawn: bool) -> float:
        """What one more row of a large draft pass takes, as when it catches up on a prompt."""
        curve = self.draft_curve(is_drawn)
        span = curve.counts[-1] - curve.counts[0]
        if not span:
            return 0.0
        return (curve.seconds[-1] - curve.seconds[0]) / span * self.draft_factor

    def other_seconds(self, num_sequences: int) -> float:
        """Bookkeeping of a step: as last seen at about so many sequences, or at the nearest."""
        if not self._other:
            return 0.0
        bucket = num_sequences.bit_length()
        known = self._other.get(bucket)
        if known is not None:
            return known
        nearest = min(self._other, key=lambda other: abs(other - bucket))
        return self._other[nearest]

    def observe(self, shape: StepShape, measured: StageSeconds) -> None:
        """A step took this long."""
        self._num_observed += 1
        predicted = self.stages(shape)
        if predicted.draft > 0 and measured.draft > 0:
            self.draft_factor *= _ratio(measured.draft, predicted.draft) ** _WEIGHT
        if predicted.sample > 0 and measured.sample > 0:
            self.sample_factor *= _ratio(measured.sample, predicted.sample) ** _WEIGHT
        if predicted.target > 0 and measured.target > 0:
            ratio = _ratio(measured.target, predicted.target)
            self._target_factor *= ratio**_COMMON_WEIGHT
            where = self._range(shape.num_rows)
            absent = self._num_observed - self._last_visits[where]
            weight = min(_MOST_WEIGHT, 1 - (1 - _WEIGHT) ** absent)
            self._last_visits[where] = self._num_observed
            # Fading towards 1 keeps the common part in the common factor.
            factor = self._range_factors[where] * ratio**weight
            self._range_factors[where] = factor ** (1 - _FADE)
        bucket = shape.num_sequences.bit_length()
        known = self._other.get(bucket)
        if known is None:
            self._other[bucket] = measured.other
        else:
            limited = min(measured.other, known * _CLIP + 1e-4)
            self._other[bucket] = known + _WEIGHT * (limited - known)

    def _range(self, num_rows: int) -> int:
        return bisect_left(self.table.target.counts, num_rows)


def _ratio(measured: float, predicted: float) -> float:
    """Clipped: a stall of the machine says nothing about the cost of rows."""
    return min(_CLIP, max(1 / _CLIP, measured / predicted))
