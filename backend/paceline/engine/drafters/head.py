"""Drafts with a module that borrows from the target: a head on its hidden states, or a decoder.

How the module is driven is told in `model.draft_head`. Its true rows are functions of the target's
features of committed tokens, so they stay; its drafted rows stand on its own guesses and are
dropped after each step, however many tokens were accepted. The next draft then begins with one pass
over the rows of what was committed.

The target's features exist only in the step that computed them, so they are put into memory there,
under the slots of their positions, and the module's rows can be computed from them at any time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
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
    from paceline.engine.sequence import Sequence
    from paceline.model.batch import Int64s
    from paceline.model.draft_runner import DraftModuleRunner

MAX_TOKENS = 6


@dataclass(slots=True)
class _Draft:
    """The draft of one entry while it grows, and what its newest known tokens scored."""

    sequence: Sequence
    limit: int
    ids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    scores: tuple[float, ...] = ()


class HeadDrafter:
    """Drafts with a `DraftModule` over the blocks of the target.

    runner: the module with its K/V. vocabulary_size: the target's. max_model_len: positions that
    the target has. scrub: zeroes blocks of the module's K/V.
    """

    def __init__(
        self,
        runner: DraftModuleRunner,
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
        self._broken: set[str] = set()

    @property
    def required_features(self) -> tuple[int, ...]:
        return self._runner.feature_layers

    @property
    def keeps_accepted_rows(self) -> bool:
        return False

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
        growing, hidden = self._catch_up(entries, drafts)
        rows: list[Tensor] = []
        num_rows = 0
        while growing and hidden is not None:
            growing, hidden, probs = self._extend(growing, hidden, num_rows)
            if probs is not None:
                rows.append(probs)
                num_rows += len(probs)
            unfinished = [i for i, draft in enumerate(growing) if len(draft.ids) < draft.limit]
            growing = [growing[i] for i in unfinished]
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
            before = self._runner.recur(hidden[unfinished])
            hidden = self._runner.forward(pack(segments, self._block_size), before)
        return Proposal(
            draft_ids=tuple(tuple(draft.ids) for draft in drafts),
            row_index=tuple(tuple(draft.rows) for draft in drafts),
            drafter_names=("model",) * len(drafts),
            rows=torch.cat(rows) if rows else None,
            vocab_ids=self._runner.output_ids,
            scores=tuple(draft.scores for draft in drafts),
        )

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        if features is None:
            return
        slots: list[Int64s] = []
        rows: list[Int64s] = []
        for outcome in outcomes:
            sequence = outcome.sequence
            known = outcome.num_rows - outcome.num_drafted
            end = sequence.num_computed
            start = (outcome.num_before if outcome.num_committed else end) - known
            slots.append(self._slots(sequence, np.arange(start, end)))
            rows.append(np.arange(outcome.first_row, outcome.first_row + end - start))
        if not slots:
            return
        chosen = np.concatenate(rows)
        if len(chosen) < len(features):
            features = features[torch.from_numpy(chosen).to(features.device)]
        self._runner.keep_features(np.concatenate(slots), features)

    def release(self, sequence: Sequence) -> None:
        self._broken.discard(sequence.request_id)

    def _serves(self, sequence: Sequence) -> bool:
        return serves(sequence, DrafterKind.MODEL) and sequence.request_id not in self._broken

    def _catch_up(
        self, entries: Many[PlanEntry], drafts: Many[_Draft]
    ) -> tuple[list[_Draft], Tensor | None]:
        """Compute the true rows that are wanted; the drafts that can begin, and the hidden row
        [N, H] that each begins with."""
        segments: list[Segment] = []
        before: list[Int64s] = []
        growing: list[_Draft] = []
        last_rows: list[int] = []
        scored: list[tuple[_Draft, int, int]] = []
        total = 0
        for entry, draft in zip(entries, drafts, strict=True):
            sequence = entry.sequence
            count = min(entry.num_catch_up, sequence.num_draft_lag)
            if count == 0:
                continue
            start = sequence.num_draft_computed
            known = sequence.token_ids[start : start + count]
            segments.append(Segment(known, start, sequence.block_table, 0))
            before.append(self._slots(sequence, np.arange(start - 1, start + count - 1)))
            sequence.num_draft_computed += count
            total += count
            if sequence.num_draft_lag > 0:
                continue
            # The row before a token is the one that predicts it.
            scored.append((draft, total - 1, min(entry.num_scored, count - 1)))
            if draft.limit > 0:
                growing.append(draft)
                last_rows.append(total - 1)
        if not segments:
            return [], None
        inputs = self._runner.condition(np.concatenate(before))
        hidden = self._runner.forward(pack(segments, self._block_size), inputs)
        for draft, end, count in scored:
            if count > 0:
                sequence = draft.sequence
                draft.scores = score_known(
                    self._runner.logits(hidden[end - count : end]),
                    sequence.token_ids[-count:],
                    sequence.request.sampling,
                    self._runner.output_ids,
                )
        return growing, hidden[last_rows]

    def _slots(self, sequence: Sequence, positions: Int64s) -> Int64s:
        """Slots of positions in the sequence's blocks, -1 for position -1."""
        table = np.array(sequence.block_table, dtype=np.int64)
        slots = table[positions // self._block_size] * self._block_size
        slots += positions % self._block_size
        return np.where(positions < 0, np.int64(-1), slots)

    def _extend(
        self, growing: list[_Draft], hidden: Tensor, num_rows: int
    ) -> tuple[list[_Draft], Tensor, Tensor | None]:
        """Sample one more token for each draft from its hidden row.

        Returns the drafts that got one, their hidden rows, and the float32 rows that were sampled
        from; a draft whose row is not finite ends here.
        """
        logits = self._runner.logits(hidden)
        finite = torch.isfinite(logits.amax(-1))
        if not bool(finite.all()):
            kept: list[_Draft] = []
            for draft, is_good in zip(growing, finite.tolist(), strict=True):
                if is_good:
                    kept.append(draft)
                else:
                    self._drop(draft.sequence)
            growing, logits, hidden = kept, logits[finite], hidden[finite]
            if not growing:
                return [], hidden, None
        made = next_tokens(
            logits,
            [draft.sequence for draft in growing],
            [draft.ids for draft in growing],
            self._vocabulary_size,
            self._runner.output_ids,
        )
        tokens = made.token_ids.tolist()
        for row, (draft, token, has_row) in enumerate(
            zip(growing, tokens, made.has_row, strict=True)
        ):
            draft.ids.append(token)
            draft.rows.append(num_rows + row if has_row else -1)
        return growing, hidden, made.rows

    def _drop(self, sequence: Sequence) -> None:
        """The module broke down on this sequence: it decodes plainly from now on. NaN left in its
        blocks would poison whoever gets them next, even behind a mask."""
        self._broken.add(sequence.request_id)
        self._scrub(sequence.block_table)
