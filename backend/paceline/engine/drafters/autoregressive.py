"""The drafting loop of every network: catch up with the known tokens, then one token after another.

A subclass says how its network computes rows. What a row is it alone knows (logits, or a hidden row
that logits are made of); the loop carries rows from one token to the next.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import compress
from typing import TYPE_CHECKING

import torch

from paceline.core.request import DrafterKind
from paceline.engine.drafters.interface import Proposal
from paceline.engine.drafters.next_tokens import next_tokens
from paceline.engine.drafters.ngram import serves
from paceline.engine.drafters.scoring import score_known
from paceline.model.batch import Segment
from paceline.sampling.tail import needs_tail
from paceline.sampling.warping import highest

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.plan import PlanEntry
    from paceline.engine.sequence import Sequence
    from paceline.sampling.tail import Tail

MAX_TOKENS = 6


@dataclass(slots=True)
class _Draft:
    """The draft of one entry while it grows, and what its newest known tokens scored."""

    sequence: Sequence
    limit: int
    ids: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    scores: tuple[float, ...] = ()


class AutoregressiveDrafter(ABC):
    """Drafts with a network that has K/V of its own in the target's blocks.

    vocabulary_size: ids that mean the same in the target. output_ids: int64 [D], the target's id of
    each column of the network's logits, rising; None where they are equal. tail: of the ids that
    have no column. max_model_len: positions that can be drafted at. scrub: zeroes blocks of the
    network's K/V.
    """

    def __init__(
        self,
        *,
        vocabulary_size: int,
        output_ids: Tensor | None,
        max_model_len: int,
        scrub: Callable[[Many[int]], None],
        tail: Tail | None = None,
    ) -> None:
        self._vocabulary_size = vocabulary_size
        self._output_ids = output_ids
        self._tail = tail
        self._max_model_len = max_model_len
        self._scrub = scrub
        self._broken: set[str] = set()

    @abstractmethod
    def _known_rows(self, segments: Many[Segment]) -> tuple[Tensor, list[int]]:
        """Compute known tokens, one segment a sequence.

        Returns:
            Rows [R, ...] with at least the last `num_logits` of each segment in one run, and for
            each segment the index after its last row.
        """

    @abstractmethod
    def _drafted_rows(self, segments: Many[Segment], rows: Tensor, origins: list[int]) -> Tensor:
        """Compute one drafted token a segment: [N, ...], one row for each.

        rows, origins: the row that each of the tokens was sampled from is `rows[origins[n]]`.
        """

    @abstractmethod
    def _logits(self, rows: Tensor) -> Tensor:
        """[N, D] for rows [N, ...]."""

    def _select(self, rows: Tensor, places: list[int]) -> Tensor:
        """Some of the rows, by their places."""
        return rows[places]

    def max_tokens(self, sequence: Sequence) -> int:
        if not self._serves(sequence):
            return 0
        return max(0, min(MAX_TOKENS, self._max_model_len - sequence.num_tokens))

    def lag(self, sequence: Sequence) -> int:
        return sequence.num_draft_lag if self._serves(sequence) else 0

    def admit(self, sequence: Sequence) -> None:  # noqa: B027 (nothing to do, for any network)
        """The scheduler has set the cursor to the valid rows of cached blocks."""

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        drafts = [
            _Draft(entry.sequence, min(entry.num_drafted, self.max_tokens(entry.sequence)))
            for entry in entries
        ]
        growing, rows = self._catch_up(entries, drafts)
        # All rows of a proposal are equally wide, so the tail is for all of them.
        is_hot = any(needs_tail(draft.sequence.request.sampling) for draft in growing)
        tail = self._tail if is_hot else None
        sampled_from: list[Tensor] = []
        num_sampled = 0
        while growing and rows is not None:
            growing, rows, probs = self._extend(growing, rows, num_sampled, tail)
            if probs is not None:
                sampled_from.append(probs)
                num_sampled += len(probs)
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
            rows = self._drafted_rows(segments, rows, unfinished)
        return Proposal(
            draft_ids=tuple(tuple(draft.ids) for draft in drafts),
            row_index=tuple(tuple(draft.rows) for draft in drafts),
            drafter_names=("model",) * len(drafts),
            rows=torch.cat(sampled_from) if sampled_from else None,
            vocab_ids=self._output_ids if tail is None else None,
            scores=tuple(draft.scores for draft in drafts),
        )

    def release(self, sequence: Sequence) -> None:
        self._broken.discard(sequence.request_id)

    def _serves(self, sequence: Sequence) -> bool:
        return serves(sequence, DrafterKind.MODEL) and sequence.request_id not in self._broken

    def _catch_up(
        self, entries: Many[PlanEntry], drafts: Many[_Draft]
    ) -> tuple[list[_Draft], Tensor | None]:
        """Compute the known tokens that are wanted and score the newest of them; the drafts that
        can begin, and the row that each begins with."""
        segments: list[Segment] = []
        caught_up: list[tuple[int, _Draft, int]] = []
        for entry, draft in zip(entries, drafts, strict=True):
            sequence = entry.sequence
            count = min(entry.num_catch_up, sequence.num_draft_lag)
            if count == 0:
                continue
            start = sequence.num_draft_computed
            known = sequence.token_ids[start : start + count]
            sequence.num_draft_computed += count
            num_rows = 0
            if sequence.num_draft_lag == 0:
                # The row before a token is the one that predicts it.
                num_scored = min(entry.num_scored, count - 1)
                if draft.limit > 0 or num_scored > 0:
                    num_rows = num_scored + 1
                    caught_up.append((len(segments), draft, num_scored))
            segments.append(Segment(known, start, sequence.block_table, num_rows))
        if not segments:
            return [], None
        rows, ends = self._known_rows(segments)
        for index, draft, num_scored in caught_up:
            if num_scored > 0:
                sequence = draft.sequence
                last = ends[index] - 1
                draft.scores = score_known(
                    self._logits(rows[last - num_scored : last]),
                    sequence.token_ids[-num_scored:],
                    sequence.request.sampling,
                    self._output_ids,
                    self._tail,
                )
        beginning = [(index, draft) for index, draft, _ in caught_up if draft.limit > 0]
        first = [ends[index] - 1 for index, _ in beginning]
        return [draft for _, draft in beginning], self._select(rows, first)

    def _extend(
        self, growing: list[_Draft], rows: Tensor, num_sampled: int, tail: Tail | None
    ) -> tuple[list[_Draft], Tensor, Tensor | None]:
        """Sample one more token for each draft from its row.

        Returns the drafts that got one, their rows, and the float32 rows that were sampled from; a
        draft whose row is not finite ends here. num_sampled: rows sampled from so far. tail: where
        ids without a column are drafted too.
        """
        logits = self._logits(rows)
        tokens_of_peaks, peaks = highest(logits)
        is_finite = [math.isfinite(peak) for peak in peaks.tolist()]
        if not all(is_finite):
            for draft, is_good in zip(growing, is_finite, strict=True):
                if not is_good:
                    self._drop(draft.sequence)
            kept = list(compress(range(len(growing)), is_finite))
            growing, logits, rows = [growing[i] for i in kept], logits[kept], rows[kept]
            tokens_of_peaks = tokens_of_peaks[kept]
            if not growing:
                return [], rows, None
        vocab_ids = self._output_ids
        if tail is not None:
            logits = tail.widen(logits, [draft.sequence.request.sampling for draft in growing])
            tokens_of_peaks, vocab_ids = tail.output_ids[tokens_of_peaks], None
        made = next_tokens(
            logits,
            tokens_of_peaks,
            [draft.sequence for draft in growing],
            [draft.ids for draft in growing],
            self._vocabulary_size,
            vocab_ids,
        )
        tokens = made.token_ids.tolist()
        for row, (draft, token, has_row) in enumerate(
            zip(growing, tokens, made.has_row, strict=True)
        ):
            draft.ids.append(token)
            draft.rows.append(num_sampled + row if has_row else -1)
        return growing, rows, made.rows

    def _drop(self, sequence: Sequence) -> None:
        """The network broke down on this sequence: it decodes plainly from now on. NaN left in its
        blocks would poison whoever gets them next, even behind a mask."""
        self._broken.add(sequence.request_id)
        self._scrub(sequence.block_table)
