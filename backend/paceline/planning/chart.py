"""A plan as one picture: speedup against batch size, depth by batch, memory.

Hand-written SVG in one self-contained HTML file: no library, no network, readable in light and
dark. An `.svg` path gets the first of the three pictures alone.
"""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.planning.plan import best_speedups

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from paceline.planning.plan import Plan

_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#999933")
_LARGEST_BATCH = 1024

_STYLE = """
:root{--ink:#1c2024;--soft:#60666d;--line:#d9dde2;--page:#ffffff;--panel:#f6f7f9;--warn:#b3261e;
--good:#0b6e4f;--cell:0,114,178}
@media (prefers-color-scheme:dark){:root{--ink:#eceef0;--soft:#a3a9b1;--line:#3a4048;
--page:#14171a;--panel:#1c2024;--warn:#ff8a80;--good:#5fd3a8;--cell:86,180,233}}
body{margin:0;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:880px;margin:0 auto;padding:32px 20px 64px}
h1{font-size:22px;margin:0 0 4px}h2{font-size:16px;margin:36px 0 8px}
p.verdict{font-size:17px;margin:8px 0 0}.soft{color:var(--soft)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin-top:8px}
th,td{padding:5px 10px;text-align:right}th{font-weight:600;color:var(--soft)}
td.best{font-weight:700;outline:2px solid var(--ink);outline-offset:-2px}
td.none{color:var(--soft)}
svg{width:100%;height:auto;display:block}
"""

_SVG_STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;fill:var(--ink,#1c2024)}
.soft{fill:var(--soft,#60666d)}.grid{stroke:var(--line,#d9dde2);stroke-width:1}
.one{stroke:var(--warn,#b3261e);stroke-width:1.5;stroke-dasharray:5 4}
.curve{stroke-linejoin:round}.full{opacity:.55}
"""


def write_chart(plans: Sequence[Plan], best: int, path: Path) -> None:
    """Write the picture of the plans to `path`.

    Raises:
        ConfigError: the name ends in neither .html nor .svg, or cannot be written.
    """
    match path.suffix.lower():
        case ".html":
            text = _page(plans, best)
        case ".svg":
            text = _curves(plans, standalone=True)
        case _:
            raise ConfigError(f"plot: {path} must end in .html or .svg", field="plot")
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"plot: cannot write {path}: {error}", field="plot") from error


def _page(plans: Sequence[Plan], best: int) -> str:
    plan = plans[best]
    setup = plan.setup
    title = f"{setup.target.name} with {setup.draft.name} on {setup.device.label}"
    parts = [
        f"<h1>{html.escape(title)}</h1>",
        f"<p class=soft>{html.escape(_subtitle(plan))}</p>",
        f"<p class=verdict>{html.escape(plan.verdict.sentence)}</p>",
    ]
    if any(each.rows for each in plans):
        parts += ["<h2>Speedup of the best depth by batch size</h2>", _curves(plans)]
    if plan.rows:
        parts += ["<h2>Speedup by drafted tokens</h2>", _depth_table(plan)]
    parts += ["<h2>Memory of the fullest device</h2>", _memory_bar(plan)]
    body = "\n".join(parts)
    return (
        f"<!doctype html>\n<html lang=en><head><meta charset=utf-8>\n"
        f'<meta name=viewport content="width=device-width,initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}{_SVG_STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _subtitle(plan: Plan) -> str:
    setup = plan.setup
    probs = ", ".join(f"{prob:.2f}" for prob in setup.acceptance.accept_probs)
    return (
        f"{setup.num_devices} x {setup.device.label}, {setup.target_precision.name} weights, "
        f"{setup.context} tokens a session. Acceptance {setup.acceptance.name}: {probs} "
        f"({setup.acceptance.source})."
    )


# ------------------------------------------------------------------ speedup against batch

_WIDTH, _HEIGHT = 860, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 28, 16, 48


def _curves(plans: Sequence[Plan], *, standalone: bool = False) -> str:
    """One line for each plan that fits, solid as far as memory holds the batch."""
    drawn = [plan for plan in plans if plan.rows]
    batches = _batch_grid()
    curves = [best_speedups(plan, batches) for plan in drawn]
    highest = max((max(curve) for curve in curves), default=1.0)
    top = math.ceil(highest * 2.0 + 0.2) / 2.0
    legend_height = 22 * len(drawn)
    height = _HEIGHT + legend_height

    def x(batch: float) -> float:
        span = _WIDTH - _LEFT - _RIGHT
        return _LEFT + span * math.log2(batch) / math.log2(_LARGEST_BATCH)

    def y(gain: float) -> float:
        span = _HEIGHT - _TOP - _BOTTOM
        return _HEIGHT - _BOTTOM - span * (gain - 0.5) / (top - 0.5)

    size = f'width="{_WIDTH}" height="{height}" ' if standalone else ""
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}viewBox="0 0 {_WIDTH} {height}" '
        'role="img" aria-label="Speedup against batch size">'
    ]
    if standalone:
        out.append(f"<style>{_SVG_STYLE}</style>")
        out.append(f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>')
    ticks = int((top - 0.5) / 0.5) + 1
    for gain in (0.5 + 0.5 * tick for tick in range(ticks)):
        style = "one" if gain == 1.0 else "grid"
        level = f"{y(gain):.1f}"
        out.append(
            f'<line class="{style}" stroke="#d9dde2" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" '
            f'y1="{level}" y2="{level}"/><text class="soft" x="{_LEFT - 8}" y="{y(gain) + 4:.1f}" '
            f'text-anchor="end">{gain:g}x</text>'
        )
    out.extend(
        f'<text class="soft" x="{x(2**power):.1f}" y="{_HEIGHT - _BOTTOM + 20}" '
        f'text-anchor="middle">{2**power}</text>'
        for power in range(int(math.log2(_LARGEST_BATCH)) + 1)
    )
    out.append(
        f'<text class="soft" x="{(_LEFT + _WIDTH) / 2:.0f}" y="{_HEIGHT - 8}" '
        'text-anchor="middle">sessions decoding at once (dotted: more than memory holds)</text>'
    )
    for index, (plan, curve) in enumerate(zip(drawn, curves, strict=True)):
        colour = _PALETTE[index % len(_PALETTE)]
        points = list(zip(batches, curve, strict=True))
        room = plan.memory.sessions_with_draft
        inside = [(x(b), y(g)) for b, g in points if b <= room]
        beyond = [(x(b), y(g)) for b, g in points if b >= (batches_within(batches, room) or 1)]
        name = html.escape(_series_name(plan, drawn))
        for style, dashes, line in (("curve", "none", inside), ("full", "2 5", beyond)):
            if len(line) > 1:
                coordinates = " ".join(f"{px:.1f},{py:.1f}" for px, py in line)
                out.append(
                    f'<polyline class="{style}" stroke="{colour}" stroke-width="2.5" fill="none" '
                    f'stroke-dasharray="{dashes}" points="{coordinates}">'
                    f"<title>{name}</title></polyline>"
                )
        for batch, gain in points:
            if batch & (batch - 1) == 0 and batch <= room:
                out.append(
                    f'<circle cx="{x(batch):.1f}" cy="{y(gain):.1f}" r="3.5" fill="{colour}">'
                    f"<title>{name}: {gain:.2f}x at batch {batch}</title></circle>"
                )
        row = _HEIGHT + 22 * index + 8
        note = f"{name}; memory holds {room:,} sessions"
        out.append(
            f'<rect x="{_LEFT}" y="{row - 4}" width="22" height="4" fill="{colour}"/>'
            f'<text x="{_LEFT + 32}" y="{row + 3}">{note}</text>'
        )
    out.append("</svg>")
    return "\n".join(out) + ("\n" if standalone else "")


def batches_within(batches: Sequence[int], room: int) -> int | None:
    """The largest batch of the grid that memory holds; None if it holds none."""
    return max((batch for batch in batches if batch <= room), default=None)


def _batch_grid() -> list[int]:
    """Four batch sizes for each doubling, without repeats."""
    steps = 4 * int(math.log2(_LARGEST_BATCH))
    return sorted({round(2 ** (step / 4)) for step in range(steps + 1)})


def _series_name(plan: Plan, plans: Sequence[Plan]) -> str:
    """The draft, and of the rest only what differs between the lines."""
    setup = plan.setup
    name = setup.draft.name
    if len({each.setup.target_precision for each in plans}) > 1:
        name += f", target in {setup.target_precision.name}"
    if len({each.setup.num_devices for each in plans}) > 1:
        name += f", {setup.num_devices} x {setup.device.label}"
    return name


# ------------------------------------------------------------------ depth and memory


def _depth_table(plan: Plan) -> str:
    depths = range(1, len(plan.rows[0].cells))
    head = "".join(f"<th>{depth}</th>" for depth in depths)
    top = max(row.best_speedup for row in plan.rows)
    lines = []
    for row in plan.rows:
        cells = []
        for cell in row.cells[1:]:
            strength = max(0.0, (cell.speedup - 1.0) / max(top - 1.0, 1e-9))
            style = f' style="background:rgba(var(--cell),{0.55 * strength:.2f})"'
            kind = ' class="best"' if cell.gamma == row.best_gamma else ""
            kind = ' class="none"' if cell.speedup < 1.0 else kind
            cells.append(f"<td{kind}{style}>{cell.speedup:.2f}</td>")
        note = "" if row.fits else " (no room)"
        lines.append(
            f"<tr><th>{row.batch}{note}</th>{''.join(cells)}"
            f"<td>{row.cells[row.best_gamma].tokens_per_s:,.0f}</td></tr>"
        )
    return (
        f"<div style=overflow-x:auto><table><tr><th>batch</th>{head}<th>tokens/s</th></tr>"
        f"{''.join(lines)}</table></div>"
        "<p class=soft>Columns are drafted tokens a step; the framed one is the best. "
        "Grey is slower than plain decoding.</p>"
    )


def _memory_bar(plan: Plan) -> str:
    """What weights take of the fullest device, and what is left for K/V."""
    memory = plan.memory
    room = memory.usable_bytes
    total = max(room, memory.target_bytes + memory.draft_bytes)
    parts = [
        ("target", memory.target_bytes, _PALETTE[0]),
        ("draft", memory.draft_bytes, _PALETTE[1]),
        ("K/V", max(0.0, room - memory.target_bytes - memory.draft_bytes), _PALETTE[2]),
    ]
    out = [f'<svg viewBox="0 0 {_WIDTH} 96" role="img" aria-label="Memory">']
    left, span = 0.0, float(_WIDTH)
    for index, (name, size, colour) in enumerate(parts):
        width = span * size / total
        out.append(
            f'<rect x="{left:.1f}" y="0" width="{width:.1f}" height="34" fill="{colour}">'
            f"<title>{name}: {size / 1e9:.1f} GB</title></rect>"
            f'<rect x="{index * 200}" y="56" width="12" height="12" fill="{colour}"/>'
            f'<text x="{index * 200 + 20}" y="67">{name} {size / 1e9:.1f} GB</text>'
        )
        left += width
    limit = span * room / total
    out.append(
        f'<line x1="{limit:.1f}" x2="{limit:.1f}" y1="0" y2="42" stroke="currentColor" '
        f'stroke-width="2"/><text class="soft" x="{_WIDTH}" y="67" text-anchor="end">'
        f"usable {room / 1e9:.1f} GB</text></svg>"
    )
    lost = memory.sessions_plain - memory.sessions_with_draft
    out.append(
        f"<p class=soft>{memory.kv_tokens_with_draft:,} K/V tokens with the draft, "
        f"{memory.kv_tokens_plain:,} without: {memory.sessions_with_draft:,} sessions of "
        f"{memory.context:,} tokens, {lost:,} fewer than without.</p>"
    )
    return "\n".join(out)
