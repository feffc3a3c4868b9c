"""The plan in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.planning.plan import Plan

SESSION_GATE_OFF = 0.40
"""Acceptance below which Paceline's session gate switches speculation off."""

_CLEAR_GAIN = 1.10
_SMALLEST_GAIN = 1.03


@dataclass(frozen=True, slots=True)
class Verdict:
    """`decision` is one of: speculate, marginal, do not speculate, does not fit."""

    decision: str
    sentence: str


def judge(plan: Plan) -> Verdict:
    """The verdict about the first batch size of the plan."""
    if not plan.memory.pair_fits:
        return Verdict("does not fit", _does_not_fit(plan))
    row = plan.rows[0]
    draft, setup = plan.setup.draft.name, plan.setup
    if not row.fits:
        return Verdict(
            "does not fit",
            f"Does not fit: both models do, but their memory holds "
            f"{plan.memory.sessions_with_draft} sessions of {setup.context} tokens and you asked "
            f"for {row.batch}.",
        )
    if row.best_speedup < _SMALLEST_GAIN:
        return Verdict("do not speculate", _do_not(plan))
    room = plan.memory.sessions_with_draft
    if plan.break_even_batch is None or plan.break_even_batch > room:
        until = f"at every batch that memory holds ({room})"
    else:
        until = f"below batch {plan.break_even_batch}"
    lost = plan.memory.sessions_plain - plan.memory.sessions_with_draft
    cost = f"it costs {lost} of {plan.memory.sessions_plain} sessions of {setup.context} tokens"
    gate = ""
    if setup.acceptance.first < SESSION_GATE_OFF:
        gate = (
            f"; but acceptance {setup.acceptance.first:.2f} is below {SESSION_GATE_OFF:.2f}, where "
            "Paceline's session gate switches it off"
        )
    gain = row.best_speedup
    clear = gain >= _CLEAR_GAIN
    start = "Speculate" if clear else "Marginal"
    tokens = "token" if row.best_gamma == 1 else "tokens"
    sentence = (
        f"{start}: at batch {row.batch}, {draft} drafting {row.best_gamma} {tokens} gives "
        f"{gain:.2f}x ({row.cells[0].tokens_per_s:.0f} to "
        f"{row.cells[row.best_gamma].tokens_per_s:.0f} tokens/s); it pays {until}, and "
        f"{cost}{gate}."
    )
    return Verdict("speculate" if clear else "marginal", sentence)


def _do_not(plan: Plan) -> str:
    row, setup = plan.rows[0], plan.setup
    if row.break_even_alpha is None:
        why = "a draft pass and a verified token cost more than a plain token at any acceptance"
    elif row.compute_bound:
        why = (
            f"{row.batch} rows keep the arithmetic busy as it is, a verified token costs "
            f"{row.verify_cost_ratio:.2f} of a plain step, and acceptance "
            f"{setup.acceptance.first:.2f} is below the break-even of {row.break_even_alpha:.2f}"
        )
    elif setup.acceptance.first < row.break_even_alpha:
        why = (
            f"acceptance {setup.acceptance.first:.2f} is below the break-even of "
            f"{row.break_even_alpha:.2f}"
        )
    else:
        why = (
            f"a draft pass costs {row.draft_cost_ratio:.2f} and a verified token "
            f"{row.verify_cost_ratio:.2f} of a plain step"
        )
    return (
        f"Do not speculate with {setup.draft.name} at batch {row.batch}: {why}; the best that it "
        f"reaches is {row.best_speedup:.2f}x."
    )


def _does_not_fit(plan: Plan) -> str:
    setup, memory = plan.setup, plan.memory
    where = f"{setup.num_devices} x {setup.device.label}"
    usable = memory.usable_bytes * setup.num_devices / 1e9
    remedies = []
    if memory.devices_needed and memory.devices_needed > setup.num_devices:
        remedies.append(f"{memory.devices_needed} of these devices")
    if memory.precision_that_fits:
        remedies.append(f"{memory.precision_that_fits} weights for the target")
    if not memory.target_fits:
        both = f" with {setup.draft.name}" if setup.draft.shape else " (the draft needs nothing)"
        ending = f" The pair{both} would fit with {' or '.join(remedies)}." if remedies else ""
        if memory.kv_tokens_plain:
            session = setup.context * memory.kv_bytes_per_token * setup.num_devices / 1e9
            return (
                f"Does not fit: one session of {setup.context} tokens has {session:.1f} GB of K/V, "
                f"and beside the weights of {setup.target.name} {where} holds "
                f"{memory.kv_tokens_plain} tokens.{ending}"
            )
        return (
            f"Does not fit: {setup.target.name} in {setup.target_precision.name} has "
            f"{memory.target_bytes_total / 1e9:.1f} GB of weights, and {where} leaves "
            f"{usable:.1f} GB for weights and K/V.{ending}"
        )
    remedies.append("a smaller draft")
    choice = f"{', '.join(remedies[:-1])} or {remedies[-1]}" if remedies[1:] else remedies[0]
    return (
        f"Does not fit together: {setup.target.name} alone fits on {where}, but not with "
        f"{setup.draft.name} ({memory.draft_bytes_total / 1e9:.1f} GB) and one session of "
        f"{setup.context} tokens; take {choice}."
    )
