"""What follows from a cost table: best depths, and the batch from which drafting doesn't pay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from ops.bench import step_costs
from ops.bench.step_costs import best_depth, break_even_batch, summary
from paceline.core.controller import Controller, ControllerSettings
from paceline.core.cost import CostModel, CostTable, Curve

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def _controller(row_seconds: float) -> Controller:
    """A step takes 10 ms and so much for each row; a draft pass a tenth of that."""
    rows = (1, 8, 64, 512)
    target = Curve(rows, [0.01 + count * row_seconds for count in rows])
    draft = Curve(rows, [0.001 + count * row_seconds / 10 for count in rows])
    table = CostTable(target, draft_greedy=draft, draft_drawn=draft)
    return Controller(CostModel(table), ControllerSettings(max_sequences=48))


def test_rows_for_nothing_never_stop_paying() -> None:
    controller = _controller(0.0)
    assert break_even_batch(controller) is None
    best = best_depth(controller, 48, 0.8)
    assert best["depth"] == 6
    # 1 + 0.8 + .. + 0.8^6 tokens, in the time of a step and 6 passes
    assert abs(best["gain"] - sum(0.8**n for n in range(7)) * 10 / 16) < 2e-3


def test_dear_rows_stop_paying_at_some_batch() -> None:
    controller = _controller(0.001)
    batch = break_even_batch(controller)
    assert batch is not None
    assert 1 < batch < 48
    assert best_depth(controller, 1, 0.8)["gain"] > 1.2
    assert best_depth(controller, 48, 0.5) == {"depth": 0, "gain": 1.0}


def test_the_summary_is_json_and_becomes_charts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(step_costs, "RESULTS", tmp_path)
    result = summary(_controller(0.001))
    assert result["ms_by_rows"]["target pass"][0] == (1, 11.0)
    assert set(result["best"]["0.6"]) == set(step_costs.SESSIONS)
    result = json.loads(json.dumps(result))
    step_costs.show(result)
    assert "break-even batch" in capsys.readouterr().out
    step_costs.write_charts(result, "step")
    for name in ("step_costs.svg", "step_gains.svg"):
        ElementTree.parse(tmp_path / name)
