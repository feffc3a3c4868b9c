"""The ledger: speculation may cost at most 3 % and a little, over every interval of time.

A leaky bucket for the whole server. After each step

    level = max(0, level + measured - 1.03 x what plain decoding of the same step would have taken)

and a speculative step is allowed only if the level has room for its worst case, that every draft is
rejected. So speculation over any run of steps costs at most 3 % of plain decoding's time plus the
capacity, by the costs that were foretold, however good the past was: gains are not saved up (the
level stops at 0), so they cannot pay for a long loss. A step that takes longer than was foretold,
on a machine that others use too, can take the level above the capacity; drafting then rests until
it is paid back.

    plain decoding of the same step = one plain step with the same prefill rows
                                    + (emitted / sequences - 1) plain steps without them

A plain step is its own reference, so that errors of prediction are never charged to it. Of a
speculative step that took far longer than predicted, the excess is the machine's (`STALL` in
`controller`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

TOLERANCE = 1.03


@dataclass(frozen=True, slots=True)
class Ledger:
    """level, capacity: seconds."""

    capacity: float
    level: float = 0.0

    def has_room(self, worst_seconds: float, plain_seconds: float) -> bool:
        """Whether a step that takes `worst_seconds` and yields no more than one plain step is
        within the bound."""
        return self.level + risk(worst_seconds, plain_seconds) <= self.capacity

    def after_plain(self, measured: float) -> Ledger:
        """A step without drafts."""
        return self._at(self.level - (TOLERANCE - 1.0) * measured)

    def after_speculative(self, measured: float, plain_equivalent: float) -> Ledger:
        """A step with drafts, or with a draft model catching up."""
        return self._at(self.level + measured - TOLERANCE * plain_equivalent)

    def _at(self, level: float) -> Ledger:
        return Ledger(self.capacity, max(0.0, level))


def risk(worst_seconds: float, plain_seconds: float) -> float:
    """What a step adds to the ledger at worst, as for `Ledger.has_room`. Beyond the capacity not
    even an empty ledger has room for it."""
    return worst_seconds - TOLERANCE * plain_seconds


class PlainSeconds(NamedTuple):
    """What plain decoding takes in place of a step. step: one plain step with the same prefill
    rows. further: each one more without them, for tokens beyond the first of each sequence."""

    step: float
    further: float


def plain_equivalent(mean_emitted: float, plain_seconds: float, prefill_seconds: float) -> float:
    """Seconds that plain decoding needs for the step's prefill and its tokens.

    mean_emitted: tokens per decoding sequence. plain_seconds: of a plain step of the decoding
    sequences alone; prefill_seconds: what the step's prefill rows add to it.
    """
    return prefill_seconds + plain_seconds * mean_emitted
