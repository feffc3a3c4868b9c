"""A line chart as SVG, by hand: no library, readable in light and dark."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_WIDTH, _HEIGHT = 720, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 40, 48
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1c2024}.grid{stroke:#d9dde2}"
    "@media(prefers-color-scheme:dark){text{fill:#eceef0}.grid{stroke:#3a4048}}"
)


def line_chart(
    title: str,
    x_title: str,
    y_title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    marks: Sequence[tuple[float, str]] = (),
) -> str:
    """SVG with x on a scale of powers of two, y from zero. marks: vertical lines with a label.

    Raises ValueError if there is no point, or one at an x of 0 or below.
    """
    points = [point for line in series.values() for point in line]
    if not points or min(x for x, _ in points) <= 0:
        raise ValueError("a chart needs at least one point, and every x above 0")
    low, high = math.log2(min(x for x, _ in points)), math.log2(max(x for x, _ in points))
    top = max(y for _, y in points) * 1.05 or 1.0
    step = 10 ** math.floor(math.log10(top)) / 2
    while top / step > 8:
        step *= 2

    def across(x: float) -> float:
        part = (math.log2(x) - low) / (high - low) if high > low else 0.5
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)

    def up(y: float) -> float:
        return _HEIGHT - _BOTTOM - y / top * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}">',
        f"<style>{_STYLE}</style>",
        f'<text x="{_LEFT}" y="22" font-weight="600">{html.escape(title)}</text>',
    ]
    for index in range(int(top / step) + 1):
        y = up(index * step)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{index * step:g}</text>'
        )
    parts += [
        f'<text x="{across(x):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{x:g}</text>'
        for x in _labelled(sorted({x for x, _ in points}), across)
    ]
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 8}" '
        f'text-anchor="middle">{html.escape(x_title)}</text>'
        f'<text x="14" y="{_TOP - 4}">{html.escape(y_title)}</text>'
    )
    for x, label in marks:
        at = across(min(max(x, 2**low), 2**high))
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" '
            f'y2="{_HEIGHT - _BOTTOM}" stroke-dasharray="5 4"/>'
            f'<text x="{at + 4:.1f}" y="{_TOP + 12}">{html.escape(label)}</text>'
        )
    for index, (name, line) in enumerate(series.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in line)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
            + "".join(
                f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="3" fill="{colour}"/>'
                for x, y in line
            )
            + f'<text x="{_WIDTH - _RIGHT + 10}" y="{_TOP + 20 * (index + 1)}" '
            f'style="fill:{colour}">{html.escape(name)}</text>'
        )
    parts.append("</svg>\n")
    return "\n".join(parts)


def write_line_chart(
    path: Path,
    title: str,
    x_title: str,
    y_title: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    marks: Sequence[tuple[float, str]] = (),
) -> None:
    """`line_chart` into a file."""
    path.write_text(line_chart(title, x_title, y_title, series, marks=marks), encoding="utf-8")


def _labelled(values: Sequence[float], across: Callable[[float], float]) -> list[float]:
    """Those of rising values whose labels don't run into the one before."""
    kept: list[float] = []
    for value in values:
        if not kept or across(value) - across(kept[-1]) >= 28:
            kept.append(value)
    return kept
