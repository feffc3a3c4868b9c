"""Measuring costs at start-up over tiny models, with a scripted clock, and keeping them."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch

from paceline.core.cost import CostTable, Curve
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind
from paceline.engine.adaptive_policy import AdaptivePolicy
from paceline.engine.assembly import assemble
from paceline.engine.calibration import SWEEPS, Calibration, cached_costs, cost_key, least_of
from paceline.engine.drafters.model import ModelDrafter
from paceline.engine.verifier import Verifier
from tests.engine.scripted_drafter import ScriptedClock, TimedRunner
from tests.tiny_models import VOCABULARY_SIZE, IdText, model_part, tiny_llama

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

TRUTH = CostTable(Curve((1, 16, 64, 256), (0.010, 0.011, 0.040, 0.160)))
LIMITS = EngineLimits(512, 64, 4, 4, 10, VOCABULARY_SIZE)


def test_the_table_is_what_passes_take() -> None:
    clock = ScriptedClock(TRUTH)
    part = model_part(tiny_llama(0), 64, 4)
    verifier = Verifier(
        TimedRunner(part.runner, clock), block_size=4, vocabulary_size=VOCABULARY_SIZE
    )
    scrubbed: list[int] = []
    calibration = Calibration(verifier, None, LIMITS, 24, scrubbed.extend, clock=clock)
    table = calibration.measure()
    assert table.target.counts[-1] == 24
    for rows, seconds in zip(table.target.counts, table.target.seconds, strict=True):
        assert abs(seconds - TRUTH.target.at(rows)) < 1e-9
    assert table.draft_drawn is None
    assert abs(table.spread - 1.0) < 1e-9
    assert set(scrubbed) <= set(range(64))


class _DisturbedClock(ScriptedClock):
    """The first passes of each size take twice their time: as many as there are sweeps."""

    def __init__(self, table: CostTable) -> None:
        super().__init__(table)
        self._passes: Counter[int] = Counter()

    def spend_target(self, rows: int) -> None:
        super().spend_target(rows)
        self._passes[rows] += 1
        if self._passes[rows] <= SWEEPS:
            super().spend_target(rows)


def test_what_disturbs_a_few_passes_of_a_size_is_not_in_the_table() -> None:
    clock = _DisturbedClock(TRUTH)
    part = model_part(tiny_llama(0), 64, 4)
    verifier = Verifier(
        TimedRunner(part.runner, clock), block_size=4, vocabulary_size=VOCABULARY_SIZE
    )
    table = Calibration(verifier, None, LIMITS, 24, part.scrub, clock=clock).measure()
    for rows, seconds in zip(table.target.counts, table.target.seconds, strict=True):
        assert abs(seconds - TRUTH.target.at(rows)) < 1e-9


def test_draft_passes_are_measured_through_the_drafter() -> None:
    clock = ScriptedClock(TRUTH)
    part, draft = model_part(tiny_llama(0), 64, 4), model_part(tiny_llama(1), 64, 4)
    verifier = Verifier(
        TimedRunner(part.runner, clock), block_size=4, vocabulary_size=VOCABULARY_SIZE
    )
    drafter = ModelDrafter(
        TimedRunner(draft.runner, clock),
        block_size=4,
        vocabulary_size=VOCABULARY_SIZE,
        max_model_len=512,
        scrub=draft.scrub,
    )
    table = Calibration(verifier, drafter, LIMITS, 24, part.scrub, clock=clock).measure()
    assert table.draft_greedy is not None
    assert table.draft_drawn is not None
    assert abs(table.draft_greedy.at(8) - TRUTH.target.at(8)) < 1e-9
    assert abs(table.draft_drawn.at(16) - TRUTH.target.at(16)) < 1e-9


def test_an_engine_with_costs_speculates_adaptively_and_its_memory_is_clean() -> None:
    part, draft = model_part(tiny_llama(0), 64, 4), model_part(tiny_llama(1), 64, 4)
    tables: list[CostTable] = []

    def costs(measure: Callable[[], CostTable]) -> CostTable:
        tables.append(measure())
        return tables[0]

    engine = assemble(
        target=part,
        draft=draft,
        drafter=DrafterKind.AUTO,
        limits=LIMITS,
        text_stream=lambda prompt_ids: IdText(),
        token_budget=16,
        num_speculative_tokens=16,
        costs=costs,
    )
    assert isinstance(engine._policy, AdaptivePolicy)
    assert engine._policy.controller.cost.table is tables[0]
    assert all(second > 0 for second in tables[0].target.seconds)
    for layer in part.runner._layers:  # type: ignore[attr-defined]
        assert torch.count_nonzero(layer) == 0


def test_the_least_of_several_sweeps_counts() -> None:
    def table(*seconds: float) -> CostTable:
        return CostTable(Curve((1, 2, 4), seconds), context_seconds=seconds[0])

    found = least_of([table(1.0, 1.0, 1.2), table(3.0, 3.0, 1.1), table(1.5, 1.1, 9.0)])
    assert found.target.seconds == (1.0, 1.0, 1.1)
    assert found.context_seconds == 1.0
    assert found.spread == 1.1
    assert least_of([table(1.0, 1.0, 1.0)]).spread == math.inf


def test_a_measured_table_is_kept_and_found_again(tmp_path: Path) -> None:
    calls = []

    def measure() -> CostTable:
        calls.append(1)
        return TRUTH

    key = {"model": "a", "threads": 2}
    assert cached_costs(tmp_path / "costs", key, measure) == TRUTH
    assert cached_costs(tmp_path / "costs", key, measure) == TRUTH
    assert len(calls) == 1
    cached_costs(tmp_path / "costs", key | {"threads": 4}, measure)
    assert len(calls) == 2


def test_broken_and_foreign_files_are_measured_anew(tmp_path: Path) -> None:
    cached_costs(tmp_path, {"a": 1}, lambda: TRUTH)
    [path] = tmp_path.iterdir()
    for content in ("", "[]", json.dumps({"key": {"a": 2}, "costs": {}}), '{"key": {"a": 1}}'):
        path.write_text(content)
        assert cached_costs(tmp_path, {"a": 1}, lambda: TRUTH) == TRUTH


def test_a_table_of_a_busy_machine_is_used_but_not_kept(tmp_path: Path) -> None:
    busy = CostTable(TRUTH.target, spread=2.0)
    assert cached_costs(tmp_path, {"a": 1}, lambda: busy) == busy
    assert list(tmp_path.iterdir()) == []


def key_of(target: Path) -> dict[str, object]:
    return cost_key(
        target=target,
        draft=None,
        dtype="bfloat16",
        device="cpu",
        max_sequences=8,
        fast_path=True,
    )


def test_the_key_notices_other_weights(tmp_path: Path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"x")

    first = key_of(tmp_path)
    assert key_of(tmp_path) == first
    weights.write_bytes(b"longer")
    assert key_of(tmp_path) != first


def test_the_key_notices_other_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another version, or where products are computed by another unit of the processor."""

    def key(kernels: SimpleNamespace | None) -> dict[str, object]:
        monkeypatch.setattr("paceline.engine.calibration.load_kernels", lambda: kernels)
        return key_of(tmp_path)

    known = [key(SimpleNamespace(name=name)) for name in ("k-1 tiles", "k-1 vectors", "k-2 tiles")]
    known.append(key(None))
    assert all(one != other for one, other in itertools.combinations(known, 2))
    assert key(SimpleNamespace(name="k-1 tiles")) == known[0]
