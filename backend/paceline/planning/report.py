"""A plan as tables on the terminal and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from paceline.planning.plan import BatchRow, Plan

JSON_VERSION = 1

_VERDICT_STYLES = {
    "speculate": "bold green",
    "marginal": "bold yellow",
    "do not speculate": "bold red",
    "does not fit": "bold red",
}


def render(plans: Sequence[Plan], best: int) -> RenderableType:
    """Everything that `paceline plan` prints for people.

    Args:
        plans: at least one; several are compared first and the best is shown in full.
        best: index of the plan to show in full.
    """
    parts: list[RenderableType] = []
    if len(plans) > 1:
        parts += [_comparison(plans, best), Text()]
    parts += [*_details(plans[best])]
    return Group(*parts)


def _comparison(plans: Sequence[Plan], best: int) -> Table:
    batch = plans[0].setup.batches[0]
    table = Table(title=f"Pairings at batch {batch}", title_justify="left", box=None)
    for column in ("target", "draft", "devices"):
        table.add_column(column, overflow="fold")
    for column in ("plain tok/s", "best gamma", "tok/s", "speedup", "sessions"):
        table.add_column(column, justify="right")
    for index, plan in enumerate(plans):
        setup, row = plan.setup, plan.first
        if row is None:
            figures = ["-", "-", "-", plan.verdict.decision, "-"]
        else:
            cell = row.cells[row.best_gamma]
            figures = [
                f"{row.cells[0].tokens_per_s:.0f}",
                str(row.best_gamma),
                f"{cell.tokens_per_s:.0f}",
                f"{row.best_speedup:.2f}x",
                f"{plan.memory.sessions_with_draft} of {plan.memory.sessions_plain}",
            ]
        table.add_row(
            f"{setup.target.name} {setup.target_precision.name}",
            _draft_label(plan),
            f"{setup.num_devices} x {setup.device.label}",
            *figures,
            style="bold" if index == best else None,
        )
    return table


def _details(plan: Plan) -> list[RenderableType]:
    verdict = Text(plan.verdict.sentence, style=_VERDICT_STYLES[plan.verdict.decision])
    parts: list[RenderableType] = [_setup_table(plan), Text(), _memory_table(plan), Text()]
    if plan.rows:
        parts += [_cost_table(plan), Text(), _speedup_table(plan), Text()]
    parts += [verdict, Text(_caveat(plan), style="dim")]
    return parts


def _setup_table(plan: Plan) -> Table:
    setup, device = plan.setup, plan.setup.device
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    target_params = setup.target.total_params / 1e9
    table.add_row(
        "target",
        f"{setup.target.name}, {target_params:.2f}B parameters, {setup.target_precision.name}",
    )
    table.add_row("draft", _draft_label(plan))
    table.add_row(
        "device",
        f"{setup.num_devices} x {device.label}: {device.bandwidth_gb_s:,.0f} GB/s, "
        f"{device.bf16_tflops:,.4g} TFLOPS, {device.memory_gib:.0f} GiB each ({device.source})",
    )
    probs = ", ".join(f"{prob:.2f}" for prob in setup.acceptance.accept_probs)
    table.add_row("acceptance", f"{setup.acceptance.name}: {probs}")
    table.add_row("", Text(setup.acceptance.source, style="dim"))
    return table


def _draft_label(plan: Plan) -> str:
    setup = plan.setup
    if setup.draft.shape is None:
        return setup.draft.name
    where = f", on {plan.draft_devices} of {setup.num_devices}" if setup.num_devices > 1 else ""
    millions = setup.draft.shape.total_params / 1e6
    return f"{setup.draft.name}, {millions:,.0f}M, {setup.draft_precision.name}{where}"


def _memory_table(plan: Plan) -> Table:
    memory = plan.memory
    table = Table(title="Memory of the fullest device, GB", title_justify="left", box=None)
    for column in ("usable", "target", "draft", "left for K/V"):
        table.add_column(column, justify="right")
    table.add_column("K/V tokens", justify="right")
    table.add_column("without draft", justify="right")
    table.add_column(f"sessions of {memory.context}", justify="right")
    table.add_column("without draft", justify="right")
    left = max(0.0, memory.usable_bytes - memory.target_bytes - memory.draft_bytes)
    table.add_row(
        f"{memory.usable_bytes / 1e9:.1f}",
        f"{memory.target_bytes / 1e9:.1f}",
        f"{memory.draft_bytes / 1e9:.1f}",
        f"{left / 1e9:.1f}",
        f"{memory.kv_tokens_with_draft:,}",
        f"{memory.kv_tokens_plain:,}",
        f"{memory.sessions_with_draft:,}",
        f"{memory.sessions_plain:,}",
    )
    return table


def _cost_table(plan: Plan) -> Table:
    table = Table(title="Cost", title_justify="left", box=None)
    table.add_column("batch", justify="right")
    for column in (
        "plain step ms",
        "draft pass ms",
        "draft cost c",
        "verify cost v",
        "break-even acceptance",
    ):
        table.add_column(column, justify="right")
    table.add_column("bound by")
    for row in plan.rows:
        alpha = "none" if row.break_even_alpha is None else f"{row.break_even_alpha:.2f}"
        table.add_row(
            _batch_label(row),
            f"{row.plain_step_ms:.2f}",
            f"{row.draft_pass_ms:.2f}",
            f"{row.draft_cost_ratio:.3f}",
            f"{row.verify_cost_ratio:.3f}",
            alpha,
            "arithmetic" if row.compute_bound else "memory",
        )
    return table


def _batch_label(row: BatchRow) -> str:
    return str(row.batch) if row.fits else f"{row.batch} (no room)"


def _speedup_table(plan: Plan) -> Table:
    depths = _shown_depths(plan)
    cells = plan.rows[0].cells
    title = "Speedup by drafted tokens"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("batch", justify="right")
    for depth in depths:
        table.add_column(str(depth), justify="right")
    table.add_column("best", justify="right")
    table.add_column("tok/s plain", justify="right")
    table.add_column("tok/s best", justify="right")
    expected = [f"{cell.tokens_per_step:.2f}" for cell in (cells[depth] for depth in depths)]
    table.add_row("tokens/step", *expected, "", "", "", style="dim")
    for row in plan.rows:
        figures = []
        for cell in (row.cells[depth] for depth in depths):
            style = "red" if cell.speedup < 1.0 else ""
            if cell.gamma == row.best_gamma:
                style = "bold green"
            figures.append(Text(f"{cell.speedup:.2f}", style=style))
        best = row.cells[row.best_gamma]
        table.add_row(
            _batch_label(row),
            *figures,
            f"{row.best_speedup:.2f}x",
            f"{row.cells[0].tokens_per_s:,.0f}",
            f"{best.tokens_per_s:,.0f}",
        )
    return table


def _shown_depths(plan: Plan) -> list[int]:
    """Depths that get a column: all up to 8; of more, a spread and whichever is best."""
    most = len(plan.rows[0].cells) - 1
    if most <= 8:
        return list(range(1, most + 1))
    spread = {1, 2, 3, 4, 6, 8, 12, most}
    return sorted(spread | {row.best_gamma for row in plan.rows if row.best_gamma})


def _caveat(plan: Plan) -> str:
    efficiency = plan.setup.device.efficiency
    text = (
        f"Times count on {efficiency.bandwidth:.0%} of the bandwidth, {efficiency.compute:.0%} of "
        f"the arithmetic, {efficiency.layer_us:g} us a layer and {efficiency.pass_us:g} us a pass."
    )
    if plan.payback_tokens is not None and plan.draft_prefill_ms:
        text += (
            f" The draft computes the prompt too: {plan.draft_prefill_ms:.0f} ms for "
            f"{plan.setup.context} tokens, earned back after {plan.payback_tokens} output "
            f"{'token' if plan.payback_tokens == 1 else 'tokens'}."
        )
    if not plan.setup.acceptance.measured_here:
        text += " Acceptance was measured on other models or assumed: measure yours."
    return text


# ------------------------------------------------------------------ JSON


def to_json(plans: Sequence[Plan], best: int) -> dict[str, Any]:
    """All plans as plain values; `best` is the index of the recommended one."""
    return {"version": JSON_VERSION, "best": best, "plans": [_plan_json(plan) for plan in plans]}


def _plan_json(plan: Plan) -> dict[str, Any]:
    setup, memory = plan.setup, plan.memory
    draft_shape = setup.draft.shape
    return {
        "target": {
            "name": setup.target.name,
            "dtype": setup.target_precision.name,
            "params": setup.target.total_params,
            "active_params": setup.target.active_params,
        },
        "draft": {
            "kind": setup.draft.kind.value,
            "name": setup.draft.name,
            "dtype": setup.draft_precision.name if draft_shape else None,
            "params": draft_shape.total_params if draft_shape else 0,
            "devices": plan.draft_devices if draft_shape else 0,
        },
        "device": {**asdict(setup.device), "count": setup.num_devices},
        "context": setup.context,
        "acceptance": asdict(setup.acceptance),
        "memory": {
            **asdict(memory),
            "sessions_plain": memory.sessions_plain,
            "sessions_with_draft": memory.sessions_with_draft,
            "target_fits": memory.target_fits,
            "pair_fits": memory.pair_fits,
        },
        "batches": [asdict(row) for row in plan.rows],
        "break_even_batch": plan.break_even_batch,
        "draft_prefill_ms": plan.draft_prefill_ms,
        "payback_tokens": plan.payback_tokens,
        "verdict": asdict(plan.verdict),
    }
