"""The controller's reasons, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.events import Gate

if TYPE_CHECKING:
    from paceline.core.controller_session import SessionControl, Why


def words(
    session: SessionControl,
    why: Why,
    acceptance: float | None,
    num_examined: int,
    break_even_rows: int | None,
) -> str:
    """One line. acceptance: over the last num_examined positions, None before any."""
    kind, numbers = why
    measured = (
        "nothing examined yet"
        if acceptance is None
        else f"acceptance {acceptance:.2f} over {num_examined} examined"
    )
    match kind:
        case "model":
            return f"on: {measured}, the draft model drafts {_tokens(numbers[0])}"
        case "copy":
            return (
                f"on: {measured}, {_tokens(numbers[0])} copied behind a match of {numbers[1]:.0f}"
            )
        case "catch-up":
            return f"on: the draft model catches up on {_tokens(numbers[0])} first"
        case "probe":
            return f"probing: the draft model is scored on {_tokens(numbers[0])} that it missed"
        case "acceptance":
            return f"off: {_worst(session, measured)}"
        case "low":
            return f"off: {measured}, too little to pay"
        case "load":
            limit = "" if break_even_rows is None else f", break-even {break_even_rows}"
            return f"off: compute-bound, {numbers[0]:.0f} rows{limit}"
        case "ledger":
            return (
                f"off: the ledger is full, {numbers[0] * 1e3:.1f} of {numbers[1] * 1e3:.1f} ms "
                "over plain decoding"
            )
        case "memory":
            return f"off: memory, {numbers[0]:.0f} of {numbers[1]:.0f} blocks free"
        case "refresh":
            return "on: one plain step in between, to measure plain decoding"
        case "no match":
            return "on: nothing to copy here"
        case _:
            return f"on: {measured}"


def _worst(session: SessionControl, measured: str) -> str:
    state = session.model_gate if session.has_model else session.copy_gate
    if state.gate is Gate.ON:
        return measured
    if state.acceptance is not None and state.gate is Gate.OFF:
        measured = f"acceptance {state.acceptance:.2f} over {state.num_examined} examined"
    left = max(0, state.pause - (session.num_emitted - state.paused_at))
    return f"{measured}, next probe in {_tokens(left)}" if left else f"{measured}, probe due"


def _tokens(count: float) -> str:
    return f"{count:.0f} token" + ("" if count == 1 else "s")
