"""The session gate: speculation goes off where acceptance is low, and may come back.

Acceptance is accepted over examined, by the token rule, over the last 64 examined positions; it
means the same for every rule of verification and every depth of draft. A position counts with the
probability that it was accepted with, min(1, target / draft) of its token, which has the same mean
as what became of it and less chance in it. Of greedy and seeded drafts and of look-ups both are 0
or 1. Operators may set another threshold than 0.40; the way back is 0.10 above it.

While fewer than 64 positions are known, chance alone would switch off a quarter of the sessions
that have 0.50 of zeros and ones. So the missing ones are filled by what is usual, the first
position's rate over all such sessions (0.60 at most), and it has to be below 0.40 with them too. A
session that accepts nothing is off after 24 all the same, and every one that is below 0.40 after
64.

              below 0.40, of at least 24
        ON  ---------------------------->  OFF
         ^                                  |  after a pause, counted in emitted tokens
         |  0.50 or more, and a predicted   v
         '--------------------------------  PROBING
             gain of 5 % or more            |
                        else OFF again, <---'  and the pause is twice as long, up to 1024

A gate that is on may be probed too, where what is expected of its drafts is too little for any to
be made: nothing is examined then, and nobody would find out that it is wrong. Such a probe closes
it below 0.40 only, and not for want of a result.

Pure functions over a frozen state. A gate belongs to one drafter of one session and outlives
requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline.core.events import Gate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

OFF_BELOW = 0.40
ON_ABOVE = 0.10
LEAST_GAIN = 1.05
WINDOW = 64
LEAST_EXAMINED = 24
_MOST_USUAL = 1.5
"""In thresholds. However good a drafter usually is, a session that accepted none of its first 24 is
off."""
FIRST_PAUSE = 64
LAST_PAUSE = 1024

_CERTAIN = 255


class GateState(NamedTuple):
    """chances: of the last examined positions, at most 64, oldest first, to have been accepted, in
    255ths. pause: tokens to emit before the next probe, counted from `paused_at`: how
    many the session had emitted when a position was examined last, or a probe failed. probed: the
    acceptance that the last probe found, where it left the gate closed and nothing was examined
    since; lacks_gain: it was enough, but would not have paid. was: what a gate that is being probed
    was before."""

    gate: Gate = Gate.ON
    chances: bytes = b""
    pause: int = FIRST_PAUSE
    paused_at: int = 0
    probed: float | None = None
    was: Gate = Gate.ON
    lacks_gain: bool = False

    @property
    def acceptance(self) -> float | None:
        """Over the window; None before anything was examined."""
        return sum(self.chances) / (_CERTAIN * len(self.chances)) if self.chances else None

    @property
    def num_examined(self) -> int:
        """Positions in the window."""
        return len(self.chances)

    def is_probe_due(self, num_emitted: int) -> bool:
        """For a gate that is off, and for one that is on in name alone, since what was examined of
        the session gave an estimate too low for anything to be drafted. num_emitted: by now."""
        if num_emitted - self.paused_at < self.pause or self.gate is Gate.PROBING:
            return False
        return self.gate is Gate.OFF or bool(self.chances) or self.paused_at > 0


def record(state: GateState, chances: Iterable[float]) -> GateState:
    """The window with one round more. chances: of its examined positions to be accepted."""
    gate, window, pause, paused_at, *_ = state
    return GateState(gate, _with(window, chances), pause, paused_at, was=state.was)


def _with(window: bytes, chances: Iterable[float]) -> bytes:
    return (window + bytes([round(chance * _CERTAIN) for chance in chances]))[-WINDOW:]


def after_round(
    state: GateState,
    chances: Sequence[float],
    num_emitted: int,
    usual: float,
    off_below: float = OFF_BELOW,
) -> GateState:
    """A verified draft: the gate may go off. chances: of its examined positions to be accepted.
    num_emitted: by the session so far. usual: the rate that the shared baseline has for such
    drafts.

    A full window at ON earns the short pause back, so that a session that flaps waits longer and
    longer, and one that had a bad stretch does not.
    """
    if not chances:
        return state
    gate, window, pause, *_ = state
    window = _with(window, chances)
    known = len(window)
    if gate is Gate.ON and known >= LEAST_EXAMINED:
        accepted = sum(window) / _CERTAIN
        filled = accepted + min(usual, _MOST_USUAL * off_below) * (WINDOW - known)
        if accepted < off_below * known and filled < off_below * WINDOW:
            gate = Gate.OFF
        elif known == WINDOW:
            pause = FIRST_PAUSE
    return GateState(gate, window, pause, num_emitted, was=state.was)


def begin_probe(state: GateState) -> GateState:
    return state._replace(gate=Gate.PROBING, was=state.gate)


def after_probe(
    state: GateState,
    acceptance: float,
    gain: float,
    num_emitted: int,
    off_below: float = OFF_BELOW,
) -> GateState:
    """acceptance: the probe's estimate. gain: predicted tokens per second over plain decoding's."""
    pause = min(LAST_PAUSE, 2 * state.pause)
    if acceptance >= off_below + ON_ABOVE and gain >= LEAST_GAIN:
        return GateState(Gate.ON, pause=pause, paused_at=num_emitted)
    after = state._replace(pause=pause, paused_at=num_emitted)
    if state.was is Gate.ON and acceptance >= off_below:
        return after._replace(gate=Gate.ON)
    is_enough = acceptance >= off_below + ON_ABOVE
    return after._replace(gate=Gate.OFF, probed=acceptance, lacks_gain=is_enough)


def without_result(state: GateState, num_emitted: int) -> GateState:
    """A probe that examined too little to tell: as it was, and as long a pause again."""
    return state._replace(gate=state.was, paused_at=num_emitted, probed=None)
