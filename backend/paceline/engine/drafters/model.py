"""An independent small model as drafter: same tokenizer, own K/V in the target's blocks.

To draft, it first computes the known tokens it lags behind by (one or two in the steady state),
then one token after another from its own distribution. Its rows for drafted tokens that were
accepted stay valid; the last drafted token is never fed to it, so after a full acceptance it trails
by one token more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from paceline.core.request import DrafterKind
from paceline.engine.drafters.interface import Proposal
from paceline.engine.drafters.next_tokens import next_tokens
from paceline.engine.drafters.ngram import serves
from paceline.engine.drafters.scoring import score_known
from paceline.model.batch import Segment, pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.runner import Runner
    from paceline.engine.sequence import Sequence

MAX_TOKENS = 6


@dataclass(slots=True)
class _Draft:
    """The draft of one entry while it grows, and what its newest known tokens scored."""

    sequence: Sequence
    limit: int
    ids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    scores: tuple[float, ...] = ()


class ModelDrafter:
    """Drafts with a model of the target's vocabulary.

    runner: the draft model; vocabulary_size: ids that mean the same in both models.
    max_model_len: positions that the draft model has. scrub: zeroes blocks of its K/V.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        block_size: int,
        vocabulary_size: int,
        max_model_len: int,
        scrub: Callable[[Many[int]], None],
    ) -> None:
        self._runner = runner
        self._block_size = block_size
        self._vocabulary_size = vocabulary_size
        self._max_model_len = max_model_len
        self._scrub = scrub
        self._num_draft_rows: dict[str, int] = {}
        self._broken: set[str] = set()

    @property
    def required_features(self) -> tuple[int, ...]:
        return ()

    @property
    def keeps_accepted_rows(self) -> bool:
        return True

    def max_tokens(self, sequence: Sequence) -> int:
        if not self._serves(sequence):
            return 0
        return max(0, min(MAX_TOKENS, self._max_model_len - sequence.num_tokens))

    def lag(self, sequence: Sequence) -> int:
        return sequence.num_draft_lag if self._serves(sequence) else 0

    def admit(self, sequence: Sequence) -> None:
        """The scheduler has set the cursor to the valid rows of cached blocks."""

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        drafts = [
            _Draft(entry.sequence, min(entry.num_drafted, self.max_tokens(entry.sequence)))
            for entry in entries
        ]
        growing, logits = self._catch_up(entries, drafts)
        rows: list[Tensor] = []
        num_rows = 0
        while growing and logits is not None:
            growing, probs = self._extend(growing, logits, num_rows)
            if probs is not None:
                rows.append(probs)
                num_rows += len(probs)
            growing = [draft for draft in growing if len(draft.ids) < draft.limit]
            if not growing:
                break
            segments = [
                Segment(
                    draft.ids[-1:],
                    draft.sequence.num_tokens + len(draft.ids) - 1,
                    draft.sequence.block_table,
                    1,
                )
                for draft in growing
            ]
            logits = self._forward(segments)
        for draft in drafts:
            self._num_draft_rows[draft.sequence.request_id] = max(0, len(draft.ids) - 1)
        return Proposal(
            draft_ids=tuple(tuple(draft.ids) for draft in drafts),
            row_index=tuple(tuple(draft.rows) for draft in drafts),
            drafter_names=("model",) * len(drafts),
            rows=torch.cat(rows) if rows else None,
            scores=tuple(draft.scores for draft in drafts),
        )

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        for outcome in outcomes:
            sequence = outcome.sequence
            written = self._num_draft_rows.pop(sequence.request_id, 0)
            if written:
                sequence.num_draft_computed += min(outcome.num_accepted, written)

    def release(self, sequence: Sequence) -> None:
        self._num_draft_rows.pop(sequence.request_id, None)
        self._broken.discard(sequence.request_id)

    def _serves(self, sequence: Sequence) -> bool:
        return serves(sequence, DrafterKind.MODEL) and sequence.request_id not in self._broken

    def _forward(self, segments: Many[Segment]) -> Tensor:
        logits = self._runner.forward(pack(segments, self._block_size)).logits
        return logits[:, : self._vocabulary_size]

    def _catch_up(
        self, entries: Many[PlanEntry], drafts: Many[_Draft]
    ) -> tuple[list[_Draft], Tensor | None]:
        """Compute the known tokens that are wanted; the drafts that can begin, and the row of
        logits [N, V] that each begins with."""
        segments: list[Segment] = []
        growing: list[_Draft] = []
        first_rows: list[int] = []
        scored: list[tuple[_Draft, int, int]] = []
        total = 0
        for entry, draft in zip(entries, drafts, strict=True):
            sequence = entry.sequence
            count = min(entry.num_catch_up, sequence.num_draft_lag)
            if count == 0:
                continue
            start = sequence.num_draft_computed
            known = sequence.token_ids[start : start + count]
            sequence.num_draft_computed += count
            num_logits = 0
            if sequence.num_draft_lag == 0:
                # The row before a token is the one that predicts it.
                num_scored = min(entry.num_scored, count - 1)
                num_logits = num_scored + (draft.limit > 0 or num_scored > 0)
                if num_scored:
                    scored.append((draft, total, num_scored))
                if draft.limit > 0:
                    growing.append(draft)
                    first_rows.append(total + num_logits - 1)
            segments.append(Segment(known, start, sequence.block_table, num_logits))
            total += num_logits
        if not segments:
            return [], None
        logits = self._forward(segments)
        for draft, first, count in scored:
            sequence = draft.sequence
            draft.scores = score_known(
                logits[first : first + count],
                sequence.token_ids[-count:],
                sequence.request.sampling,
                None,
            )
        return growing, logits[first_rows]

    def _extend(
        self, growing: list[_Draft], logits: Tensor, num_rows: int
    ) -> tuple[list[_Draft], Tensor | None]:
        """Sample one more token for each draft from its row of logits.

        Returns the drafts that got one and the float32 rows that were sampled from; a draft whose
        row is not finite ends here.
        """
        finite = torch.isfinite(logits.amax(-1))
        if not bool(finite.all()):
            for draft, is_good in zip(growing, finite.tolist(), strict=True):
                if not is_good:
                    self._drop(draft.sequence)
            growing = [d for d in growing if d.sequence.request_id not in self._broken]
            logits = logits[finite]
            if not growing:
                return [], None
        made = next_tokens(
            logits,
            [draft.sequence for draft in growing],
            [draft.ids for draft in growing],
            self._vocabulary_size,
        )
        tokens = made.token_ids.tolist()
        for row, (draft, token, has_row) in enumerate(
            zip(growing, tokens, made.has_row, strict=True)
        ):
            draft.ids.append(token)
            draft.rows.append(num_rows + row if has_row else -1)
        return growing, made.rows

    def _drop(self, sequence: Sequence) -> None:
        """The draft model broke down on this sequence: it decodes plainly from now on. NaN left in
        its blocks would poison whoever gets them next, even behind a mask."""
        self._broken.add(sequence.request_id)
        self._scrub(sequence.block_table)
