"""The result of a benchmark for people: a table in the terminal, and a page with charts."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table

from paceline.benchmark.counters import STAGES
from paceline.benchmark.line_chart import line_chart
from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_DEPTHS = 4
_STYLE = (
    "body{margin:0;background:#fff;color:#1c2024;font:15px/1.5 system-ui,sans-serif}"
    "main{max-width:960px;margin:0 auto;padding:32px 20px}svg{width:100%;height:auto}"
    "div{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:13px}"
    "th,td{padding:4px 8px;text-align:right;border-bottom:1px solid #d9dde2}"
    "th:nth-child(-n+3),td:nth-child(-n+3){text-align:left}h2{font-size:17px;margin-top:32px}"
    "@media(prefers-color-scheme:dark){body{background:#14171a;color:#eceef0}"
    "th,td{border-color:#3a4048}}"
)
_SPEED = ("load", "mode", "tok/s", "x plain", "first token ms", "ms a token", "gaps ms")
_SPECULATION = ("tok/step", "acceptance by depth")
_STEPS = ("workload", "load", "mode", "draft ms", "verify ms", "sample ms", "other ms")
_BOOKS = ("foretold x", "ledger ms", "break-even rows", "server's loop ms")


def render(cells: Sequence[Mapping[str, Any]]) -> Group:
    """The cells, as `Cell.to_json` gives them: a table for each workload, and one of steps. Three
    numbers with strokes between them are p50, p95 and p99."""
    tables = [
        _table(workload, (*_SPEED, *_SPECULATION), [c for c in cells if c["workload"] == workload])
        for workload in dict.fromkeys(cell["workload"] for cell in cells)
    ]
    return Group(*tables, _table("steps of the engine", (*_STEPS, *_BOOKS), cells))


def _table(title: str, columns: Sequence[str], cells: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE)
    for name in columns:
        is_text = name in ("workload", "load", "mode", "acceptance by depth")
        table.add_column(name, justify="left" if is_text else "right", overflow="fold")
    for cell in cells:
        row = _row(cell)
        table.add_row(*(row[name] for name in columns))
    return table


def render_failures(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each kind of request that has no whole answer."""
    return [
        f"{cell['workload']}, {cell['load']}, {cell['mode']}: {count} x {reason}"
        for cell in cells
        for reason, count in cell["failed"].items()
    ]


def write_plot(cells: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """The cells as charts: an `.html` page with all of them, or the first one as `.svg`.

    Raises ConfigError for another ending, and when it cannot be written.
    """
    charts = _charts(cells)
    match path.suffix.lower():
        case ".html":
            text = _page(cells, charts, title)
        case ".svg":
            text = charts[0]
        case _:
            raise ConfigError(f"plot: {path} must end in .html or .svg", field="plot")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"plot: cannot write {path}: {error}", field="plot") from error


def _charts(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    charts = []
    # Sessions and rates have no common axis.
    for kind, x_title in (("session", "sessions"), ("/s", "requests per second")):
        chosen = [cell for cell in cells if kind in cell["load"]]
        for workload in dict.fromkeys(cell["workload"] for cell in chosen):
            series: dict[str, list[tuple[float, float]]] = {}
            for cell in chosen:
                if cell["workload"] == workload:
                    point = (cell["size"], cell["tokens_per_second"])
                    series.setdefault(cell["mode"], []).append(point)
            charts.append(
                line_chart(f"Throughput, {workload}", x_title, "tokens per second", series)
            )
    depths = {
        f"{cell['workload']}, {cell['load']}, {cell['mode']}": [
            (depth, probability)
            for depth, probability in enumerate(cell["acceptance_by_depth"], start=1)
        ]
        for cell in cells
        if len(cell["acceptance_by_depth"]) > 1
    }
    names = list(depths)
    for start in range(0, len(names), 6):
        some = {name: depths[name] for name in names[start : start + 6]}
        charts.append(line_chart("Acceptance by depth", "depth of the draft", "accepted", some))
    return charts


def _page(cells: Sequence[Mapping[str, Any]], charts: Sequence[str], title: str) -> str:
    columns = ("workload", *_SPEED, *_SPECULATION, *_STEPS[3:], *_BOOKS)
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    rows = []
    for cell in cells:
        row = _row(cell)
        rows.append("".join(f"<td>{html.escape(row[name])}</td>" for name in columns))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style><main>"
        f"<h1>{html.escape(title)}</h1>{''.join(charts)}"
        f"<h2>All figures</h2><div><table><tr>{head}</tr>{body}</table></div></main></html>\n"
    )


def _row(cell: Mapping[str, Any]) -> dict[str, str]:
    """A cell in words, by the name of the column."""
    step = cell["step_ms"] or {}
    ledger = cell["ledger_ms"]
    return {
        "workload": cell["workload"],
        "load": cell["load"],
        "mode": cell["mode"],
        "tok/s": f"{cell['tokens_per_second']:.1f}",
        "x plain": _number(cell["ratio_to_plain"], 3),
        "first token ms": _spread(cell["time_to_first_token_ms"], 0),
        "ms a token": _spread(cell["time_per_output_token_ms"], 1),
        "gaps ms": _spread(cell["event_gap_ms"], 0),
        "tok/step": _number(cell["tokens_per_step"], 2),
        "acceptance by depth": " ".join(
            f"{value:.2f}" for value in cell["acceptance_by_depth"][:_DEPTHS]
        ),
        **{f"{stage} ms": _number(step.get(stage), 2) for stage in STAGES},
        "foretold x": _number(cell["predicted_speedup"], 2),
        "ledger ms": ""
        if ledger is None
        else f"{ledger:.0f} of {_number(cell['ledger_capacity_ms'], 0)}",
        "break-even rows": _number(cell["break_even_rows"], 0),
        "server's loop ms": _spread(cell["server_loop_ms"], 1),
    }


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _spread(values: Mapping[str, float] | None, digits: int) -> str:
    return "" if values is None else "/".join(f"{value:.{digits}f}" for value in values.values())
