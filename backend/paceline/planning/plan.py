"""What speculation will bring for one pair on one machine, before anything runs.

`make_plan` is pure: the same setup gives the same plan. It uses the same arithmetic as the
running server does (`paceline.core.speedup`), fed with predicted times where the server has
measured ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.speedup import alpha_for_tokens, best_depth, expected_tokens
from paceline.planning.memory import MemoryPlan, plan_memory
from paceline.planning.roofline import PlacedModel
from paceline.planning.verdict import Verdict, judge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.planning.acceptance import AcceptanceProfile
    from paceline.planning.devices import Device
    from paceline.planning.precision import Precision
    from paceline.planning.shape import ModelShape
    from paceline.planning.sources import DraftSource

WORTH_IT = 1.03
"""Least speedup that counts: below it, measurement noise and bookkeeping eat the gain."""

_LARGEST_BATCH = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One question to the planner. Lengths are in tokens."""

    target: ModelShape
    target_precision: Precision
    draft: DraftSource
    draft_precision: Precision
    device: Device
    acceptance: AcceptanceProfile
    num_devices: int = 1
    draft_devices: int | None = None
    kv_element_bytes: int = 2
    batches: tuple[int, ...] = (1, 4, 16, 64)
    context: int = 2048
    max_gamma: int = 6
    memory_fraction: float = 0.9

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1:
            raise ConfigError("batch sizes must be at least 1", field="batch")
        if self.context < 1:
            raise ConfigError("context must be at least 1 token", field="context")
        if self.num_devices < 1:
            raise ConfigError("devices must be at least 1", field="devices")
        if not 1 <= self.max_gamma <= 32:
            raise ConfigError("max-gamma must lie between 1 and 32", field="max_gamma")
        if not 0.0 < self.memory_fraction <= 1.0:
            raise ConfigError("memory-fraction must lie in (0, 1]", field="memory_fraction")
        if self.draft_devices not in (None, 1, self.num_devices):
            raise ConfigError(
                f"draft-devices must be 1 or as many as the target has ({self.num_devices})",
                field="draft_devices",
            )


@dataclass(frozen=True, slots=True)
class GammaCell:
    """One depth at one batch size. Rates are of all sequences together."""

    gamma: int
    tokens_per_step: float
    step_ms: float
    tokens_per_s: float
    speedup: float


@dataclass(frozen=True, slots=True)
class BatchRow:
    """One batch size. `cells[0]` is plain decoding, `cells[g]` drafts g tokens."""

    batch: int
    plain_step_ms: float
    draft_pass_ms: float
    draft_cost_ratio: float
    verify_cost_ratio: float
    compute_bound: bool
    cells: tuple[GammaCell, ...]
    best_gamma: int
    best_speedup: float
    break_even_alpha: float | None
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer. `rows` is empty if the models do not fit: no speed of an impossible thing."""

    setup: Setup
    draft_devices: int
    memory: MemoryPlan
    rows: tuple[BatchRow, ...]
    break_even_batch: int | None
    draft_prefill_ms: float
    payback_tokens: int | None
    verdict: Verdict

    @property
    def first(self) -> BatchRow | None:
        """The row of the batch size that was asked for first, which the verdict is about."""
        return self.rows[0] if self.rows else None


@dataclass(frozen=True, slots=True)
class _Pair:
    """Target and draft in their places, with the acceptance between them."""

    target: PlacedModel
    draft: PlacedModel | None
    setup: Setup

    def draft_seconds(self, batch: int) -> float:
        """One draft pass: a row for each sequence. An n-gram lookup takes microseconds: 0."""
        if self.draft is None:
            return 0.0
        return self.draft.decode_seconds(batch, self.setup.context)

    def verify_seconds(self, batch: int, gamma: int) -> float:
        rows = round(batch * (1.0 + self.setup.acceptance.proposal_rate * gamma))
        return self.target.pass_cost(rows, batch, self.setup.context).seconds

    def step_seconds(self, batch: int) -> list[float]:
        """Time of a step with 0, 1, ... max_gamma tokens drafted for each sequence."""
        draft = self.draft_seconds(batch)
        depths = range(self.setup.max_gamma + 1)
        return [gamma * draft + self.verify_seconds(batch, gamma) for gamma in depths]

    def best_speedup(self, batch: int) -> float:
        survivals = self.setup.acceptance.survivals(self.setup.max_gamma)
        return best_depth(survivals, self.step_seconds(batch)).speedup


def make_plan(setup: Setup) -> Plan:
    """Plan one pair. With `draft_devices` None the draft goes on one device or on all, as is
    faster at the first batch size among those placements that fit."""
    choices = {setup.draft_devices} if setup.draft_devices else {1, setup.num_devices}
    plans = []
    for devices in sorted(choices):
        if setup.draft.shape and setup.draft.shape.num_heads % devices:
            continue
        plans.append(_plan_placed(setup, devices))
    if not plans:
        assert setup.draft.shape is not None
        raise ConfigError(
            f"{setup.draft.name} has {setup.draft.shape.num_heads} attention heads, which "
            f"{setup.num_devices} devices cannot share evenly; use draft-devices 1",
            field="draft_devices",
        )
    return max(plans, key=lambda plan: plan.first.best_speedup if plan.first else 0.0)


def best_speedups(plan: Plan, batches: Sequence[int]) -> list[float]:
    """Speedup of the best depth at each batch size, whether or not memory holds that many."""
    pair = _place(plan.setup, plan.draft_devices)
    return [pair.best_speedup(batch) for batch in batches]


def _place(setup: Setup, draft_devices: int) -> _Pair:
    target = PlacedModel(
        setup.target,
        setup.target_precision,
        setup.device,
        setup.num_devices,
        setup.kv_element_bytes,
    )
    draft = None
    if setup.draft.shape is not None:
        draft = PlacedModel(
            setup.draft.shape,
            setup.draft_precision,
            setup.device,
            draft_devices,
            setup.kv_element_bytes,
        )
    return _Pair(target, draft, setup)


def _plan_placed(setup: Setup, draft_devices: int) -> Plan:
    pair = _place(setup, draft_devices)
    draft = pair.draft
    memory = plan_memory(pair.target, draft, setup.context, setup.memory_fraction)
    if not memory.pair_fits:
        plan = Plan(setup, draft_devices, memory, (), None, 0.0, None, Verdict("", ""))
        return replace(plan, verdict=judge(plan))
    rows = tuple(_plan_batch(pair, batch, memory.sessions_with_draft) for batch in setup.batches)
    prefill = draft.prefill_seconds(setup.context) if draft else 0.0
    plan = Plan(
        setup=setup,
        draft_devices=draft_devices,
        memory=memory,
        rows=rows,
        break_even_batch=_break_even_batch(pair),
        draft_prefill_ms=prefill * 1e3,
        payback_tokens=_payback_tokens(rows[0], prefill),
        verdict=Verdict("", ""),
    )
    return replace(plan, verdict=judge(plan))


def _plan_batch(pair: _Pair, batch: int, sessions: int) -> BatchRow:
    setup = pair.setup
    survivals = setup.acceptance.survivals(setup.max_gamma)
    seconds = pair.step_seconds(batch)
    plain = seconds[0]
    cells = []
    for gamma, step in enumerate(seconds):
        tokens = expected_tokens(survivals[:gamma])
        cells.append(
            GammaCell(gamma, tokens, step * 1e3, batch * tokens / step, tokens * plain / step)
        )
    best = best_depth(survivals, seconds)
    depth = max(1, best.gamma)
    verify_extra = pair.verify_seconds(batch, depth) - plain
    draft = pair.draft_seconds(batch)
    return BatchRow(
        batch=batch,
        plain_step_ms=plain * 1e3,
        draft_pass_ms=draft * 1e3,
        draft_cost_ratio=draft / plain,
        verify_cost_ratio=verify_extra / depth / plain,
        compute_bound=pair.target.pass_cost(batch, batch, setup.context).compute_bound,
        cells=tuple(cells),
        best_gamma=best.gamma,
        best_speedup=best.speedup,
        break_even_alpha=_break_even_alpha(seconds, setup.acceptance.proposal_rate),
        fits=batch <= sessions,
    )


def _break_even_alpha(seconds: list[float], proposal_rate: float) -> float | None:
    """The least alpha at which some depth breaks even; None if none does at any alpha."""
    found = []
    for gamma, step in enumerate(seconds[1:], start=1):
        needed = (step / seconds[0] - 1.0) / proposal_rate if proposal_rate else math.inf
        if needed <= gamma:
            found.append(alpha_for_tokens(1.0 + max(0.0, needed), gamma))
    return min(found, default=None)


def _break_even_batch(pair: _Pair) -> int | None:
    """The smallest batch at which the best depth gains less than WORTH_IT; None if none up to
    4096. Memory is not looked at: the machine may run full before."""
    good = 0
    batch = 1
    while batch <= _LARGEST_BATCH and pair.best_speedup(batch) >= WORTH_IT:
        good, batch = batch, max(batch + 1, batch * 5 // 4)
    if batch > _LARGEST_BATCH:
        return None
    while batch - good > 1:
        middle = (good + batch) // 2
        if pair.best_speedup(middle) >= WORTH_IT:
            good = middle
        else:
            batch = middle
    return batch


def _payback_tokens(row: BatchRow, draft_prefill_seconds: float) -> int | None:
    """Output tokens after which the draft's own prefill of the prompt has paid for itself."""
    if row.best_speedup <= 1.0:
        return None
    saved = row.plain_step_ms * 1e-3 * (1.0 - 1.0 / row.best_speedup)
    return math.ceil(draft_prefill_seconds / saved)
