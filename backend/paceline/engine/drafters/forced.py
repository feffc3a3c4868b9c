"""Tokens that a request's grammar forces, as drafts that nobody has to compute.

After `{"name` the grammar of a schema allows one continuation for many tokens. The target gives
each of them probability 1 once its row is masked, so they are accepted for certain, and verifying
them in one pass costs about as much as computing one: braces, field names and separators come
almost for free, with no draft model at all. Where the grammar leaves a choice the drafter behind
this one goes on as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.engine.drafters.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.drafters.interface import Drafter
    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.sequence import Sequence

MAX_TOKENS = 32
NAME = "forced"


def forced_tokens(sequence: Sequence, limit: int) -> tuple[int, ...]:
    """What a sequence must go on with, up to `limit` tokens; often nothing."""
    if sequence.constraint is None:
        return ()
    return sequence.constraint.forced(min(limit, MAX_TOKENS))


class ForcedDrafter:
    """Drafts what the plan says is forced, and asks another drafter for everything else.

    The other one sees the accepted tokens as it sees those of a plain step.
    """

    def __init__(self, other: Drafter) -> None:
        self._other = other

    @property
    def required_features(self) -> tuple[int, ...]:
        return self._other.required_features

    def max_tokens(self, sequence: Sequence) -> int:
        return self._other.max_tokens(sequence)

    def lag(self, sequence: Sequence) -> int:
        return self._other.lag(sequence)

    def admit(self, sequence: Sequence) -> None:
        self._other.admit(sequence)

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        free = [index for index, entry in enumerate(entries) if not entry.forced]
        if len(free) == len(entries):
            return self._other.propose(entries)
        proposal = Proposal.deterministic([entry.forced for entry in entries], NAME)
        if not free:
            return proposal
        return proposal.with_entries(free, self._other.propose([entries[index] for index in free]))

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        self._other.observe(outcomes, features)

    def release(self, sequence: Sequence) -> None:
        self._other.release(sequence)
