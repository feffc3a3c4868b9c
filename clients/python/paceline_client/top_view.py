"""A telemetry sample as a screen: pure, from values to what rich can draw."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paceline_client.answer_view import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from paceline_protocol.messages import ServerTelemetry, SessionTelemetry, TelemetrySample

_BARS = "▁▂▃▄▅▆▇█"
_MAX_HISTORY = 512
_HEADER_LINES = 5
_TABLE_LINES = 3
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
    parts: list[RenderableType] = []
    if sample.server is not None:
        parts += _server_lines(sample, sample.server, history, width)
    if note:
        parts.append(Text(note, style="bold red", no_wrap=True, overflow="ellipsis"))
    sessions = sorted(
        sample.sessions,
        key=lambda each: (not each.active, -(each.tokens_per_second or 0), each.session_id),
    )
    room = max(1, height - _HEADER_LINES - _TABLE_LINES - bool(note))
    shown = sessions if len(sessions) <= room else sessions[: room - 1]
    parts.append(_table(shown))
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
    line.append(f"  {server.num_sessions} sessions, {server.num_running} running, ")
    line.append(f"{server.num_waiting} waiting", "bold yellow" if server.num_waiting else "")
    line.append(f"  {_number(server.tokens_per_second, 1)} tokens/s")

    used = server.num_blocks - server.num_free_blocks
    blocks = Text("blocks ", no_wrap=True, overflow="ellipsis")
    blocks.append_text(_bar(used / server.num_blocks if server.num_blocks else 0.0, 20))
    blocks.append(f" {used} of {server.num_blocks}, {server.num_cached_blocks} cached")
    if sample.ledger_level_ms is not None:
        blocks.append(f"  ledger {sample.ledger_level_ms:.1f} ms")

    step = Text("step   ", no_wrap=True, overflow="ellipsis")
    step.append_text(_stages(server, 20))
    step.append(f" {_number(server.measured_step_ms, 1)} ms")
    if server.predicted_step_ms is not None:
        step.append(f" (predicted {server.predicted_step_ms:.1f})")
    step.append(f", {server.num_rows} rows")
    if server.break_even_rows is not None:
        step.append(f" of {server.break_even_rows} where drafting still pays")

    speed = Text("speed  ", no_wrap=True)
    speed.append(sparkline(list(history.tokens_per_second)[-max(1, width - 8) :]), "green")
    return [line, blocks, step, speed, Text()]


def _table(sessions: Sequence[SessionTelemetry]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), expand=True, show_edge=False)
    table.add_column("session", no_wrap=True)
    table.add_column("drafter", no_wrap=True)
    table.add_column("gate", no_wrap=True)
    for name in ("accepted", "tokens/step", "tokens/s", "first ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("drafted", no_wrap=True)
    table.add_column("why", no_wrap=True, overflow="ellipsis", ratio=1)
    for each in sessions:
        table.add_row(
            Text(_name(each)),
            Text(printable(each.drafter)),
            Text(each.gate, _GATE_STYLES.get(each.gate, "")),
            _number(each.acceptance, 2),
            _number(each.tokens_per_step, 2),
            _number(each.tokens_per_second, 1),
            _number(each.time_to_first_token_ms, 0),
            sparkline([float(count) for count in each.gamma_histogram]),
            Text(printable(each.reason)),
            style="" if each.active else "dim",
        )
    return table


def _name(each: SessionTelemetry) -> str:
    short = each.session_id.removeprefix("sess_")[:8]
    return printable(short if each.lane is None else f"{short}/{each.lane}")[:28]


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
    for (name, style), milliseconds in zip(_STAGES, times, strict=True):
        bar.append(f" {name} {milliseconds:.1f}", style)
    return bar


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
