"""Drafts with a module that borrows from the target: a head on its hidden states, or a decoder.

How the module is driven is told in `model.draft_head`. Its true rows are functions of the target's
features of committed tokens, so they stay; its drafted rows stand on its own guesses and are
dropped after each step, however many tokens were accepted. The next draft then begins with one pass
over the rows of what was committed.

The target's features exist only in the step that computed them. They are kept here until the
module's rows have been computed from them, a bounded number for each sequence. Rows whose features
are gone (a long time without drafting, the first row behind a prefix found in the cache) are
computed without: that may cost acceptance, never the output's law.
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
    from paceline.engine.sequence import Sequence
    from paceline.model.draft_runner import DraftModuleRunner

MAX_TOKENS = 6
MAX_KEPT_FEATURES = 1024
"""Rows of features kept for a sequence that does not draft."""


@dataclass(slots=True)
class _Features:
    """The target's features of positions `end - kept .. end - 1`, in parts [n, F]."""

    end: int
    kept: int = 0
    parts: list[Tensor] = field(default_factory=list)

    def append(self, rows: Tensor) -> None:
        self.parts.append(rows)
        self.end += len(rows)
        self.kept += len(rows)
        while self.parts and self.kept - len(self.parts[0]) >= MAX_KEPT_FEATURES:
            self.kept -= len(self.parts.pop(0))

    def take(self, start: int, count: int, width: int, like: Tensor) -> Tensor:
        """[count, F] of positions from `start` on, zero where they are gone, and forget all before
        the last of them."""
        rows = like.new_zeros((count, width))
        have = torch.cat(self.parts) if self.parts else rows[:0]
        first = self.end - len(have)
        begin, end = max(start, first), min(start + count, self.end)
        if begin < end:
            rows[begin - start : end - start] = have[begin - first : end - first]
        left = have[max(0, start + count - first) :]
        self.parts = [left] if len(left) else []
        self.kept = len(left)
        return rows


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
        self._features: dict[str, _Features] = {}
        self._broken: set[str] = set()

    @property
    def required_features(self) -> tuple[int, ...]:
        return self._runner.feature_layers

    def max_tokens(self, sequence: Sequence) -> int:
        if not self._serves(sequence):
            return 0
        return max(0, min(MAX_TOKENS, self._max_model_len - sequence.num_tokens))

    def lag(self, sequence: Sequence) -> int:
        return sequence.num_draft_lag if self._serves(sequence) else 0

    def admit(self, sequence: Sequence) -> None:
        """The scheduler has set both cursors to what cached blocks hold."""
        self._features[sequence.request_id] = _Features(sequence.num_computed)

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
        for outcome in outcomes:
            kept = self._features.get(outcome.sequence.request_id)
            if kept is None:
                continue
            count = outcome.num_rows - outcome.num_drafted + outcome.num_accepted
            # A copy: a view would keep the whole step's features alive.
            rows = features[outcome.first_row : outcome.first_row + count].clone()
            kept.append(rows)

    def release(self, sequence: Sequence) -> None:
        self._features.pop(sequence.request_id, None)
        self._broken.discard(sequence.request_id)

    def _serves(self, sequence: Sequence) -> bool:
        return serves(sequence, DrafterKind.MODEL) and sequence.request_id not in self._broken

    def _catch_up(
        self, entries: Many[PlanEntry], drafts: Many[_Draft]
    ) -> tuple[list[_Draft], Tensor | None]:
        """Compute the true rows that are wanted; the drafts that can begin, and the hidden row
        [N, H] that each begins with."""
        segments: list[Segment] = []
        inputs: list[Tensor] = []
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
            inputs.append(self._conditioned(sequence, start, count))
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
        hidden = self._runner.forward(pack(segments, self._block_size), torch.cat(inputs))
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

    def _conditioned(self, sequence: Sequence, start: int, count: int) -> Tensor:
        """What features contribute to rows `start .. start + count - 1`: [count, H]."""
        kept = self._features[sequence.request_id]
        # Row i takes the features of position i - 1; row 0 has none.
        first = max(start - 1, 0)
        rows = kept.take(first, count - (start == 0), self._runner.feature_width, self._runner.zero)
        if start == 0:
            rows = torch.cat((rows.new_zeros((1, rows.shape[1])), rows))
        return self._runner.condition(rows)

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
