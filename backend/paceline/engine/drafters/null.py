"""The drafter that drafts nothing: plain decoding is this, through the same step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.engine.drafters.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.sequence import Sequence


class NullDrafter:
    """Never drafts and keeps nothing."""

    @property
    def required_features(self) -> tuple[int, ...]:
        return ()

    def max_tokens(self, sequence: Sequence) -> int:
        return 0

    def lag(self, sequence: Sequence) -> int:
        return 0

    def admit(self, sequence: Sequence) -> None:
        """Nothing to prepare."""

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        count = len(entries)
        return Proposal(((),) * count, ((),) * count, ("none",) * count)

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        """Nothing to learn."""

    def release(self, sequence: Sequence) -> None:
        """Nothing to give back."""
