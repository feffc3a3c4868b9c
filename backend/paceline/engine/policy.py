"""How many tokens to draft for whom: asked by the scheduler before each step.

Here: what a policy is, what requests ask for themselves, and the policy that always drafts the same
number. The one that adapts is in `adaptive_policy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core.controller_session import PLAIN, Choice
from paceline.core.events import Gate
from paceline.core.request import DrafterKind, Speculation
from paceline.core.statistics import SpeculationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from paceline.core.events import StepTimes
    from paceline.engine.plan import Outcome
    from paceline.engine.sequence import Sequence


class SpeculationPolicy(Protocol):
    """Decides from history alone; never from a token that was drafted but not yet verified."""

    def choose(self, decoding: Many[Sequence], num_prefill_rows: int) -> list[Choice]:
        """What each decoding sequence drafts. Length limits and memory are the scheduler's.

        num_prefill_rows: rows of prefill that the same step computes.
        """
        ...

    def withdraw(self, decoding: Many[Sequence], num_free: int, num_blocks: int) -> None:
        """Nothing of what was just chosen will be done: K/V blocks ran short.

        num_free, num_blocks: blocks that could still be had, and all there are.
        """
        ...

    def observe(self, outcomes: Many[Outcome], times: StepTimes) -> None:
        """What became of the last plan."""
        ...

    def describe(self, sequence: Sequence) -> tuple[Gate, str]:
        """Where its gate is and why, in words."""
        ...

    def acceptance(self, sequence: Sequence) -> float | None:
        """Accepted over examined of its session's last drafted positions; None before any."""
        ...

    def status(self) -> SpeculationStatus:
        """The controller as of the last step."""
        ...

    @property
    def num_flips(self) -> tuple[int, int]:
        """How often a session's gate, and the load gate, opened or closed."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


def forced_depth(sequence: Sequence, default: int) -> int:
    """Tokens to draft for a request that wants speculation whatever it costs."""
    count = sequence.request.num_speculative_tokens
    return default if count is None else count


def forced_choice(sequence: Sequence, default: int) -> Choice:
    """Exactly the asked-for depth, by whichever drafter the request allows."""
    depth = forced_depth(sequence, default)
    return Choice(sequence.request.drafter, depth, catches_up=True) if depth else PLAIN


def is_switched_off(sequence: Sequence) -> bool:
    """Whether the request itself rules drafting out."""
    request = sequence.request
    return (
        request.speculation is Speculation.OFF
        or request.drafter is DrafterKind.NONE
        or request.num_speculative_tokens == 0
    )


class FixedPolicy:
    """Always the asked-for number: the request's, else the server's."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self._default = num_speculative_tokens

    def choose(self, decoding: Many[Sequence], num_prefill_rows: int) -> list[Choice]:
        return [
            PLAIN if is_switched_off(sequence) else forced_choice(sequence, self._default)
            for sequence in decoding
        ]

    def withdraw(self, decoding: Many[Sequence], num_free: int, num_blocks: int) -> None:
        """The number stays what it is."""

    def observe(self, outcomes: Many[Outcome], times: StepTimes) -> None:
        """A fixed number learns nothing."""

    def describe(self, sequence: Sequence) -> tuple[Gate, str]:
        if is_switched_off(sequence):
            return Gate.OFF, "off: the request asked for it"
        count = forced_depth(sequence, self._default)
        return (Gate.ON, f"on: {count} tokens") if count else (Gate.OFF, "off: 0 tokens configured")

    def acceptance(self, sequence: Sequence) -> float | None:
        counters = sequence.counters
        return counters.num_passed / counters.num_examined if counters.num_examined else None

    def status(self) -> SpeculationStatus:
        return SpeculationStatus()

    @property
    def num_flips(self) -> tuple[int, int]:
        return 0, 0

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept."""
