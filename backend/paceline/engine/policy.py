"""How many tokens to draft for whom: asked by the scheduler before each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core.events import Gate
from paceline.core.request import DrafterKind, Speculation

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from paceline.core.events import StepTimes
    from paceline.engine.plan import Outcome
    from paceline.engine.sequence import Sequence


class SpeculationPolicy(Protocol):
    """Decides from history alone; never from a token that was drafted but not yet verified."""

    def choose(self, decoding: Many[Sequence], num_prefill_rows: int) -> list[int]:
        """Number of tokens to draft for each decoding sequence, 0 for plain decoding.

        Also sets each sequence's `gate` and `gate_reason`. Length limits are the scheduler's.
        num_prefill_rows: rows of prefill that the same step computes.
        """
        ...

    def observe(self, outcomes: Many[Outcome], times: StepTimes) -> None:
        """What became of the last plan."""
        ...


class FixedPolicy:
    """Always the asked-for number: the request's, else the server's."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self._default = num_speculative_tokens

    def choose(self, decoding: Many[Sequence], num_prefill_rows: int) -> list[int]:
        return [self._choose(sequence) for sequence in decoding]

    def observe(self, outcomes: Many[Outcome], times: StepTimes) -> None:
        """A fixed number learns nothing."""

    def _choose(self, sequence: Sequence) -> int:
        request = sequence.request
        if request.speculation is Speculation.OFF or request.drafter is DrafterKind.NONE:
            sequence.gate, sequence.gate_reason = Gate.OFF, "off: the request asked for it"
            return 0
        count = request.num_speculative_tokens
        if count is None:
            count = self._default
        sequence.gate = Gate.ON if count else Gate.OFF
        sequence.gate_reason = f"on: {count} tokens" if count else "off: 0 tokens configured"
        return count
