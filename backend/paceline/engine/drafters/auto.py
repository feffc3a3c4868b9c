"""N-gram where it has a match, else the draft model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.engine.drafters.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.drafters.interface import Drafter
    from paceline.engine.drafters.ngram import NgramDrafter
    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.sequence import Sequence


class AutoDrafter:
    """Two drafters, one choice per sequence and step.

    While the n-gram drafts, the draft model computes nothing and lags; it catches up, chunk by
    chunk, when it is needed again.
    """

    def __init__(self, ngram: NgramDrafter, model: Drafter) -> None:
        self._ngram = ngram
        self._model = model

    @property
    def required_features(self) -> tuple[int, ...]:
        return self._model.required_features

    def max_tokens(self, sequence: Sequence) -> int:
        return max(self._ngram.max_tokens(sequence), self._model.max_tokens(sequence))

    def lag(self, sequence: Sequence) -> int:
        return self._model.lag(sequence)

    def admit(self, sequence: Sequence) -> None:
        self._ngram.admit(sequence)
        self._model.admit(sequence)

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        drafts = [self._ngram.lookup(entry.sequence, entry.num_drafted) for entry in entries]
        missing = [index for index, draft in enumerate(drafts) if not draft]
        row_index = [(-1,) * len(draft) for draft in drafts]
        names = ["ngram"] * len(entries)
        rows, vocab_ids = None, None
        if missing:
            proposal = self._model.propose([self._clamp(entries[index]) for index in missing])
            rows, vocab_ids = proposal.rows, proposal.vocab_ids
            for position, index in enumerate(missing):
                drafts[index] = proposal.draft_ids[position]
                row_index[index] = proposal.row_index[position]
                names[index] = proposal.drafter_names[position]
        return Proposal(tuple(drafts), tuple(row_index), tuple(names), rows, vocab_ids)

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        self._ngram.observe(outcomes, features)
        self._model.observe(outcomes, features)

    def release(self, sequence: Sequence) -> None:
        self._ngram.release(sequence)
        self._model.release(sequence)

    def _clamp(self, entry: PlanEntry) -> PlanEntry:
        limit = self._model.max_tokens(entry.sequence)
        return entry if entry.num_drafted <= limit else replace(entry, num_drafted=limit)
