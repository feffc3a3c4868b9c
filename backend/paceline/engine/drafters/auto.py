"""Two drafters behind one interface; the plan says which one drafts for whom."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.core.request import DrafterKind
from paceline.engine.drafters.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.drafters.interface import DraftModel
    from paceline.engine.drafters.ngram import NgramDrafter
    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.sequence import Sequence


class AutoDrafter:
    """An n-gram drafter and a draft model; one choice per sequence and step.

    The choice is the policy's, by predicted tokens per second (`PlanEntry.drafter`); AUTO takes the
    n-gram where it has a match, else the model. While the n-gram drafts, the draft model computes
    nothing and lags; it catches up, chunk by chunk, when it is needed again.
    """

    def __init__(self, ngram: NgramDrafter, model: DraftModel) -> None:
        self.ngram = ngram
        self.model = model

    @property
    def required_features(self) -> tuple[int, ...]:
        return self.model.required_features

    def max_tokens(self, sequence: Sequence) -> int:
        return max(self.ngram.max_tokens(sequence), self.model.max_tokens(sequence))

    def lag(self, sequence: Sequence) -> int:
        return self.model.lag(sequence)

    def admit(self, sequence: Sequence) -> None:
        self.ngram.admit(sequence)
        self.model.admit(sequence)

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        drafts = [
            self.ngram.lookup(entry.sequence, entry.num_drafted)
            if entry.drafter is not DrafterKind.MODEL
            else ()
            for entry in entries
        ]
        missing = [
            index
            for index, (draft, entry) in enumerate(zip(drafts, entries, strict=True))
            if not draft and entry.drafter is not DrafterKind.NGRAM
        ]
        proposal = Proposal.deterministic(drafts, "ngram")
        if not missing:
            return proposal
        made = self.model.propose([self._clamp(entries[index]) for index in missing])
        return proposal.with_entries(missing, made)

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        self.ngram.observe(outcomes, features)
        self.model.observe(outcomes, features)

    def release(self, sequence: Sequence) -> None:
        self.ngram.release(sequence)
        self.model.release(sequence)

    def _clamp(self, entry: PlanEntry) -> PlanEntry:
        limit = self.model.max_tokens(entry.sequence)
        return entry if entry.num_drafted <= limit else replace(entry, num_drafted=limit)
