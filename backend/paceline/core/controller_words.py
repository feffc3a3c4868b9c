"""The controller's reasons, as people read them.

The gate, a colon, and the cause; behind a semicolon what the session's gate has measured, where it
has: `on: the draft model drafts 4 tokens; acceptance 0.71 over the last 64 tested`. What is tested
is called examined elsewhere.
"""

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
    measured = "" if acceptance is None else f"; {_measured(acceptance, num_examined)}"
    match kind:
        case "model":
            return f"on: the draft model drafts {_tokens(numbers[0])}{measured}"
        case "copy":
            copied = f"{_tokens(numbers[0])} copied from earlier text"
            return f"on: {copied}, behind a match of {numbers[1]:.0f}{measured}"
        case "catch-up":
            return f"on: the draft model catches up on {_tokens(numbers[0])} first"
        case "probe":
            return f"probing: the draft model is scored on {_tokens(numbers[0])} that it missed"
        case "low":
            return f"off: too little would be accepted to pay{measured}"
        case "load":
            limit = "" if break_even_rows is None else f", drafting pays up to {break_even_rows}"
            return f"off: the server is busy (compute-bound), {numbers[0]:.0f} rows a step{limit}"
        case "ledger":
            return (
                f"off: a pause to limit losses, drafting has lately lost {numbers[0] * 1e3:.1f} ms "
                f"against plain decoding and may lose {numbers[1] * 1e3:.1f} ms, the next draft "
                f"might lose {numbers[2] * 1e3:.1f} ms"
            )
        case "memory":
            return f"off: memory is short, {numbers[0]:.0f} of {numbers[1]:.0f} blocks free"
        case "refresh":
            return "on: one plain step in between, to measure plain decoding"
        case "no match":
            return "on: nothing to copy here"
        case _:
            return _by_gate(session, measured)


def _by_gate(session: SessionControl, measured: str) -> str:
    state = session.model_gate if session.has_model else session.copy_gate
    cause = "off: too little was accepted"
    if state.gate is Gate.ON:
        return f"on: drafts as soon as it pays{measured}"
    if state.probed is not None:
        measured = f"; the last probe found {state.probed:.2f}"
        if state.lacks_gain:
            cause = "off: too little would be accepted to pay"
    elif state.acceptance is not None and state.gate is Gate.OFF:
        measured = f"; {_measured(state.acceptance, state.num_examined)}"
    left = max(0, state.pause - (session.num_emitted - state.paused_at))
    probe = f"next probe in {_tokens(left)}" if left else "a probe is due"
    return f"{cause}, {probe}{measured}"


def _measured(acceptance: float, num_examined: int) -> str:
    return f"acceptance {acceptance:.2f} over the last {num_examined} tested"


def _tokens(count: float) -> str:
    return f"{count:.0f} token" + ("" if count == 1 else "s")
