"""A telemetry sample as a screen: pure, from values to what rich can draw."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paceline_client.answer_view import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from paceline_protocol.messages import ServerTelemetry, SessionTelemetry, TelemetrySample

_BARS = "▁▂▃▄▅▆▇█"
_MAX_HISTORY = 512
_TABLE_LINES = 3
_LONGEST_NAME = 28
_SHORT_NAME = 17
_BETWEEN = 3
"""Blanks from one column of the table to the next."""
_LEAST_REASON = 20
"""Columns of the terminal that the reason gets at least, before others have to go."""
_WIDE = 100
"""From here on bars and names are long."""
_GATE_STYLES = {"on": "green", "off": "yellow", "probing": "cyan"}
_STAGES = (("draft", "magenta"), ("verify", "blue"), ("sample", "green"), ("other", "bright_black"))


class History:
    """The server's tokens per second, oldest first; bounded."""

    def __init__(self) -> None:
        self.tokens_per_second: deque[float] = deque(maxlen=_MAX_HISTORY)

    def add(self, sample: TelemetrySample) -> None:
        if sample.server is not None:
            self.tokens_per_second.append(sample.server.tokens_per_second or 0.0)


def screen(
    sample: TelemetrySample, history: History, *, width: int, height: int, note: str = ""
) -> RenderableType:
    """The whole screen, not taller than `height` lines. note: one line, such as a lost connection.

    Sessions at work come first, the fastest of them first.
    """
    header: list[RenderableType] = []
    if sample.server is not None:
        header += _server_lines(sample, sample.server, history, width)
    if note:
        header.append(Text(note, style="bold red", no_wrap=True, overflow="ellipsis"))
    sessions = sorted(
        sample.sessions,
        key=lambda each: (not each.active, -(each.tokens_per_second or 0), each.session_id),
    )
    room = max(1, height - len(header) - _TABLE_LINES)
    shown = sessions if len(sessions) <= room else sessions[: room - 1]
    parts = [*header, _table(shown, width)]
    if len(shown) < len(sessions):
        parts.append(Text(f"and {len(sessions) - len(shown)} more", style="dim"))
    elif not sessions:
        parts.append(Text("no sessions", style="dim"))
    return Group(*parts)


def _server_lines(
    sample: TelemetrySample, server: ServerTelemetry, history: History, width: int
) -> list[Text]:
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("paceline", "bold")
    running = _count(server.num_running, "answer") if width >= _WIDE else str(server.num_running)
    line.append(f"  {running} running, ")
    line.append(f"{server.num_waiting} waiting", "bold yellow" if server.num_waiting else "")
    line.append(f"  {_number(server.tokens_per_second, 1)} tokens/s")
    # A session is a lane of a connection, and is listed for a while after that has gone.
    line.append(f"  {_count(len(sample.sessions), 'session')} listed, ")
    line.append(_count(server.num_sessions, "connection"))

    bar_width = 20 if width >= _WIDE else 10
    used = server.num_blocks - server.num_free_blocks
    blocks = Text("blocks ", no_wrap=True, overflow="ellipsis")
    share = used / server.num_blocks if server.num_blocks else 0.0
    blocks.append_text(_bar(share, bar_width))
    blocks.append(f" {used} of {server.num_blocks}, {server.num_cached_blocks} cached")
    if sample.ledger_level_ms is not None:
        ledger = f"  ledger {sample.ledger_level_ms:.1f}"
        if sample.ledger_capacity_ms is not None:
            ledger += f" of {sample.ledger_capacity_ms:.0f}"
        blocks.append(f"{ledger} ms")

    step = Text("step   ", no_wrap=True, overflow="ellipsis")
    step.append_text(_stages(server, bar_width))
    rows = f"{_count(server.num_rows, 'token')} in the pass"
    if server.break_even_rows is not None:
        rows += f"; drafting pays up to {server.break_even_rows}"
    predicted = server.predicted_step_ms
    more = rows if predicted is None else f"predicted {predicted:.1f} ms  {rows}"
    steps = [step]
    if step.cell_len + len(more) + 2 <= width:
        step.append(f"  {more}")
    else:
        steps.append(Text(f"       {more}", no_wrap=True, overflow="ellipsis"))

    speed = Text("speed  ", no_wrap=True)
    speed.append(sparkline(list(history.tokens_per_second)[-max(1, width - 8) :]), "green")
    return [line, blocks, *steps, speed, Text()]


@dataclass(frozen=True, slots=True)
class _Column:
    """One column but the reason. worth: what is worth less goes first where the terminal is
    narrow."""

    title: str
    worth: int
    cell: Callable[[SessionTelemetry], str | Text]
    is_number: bool = True


_SESSION = _Column("session", 9, lambda each: _name(each), is_number=False)
_GATE = _Column(
    "gate",
    8,
    lambda each: Text(each.gate, _GATE_STYLES.get(each.gate, "")),
    is_number=False,
)
_COLUMNS = (
    _SESSION,
    _Column("drafter", 1, lambda each: printable(each.drafter), is_number=False),
    _GATE,
    _Column("accepted", 6, lambda each: _number(each.acceptance, 2)),
    _Column("tokens/step", 4, lambda each: _number(each.tokens_per_step, 2)),
    _Column("tokens/s", 7, lambda each: _speed(each)),
    _Column("first ms", 3, lambda each: _number(each.time_to_first_token_ms, 0)),
    _Column(
        "drafted",
        2,
        lambda each: sparkline([float(count) for count in each.gamma_histogram]),
        is_number=False,
    ),
)


def _table(sessions: Sequence[SessionTelemetry], width: int) -> Table:
    """One line a session. Where the terminal is too narrow for every column beside the reason, the
    less important go, and the reason last."""
    cells = {column: [_literal(column.cell(each)) for each in sessions] for column in _COLUMNS}
    if width < _WIDE:
        for name in cells[_SESSION]:
            name.truncate(_SHORT_NAME, overflow="ellipsis")
    needed = {
        column: _BETWEEN + max([len(column.title), *(cell.cell_len for cell in of_column)])
        for column, of_column in cells.items()
    }
    has_reason = width >= needed[_SESSION] + needed[_GATE] + _BETWEEN + _LEAST_REASON
    room = width - (_BETWEEN + _LEAST_REASON if has_reason else 0)
    kept = sorted(_COLUMNS, key=lambda column: -column.worth)
    while len(kept) > 1 and sum(needed[column] for column in kept) > room:
        kept.pop()
    shown = [column for column in _COLUMNS if column in kept]

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), expand=True, show_edge=False)
    for column in shown:
        justify: Literal["left", "right"] = "right" if column.is_number else "left"
        table.add_column(column.title, justify=justify, no_wrap=True)
    if has_reason:
        table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for row, each in enumerate(sessions):
        # The gate has a column of its own, before which it need not be said again.
        reason = Text(printable(each.reason.removeprefix(f"{each.gate}: ")))
        values = [cells[column][row] for column in shown]
        style = "" if each.active else "dim"
        table.add_row(*values, *([reason] if has_reason else ()), style=style)
    return table


def _literal(cell: str | Text) -> Text:
    """Never markup."""
    return Text(cell) if isinstance(cell, str) else cell


def _name(each: SessionTelemetry) -> str:
    short = each.session_id.removeprefix("sess_")[:8]
    if each.lane is None:
        return printable(short)
    # A lane that is an id is told apart by its beginning, as the connection is.
    is_id = re.fullmatch(r"[0-9a-fA-F-]{16,}", each.lane) is not None
    lane = each.lane[:8] if is_id else each.lane
    return printable(f"{short}/{lane}")[:_LONGEST_NAME]


def _speed(each: SessionTelemetry) -> str:
    return _number(each.tokens_per_second, 1) if each.active else "idle"


def sparkline(values: Sequence[float]) -> str:
    """One character a value, the highest as a full block; "" for no values."""
    highest = max(values, default=0.0)
    if highest <= 0:
        return _BARS[0] * len(values)
    return "".join(_BARS[min(7, int(value / highest * 8))] for value in values)


def _bar(share: float, width: int) -> Text:
    filled = round(min(1.0, max(0.0, share)) * width)
    style = "red" if share > 0.9 else "yellow" if share > 0.7 else "green"
    return Text("█" * filled, style) + Text("░" * (width - filled), "bright_black")


def _stages(server: ServerTelemetry, width: int) -> Text:
    """A bar, the step's time, and behind a colon what it was spent on."""
    times = (server.draft_ms, server.verify_ms, server.sample_ms, server.other_ms)
    total = sum(times)
    bar = Text()
    drawn = 0
    passed = 0.0
    for (_, style), milliseconds in zip(_STAGES, times, strict=True):
        passed += milliseconds
        end = round(passed / total * width) if total else 0
        bar.append("█" * (end - drawn), style)
        drawn = end
    bar.append("░" * (width - drawn), "bright_black")
    bar.append(f" {_number(server.measured_step_ms, 1)} ms:")
    for index, ((name, style), milliseconds) in enumerate(zip(_STAGES, times, strict=True)):
        bar.append(", " if index else " ")
        bar.append(f"{name} {milliseconds:.1f}", style)
    return bar


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
