"""The session gate: speculation goes off where acceptance is low, and may come back.

Acceptance is accepted over examined, by the token rule, over the last 64 examined positions; it
means the same for every rule of verification and every depth of draft.

              below 0.40, of at least 24
        ON  ---------------------------->  OFF
         ^                                  |  after a pause, counted in emitted tokens
         |  0.50 or more, and a predicted   v
         '--------------------------------  PROBING
             gain of 5 % or more            |
                        else OFF again, <---'  and the pause is twice as long, up to 1024

Pure functions over a frozen state. A gate belongs to one drafter of one session and outlives
requests.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from paceline.core.events import Gate

OFF_BELOW = 0.40
ON_FROM = 0.50
LEAST_GAIN = 1.05
WINDOW = 64
LEAST_EXAMINED = 24
FIRST_PAUSE = 64
LAST_PAUSE = 1024

_MASK = (1 << WINDOW) - 1


@dataclass(frozen=True, slots=True)
class GateState:
    """outcomes: the last examined positions as bits, newest lowest, 1 for accepted; num_examined
    of them, at most 64. pause: tokens to emit before the next probe. num_paused: emitted since a
    position was examined, or a probe failed."""

    gate: Gate = Gate.ON
    outcomes: int = 0
    num_examined: int = 0
    pause: int = FIRST_PAUSE
    num_paused: int = 0

    @property
    def acceptance(self) -> float | None:
        """Over the window; None before anything was examined."""
        return self.outcomes.bit_count() / self.num_examined if self.num_examined else None

    @property
    def is_pause_over(self) -> bool:
        """A probe is due: for a gate that is off, and for one that is on in name alone, since what
        was examined of the session gave an estimate too low for anything to be drafted."""
        if self.gate is Gate.PROBING or self.num_paused < self.pause:
            return False
        return self.gate is Gate.OFF or self.num_examined > 0


def record(state: GateState, num_accepted: int, num_examined: int) -> GateState:
    """The window with one round more: num_accepted ones, then a zero if it was rejected."""
    outcomes, known = state.outcomes, state.num_examined
    if num_examined:
        bits = ((1 << num_accepted) - 1) << (num_examined - num_accepted)
        outcomes = ((outcomes << num_examined) | bits) & _MASK
        known = min(WINDOW, known + num_examined)
    return replace(state, outcomes=outcomes, num_examined=known)


def after_round(state: GateState, num_accepted: int, num_examined: int) -> GateState:
    """A verified draft: the gate may go off.

    A full window at ON earns the short pause back, so that a session that flaps waits longer and
    longer, and one that had a bad stretch does not.
    """
    if num_examined == 0:
        return state
    state = record(state, num_accepted, num_examined)
    if state.num_paused:
        state = replace(state, num_paused=0)
    if state.gate is not Gate.ON or state.num_examined < LEAST_EXAMINED:
        return state
    if state.outcomes.bit_count() < OFF_BELOW * state.num_examined:
        return replace(state, gate=Gate.OFF)
    if state.num_examined == WINDOW and state.pause > FIRST_PAUSE:
        return replace(state, pause=FIRST_PAUSE)
    return state


def after_tokens(state: GateState, num_emitted: int) -> GateState:
    """Tokens were emitted, none of them drafted by this drafter."""
    return replace(state, num_paused=state.num_paused + num_emitted)


def begin_probe(state: GateState) -> GateState:
    return replace(state, gate=Gate.PROBING)


def after_probe(state: GateState, acceptance: float, gain: float) -> GateState:
    """acceptance: the probe's estimate. gain: predicted tokens per second over plain decoding's."""
    pause = min(LAST_PAUSE, 2 * state.pause)
    if acceptance >= ON_FROM and gain >= LEAST_GAIN:
        return GateState(Gate.ON, pause=pause)
    return replace(state, gate=Gate.OFF, pause=pause, num_paused=0)
