"""What a drafter is to the engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens of the entries that were passed to `propose`, in their order.

    draft_ids: for each entry its drafted ids (of the target's vocabulary), possibly none.
    rows, row_index, vocab_ids: the distributions that they were sampled from, as described at
    `sampling.acceptance.Drafted`; row_index[b][i] belongs to draft_ids[b][i], -1 for a
    deterministic draft.
    drafter_names: which drafter made each entry's draft.
    scores: for each entry that asked for `num_scored` and has caught up, the probabilities that the
    draft model would have drafted its newest known tokens with, oldest first; () means none at all.
    """

    draft_ids: tuple[tuple[int, ...], ...]
    row_index: tuple[tuple[int, ...], ...]
    drafter_names: tuple[str, ...]
    rows: Tensor | None = None
    vocab_ids: Tensor | None = None
    scores: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def deterministic(cls, draft_ids: Many[tuple[int, ...]], name: str) -> Proposal:
        """Drafts that were not sampled from any distribution, all by one drafter."""
        return cls(
            tuple(draft_ids),
            tuple((-1,) * len(ids) for ids in draft_ids),
            (name,) * len(draft_ids),
        )

    def with_entries(self, places: Many[int], made: Proposal) -> Proposal:
        """This proposal with the entries at `places` taken from `made`, which has just those.
        This one must be deterministic: one proposal holds the rows of one drafter."""
        draft_ids, row_index = list(self.draft_ids), list(self.row_index)
        names = list(self.drafter_names)
        scores: list[tuple[float, ...]] = [()] * len(draft_ids)
        for position, place in enumerate(places):
            draft_ids[place] = made.draft_ids[position]
            row_index[place] = made.row_index[position]
            names[place] = made.drafter_names[position]
            if made.scores:
                scores[place] = made.scores[position]
        return Proposal(
            tuple(draft_ids),
            tuple(row_index),
            tuple(names),
            made.rows,
            made.vocab_ids,
            tuple(scores),
        )


class Drafter(Protocol):
    """Proposes tokens; whatever it proposes, the output follows the target's law.

    All calls come from the engine's thread. A drafter with K/V of its own keeps it in the same
    blocks as the target, under the sequence's `num_draft_computed` cursor, which it alone moves
    (the scheduler sets it at admission and resets it on release).
    """

    @property
    def required_features(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states it wants in `observe`; see `FeatureTap`."""
        ...

    def max_tokens(self, sequence: Sequence) -> int:
        """The deepest draft it can make for this sequence now."""
        ...

    def lag(self, sequence: Sequence) -> int:
        """Known tokens that it must compute before it can draft; 0 if it computes none."""
        ...

    def admit(self, sequence: Sequence) -> None:
        """The sequence has blocks from now on."""
        ...

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        """Draft up to `num_drafted` tokens for each entry, computing at most `num_catch_up` known
        tokens first. Fewer or none are legal; the number must not depend on a sampled token."""
        ...

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        """All sequences of the step after commit, and the target's features [T, F] of its packed
        rows. Roll back whatever was computed for rejected tokens."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence loses its blocks: it ended or was preempted."""
        ...


class DraftModel(Drafter, Protocol):
    """A drafter that runs a model of its own."""

    @property
    def keeps_accepted_rows(self) -> bool:
        """Whether rows computed for drafted tokens stay when those are accepted."""
        ...
