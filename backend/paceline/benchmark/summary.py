"""From answers and counters to the figures of a cell: quantiles, medians, ratios.

A cell is one workload under one load in one mode, measured in several rounds.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from paceline.benchmark.counters import STAGES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.benchmark.counters import Counters
    from paceline.benchmark.traffic import Answer

QUANTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Run:
    """One round of a cell. pings_s: how long the server's event loop took to answer."""

    answers: list[Answer]
    counters: Counters
    pings_s: list[float]

    @property
    def tokens_per_second(self) -> float:
        """All answers' tokens by the time from the first request to the last end."""
        begin = min((answer.asked_at for answer in self.answers), default=0.0)
        end = max((answer.ended_at for answer in self.answers), default=0.0)
        tokens = sum(answer.num_tokens for answer in self.answers)
        return tokens / (end - begin) if end > begin else 0.0


@dataclass(slots=True)
class Cell:
    """runs: by round. ratios: to plain decoding in the same round, where that was measured."""

    workload: str
    load: str
    size: float
    mode: str
    runs: list[Run] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values. Times are milliseconds, with p50, p95 and p99; None where there is
        nothing to tell."""
        answers = [answer for run in self.runs for answer in run.answers]
        asked = [answer for answer in answers if not answer.is_extra]
        whole = [answer for answer in asked if answer.error is None]
        counters = self.runs[0].counters
        for run in self.runs[1:]:
            counters = counters.plus(run.counters)
        return {
            "workload": self.workload,
            "load": self.load,
            "size": self.size,
            "mode": self.mode,
            "rounds": len(self.runs),
            "requests": len(asked),
            "extra_requests": len(answers) - len(asked),
            "failed": dict(Counter(a.error for a in answers if a.error is not None)),
            "output_tokens": sum(answer.num_tokens for answer in answers),
            "prompt_tokens": sum(answer.num_prompt_tokens for answer in answers),
            "cached_prompt_tokens": sum(answer.num_cached_tokens for answer in answers),
            "tokens_per_second": median(run.tokens_per_second for run in self.runs),
            "ratio_to_plain": median(self.ratios) if self.ratios else None,
            "time_to_first_token_ms": spread_ms(a.first_token_s for a in whole),
            "time_per_output_token_ms": spread_ms(a.per_token_s for a in whole),
            "event_gap_ms": spread_ms(gap for a in whole for gap in a.gaps_s),
            "server_loop_ms": spread_ms(ping for run in self.runs for ping in run.pings_s),
            "tokens_per_step": _tokens_per_step(whole),
            "acceptance_by_depth": acceptance_by_depth(counters),
            "examined_by_depth": [int(count) for count in _trimmed(counters.examined)],
            "step_ms": step_ms(counters),
            "predicted_speedup": _predicted_speedup(whole),
            "ledger_ms": None if counters.ledger_level_s is None else counters.ledger_level_s * 1e3,
            "ledger_capacity_ms": None
            if counters.ledger_capacity_s is None
            else counters.ledger_capacity_s * 1e3,
            "break_even_rows": counters.break_even_rows,
        }


def quantile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least so many percent of them don't exceed. Raises ValueError for
    no values."""
    if not values:
        raise ValueError("no values have no quantile")
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread_ms(seconds: Iterable[float | None]) -> dict[str, float] | None:
    """p50, p95 and p99 in milliseconds of those that are known."""
    known = [second * 1e3 for second in seconds if second is not None]
    if not known:
        return None
    return {f"p{percent}": round(quantile(known, percent), 3) for percent in QUANTILES}


def acceptance_by_depth(counters: Counters) -> list[float]:
    """Passed over examined for each depth of the draft, as far as any was examined."""
    return [
        round(passed / examined, 4)
        for passed, examined in zip(counters.passed, counters.examined, strict=True)
        if examined
    ]


def step_ms(counters: Counters) -> dict[str, float] | None:
    """A step's mean time by stage; None if there was no step."""
    if counters.num_steps <= 0:
        return None
    return {
        stage: round(seconds / counters.num_steps * 1e3, 3)
        for stage, seconds in zip(STAGES, counters.stage_seconds, strict=True)
    }


def _tokens_per_step(answers: Iterable[Answer]) -> float | None:
    """Committed tokens for each target pass of a sequence."""
    tokens, passes = 0, 0.0
    for answer in answers:
        if answer.summary is not None and answer.summary.tokens_per_step:
            tokens += answer.num_tokens
            passes += answer.num_tokens / answer.summary.tokens_per_step
    return tokens / passes if passes else None


def _predicted_speedup(answers: Iterable[Answer]) -> float | None:
    """What plain decoding would have taken by the server's cost table over what was taken."""
    plain, taken = 0.0, 0.0
    for answer in answers:
        summary = answer.summary
        if summary is not None and summary.expected_plain_ms is not None:
            plain += summary.expected_plain_ms
            taken += summary.draft_ms + summary.verify_ms + summary.sample_ms + summary.other_ms
    return plain / taken if taken else None


def _trimmed(counts: Sequence[float]) -> list[float]:
    known = list(counts)
    while known and not known[-1]:
        known.pop()
    return known
