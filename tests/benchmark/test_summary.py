"""From answers and counters to figures, and those to tables and charts."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from paceline.benchmark.counters import Counters, metrics_url, parse_counters
from paceline.benchmark.line_chart import line_chart
from paceline.benchmark.report import render, render_failures, write_plot
from paceline.benchmark.summary import Cell, Run, quantile
from paceline.benchmark.traffic import Answer
from paceline.core.errors import ConfigError
from paceline.core.events import EngineStatus, StepTimes
from paceline.core.statistics import EngineTotals, SpeculationStatus
from paceline.server.metrics import Metrics
from paceline_protocol.responses import PacelineSummary

if TYPE_CHECKING:
    from pathlib import Path


def _counters(**changes: Any) -> Counters:
    values: dict[str, Any] = {
        "num_steps": 10.0,
        "stage_seconds": (0.01, 0.1, 0.02, 0.005),
        "passed": (6.0, 3.0, 0.0),
        "examined": (8.0, 6.0, 0.0),
        "ledger_level_s": 0.001,
        "ledger_capacity_s": 0.05,
        "break_even_rows": None,
    }
    return Counters(**(values | changes))


def _answer(asked_at: float, tokens: int = 5, error: str | None = None) -> Answer:
    summary = PacelineSummary(
        num_drafted=4,
        num_examined=3,
        num_accepted=2,
        acceptance=0.66,
        tokens_per_step=2.5,
        accepted_per_position=[2],
        examined_per_position=[3],
        passed_per_position=[2],
        drafter="head",
        gate="on",
        reason="",
        time_to_first_token_ms=100.0,
        tokens_per_second=10.0,
        draft_ms=1.0,
        verify_ms=7.0,
        sample_ms=1.0,
        other_ms=1.0,
        cached_tokens=0,
        expected_plain_ms=15.0,
    )
    times = [asked_at + 0.1, asked_at + 0.2, asked_at + 0.5]
    return Answer(asked_at, times, asked_at + 1.0, "tiny", tokens, 7, 3, summary, error)


def _cell(mode: str = "auto", load: str = "1 session") -> Cell:
    runs = [
        Run([_answer(0.0), _answer(1.0)], _counters(), [0.001, 0.002]),
        Run([_answer(0.0, 15), _answer(1.0, 15)], _counters(ledger_level_s=0.002), [0.004]),
        Run([_answer(0.0), _answer(1.0, 0, "it broke")], _counters(), [0.001]),
    ]
    return Cell("chat", load, 1.0, mode, runs, [1.0, 2.0, 1.5])


def test_the_figures_of_a_cell() -> None:
    values = _cell().to_json()
    assert values["requests"] == 6
    assert values["failed"] == {"it broke": 1}
    assert values["output_tokens"] == 45
    assert values["cached_prompt_tokens"] == 18
    assert values["tokens_per_second"] == pytest.approx(5.0)  # of 5, 15 and 2.5
    assert values["ratio_to_plain"] == 1.5
    assert values["time_to_first_token_ms"]["p50"] == pytest.approx(100.0)
    assert values["time_per_output_token_ms"]["p50"] == pytest.approx(100.0)
    assert values["time_per_output_token_ms"]["p95"] == pytest.approx(100.0)
    assert values["event_gap_ms"] == pytest.approx({"p50": 100.0, "p95": 300.0, "p99": 300.0})
    assert values["tokens_per_step"] == pytest.approx(2.5)
    assert values["acceptance_by_depth"] == [0.75, 0.5]
    assert values["examined_by_depth"] == [24, 18]
    assert values["step_ms"] == {"draft": 1.0, "verify": 10.0, "sample": 2.0, "other": 0.5}
    assert values["predicted_speedup"] == pytest.approx(1.5)
    assert (values["ledger_ms"], values["ledger_capacity_ms"]) == (2.0, 50.0)


def test_what_was_asked_for_the_load_alone_counts_by_its_tokens() -> None:
    whole, extra = _answer(0.0, 6), _answer(0.0, 4)
    extra.is_extra = True
    values = Cell("chat", "1", 1.0, "auto", [Run([whole, extra], _counters(), [0.001])]).to_json()
    assert values["tokens_per_second"] == pytest.approx(10.0)
    assert (values["requests"], values["extra_requests"]) == (1, 1)
    assert values["output_tokens"] == 10
    assert values["time_per_output_token_ms"]["p50"] == pytest.approx(80.0)  # 0.4 s by five


def test_quantiles_are_values_that_occurred() -> None:
    assert quantile([3.0, 1.0, 2.0], 50) == 2.0
    assert quantile(range(1, 101), 99) == 99
    assert quantile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="no quantile"):
        quantile([], 50)


def test_what_the_server_exposes_is_what_is_read() -> None:
    status = EngineStatus(
        step=12,
        times=StepTimes(draft_ms=1.0),
        totals=EngineTotals(
            passed_per_position=(5, 2, *[0] * 14),
            examined_per_position=(9, 4, *[0] * 14),
            draft_seconds=0.5,
            verify_seconds=1.5,
            sample_seconds=0.25,
            other_seconds=0.125,
        ),
        speculation=SpeculationStatus(ledger_level_ms=3.0, ledger_capacity_ms=40.0),
    )
    metrics = Metrics("tiny", 64, lambda: status, lambda: 1)
    read = parse_counters(metrics.render().decode())
    assert read.num_steps == 12
    assert read.stage_seconds == (0.5, 1.5, 0.25, 0.125)
    assert read.passed[:3] == (5, 2, 0)
    assert read.examined[:3] == (9, 4, 0)
    assert (read.ledger_level_s, read.ledger_capacity_s) == (0.003, 0.04)
    assert read.break_even_rows is None
    assert read.since(read).num_steps == 0
    assert read.since(read).passed == (0,) * 16


def test_metrics_of_another_server_are_refused() -> None:
    with pytest.raises(ConfigError, match="not those of Paceline"):
        parse_counters("# TYPE up gauge\nup 1\n")
    assert metrics_url("ws://a:1/v1/responses") == "http://a:1/metrics"
    assert metrics_url("wss://a/v1/responses") == "https://a/metrics"


def test_tables_charts_and_failures(tmp_path: Path) -> None:
    cells = [
        _cell("off").to_json(),
        _cell("auto").to_json(),
        _cell("auto", "2/s").to_json() | {"step_ms": None, "time_to_first_token_ms": None},
    ]
    text = io.StringIO()
    Console(file=text, width=160).print(render(cells))
    for part in ("chat", "1.500", "0.75 0.50", "100/100/100", "2 of 50", "2/s"):
        assert part in text.getvalue()
    assert render_failures(cells)[0] == "chat, 1 session, off: 1 x it broke"
    write_plot(cells, "Paceline with <tiny>", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.count("<svg") == 3
    assert "&lt;tiny&gt;" in page
    write_plot(cells, "", tmp_path / "chart.svg")
    ElementTree.parse(tmp_path / "chart.svg")
    for name in ("chart.png", "missing/chart.svg"):
        with pytest.raises(ConfigError) as caught:
            write_plot(cells, "", tmp_path / name)
        assert caught.value.field == "plot"


def test_a_chart_of_one_point_and_of_none() -> None:
    ElementTree.fromstring(line_chart("t", "x", "y", {"a": [(4.0, 0.0)]}, marks=[(4.0, "m")]))
    with pytest.raises(ValueError, match="at least one point"):
        line_chart("t", "x", "y", {"a": []})
