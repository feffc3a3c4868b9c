"""Drafts with a module that borrows from the target: a head on its hidden states, or a decoder.

How the module is driven is told in `model.draft_head`. Its true rows are functions of the target's
features of committed tokens, so they stay; its drafted rows stand on its own guesses and are
dropped after each step, however many tokens were accepted. The next draft then begins with one pass
over the rows of what was committed.

The target's features exist only in the step that computed them, so they are put into memory there,
under the slots of their positions, and the module's rows can be computed from them at any time.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from paceline.engine.drafters.autoregressive import AutoregressiveDrafter
from paceline.model.batch import pack, slots_of
from paceline.sampling.tail import Tail, other_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.plan import Outcome
    from paceline.model.batch import Segment
    from paceline.model.draft_runner import DraftModuleRunner


class HeadDrafter(AutoregressiveDrafter):
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
        super().__init__(
            vocabulary_size=vocabulary_size,
            output_ids=runner.output_ids,
            max_model_len=max_model_len,
            scrub=scrub,
            tail=_tail(runner, vocabulary_size),
        )
        self._runner = runner
        self._block_size = block_size

    @property
    def required_features(self) -> tuple[int, ...]:
        return self._runner.feature_layers

    @property
    def keeps_accepted_rows(self) -> bool:
        return False

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        if features is None:
            return
        slots: list[int] = []
        rows: list[int] = []
        for outcome in outcomes:
            sequence = outcome.sequence
            known = outcome.num_rows - outcome.num_drafted
            end = sequence.num_computed
            start = (outcome.num_before if outcome.num_committed else end) - known
            slots += slots_of(sequence.block_table, start, end, self._block_size)
            rows += range(outcome.first_row, outcome.first_row + end - start)
        if not slots:
            return
        self._runner.keep_features(
            np.array(slots, dtype=np.int64), features, np.array(rows, dtype=np.int64)
        )

    def _known_rows(self, segments: Many[Segment]) -> tuple[Tensor, list[int]]:
        """True rows, made of the target's features: hidden rows [T, H] of all tokens."""
        before: list[int] = []
        for each in segments:
            start, end = each.start - 1, each.start - 1 + len(each.token_ids)
            before += [-1] * (start < 0)  # nothing is before the first row
            before += slots_of(each.block_table, max(0, start), end, self._block_size)
        inputs = self._runner.condition(np.array(before, dtype=np.int64))
        ends = list(accumulate(len(segment.token_ids) for segment in segments))
        return self._runner.forward(pack(segments, self._block_size), inputs), ends

    def _drafted_rows(self, segments: Many[Segment], rows: Tensor, origins: list[int]) -> Tensor:
        before = self._runner.recur(self._select(rows, origins))
        return self._runner.forward(pack(segments, self._block_size), before)

    def _logits(self, rows: Tensor) -> Tensor:
        return self._runner.logits(rows)

    def _select(self, rows: Tensor, places: list[int]) -> Tensor:
        return self._runner.select(rows, places)


def _tail(runner: DraftModuleRunner, vocabulary_size: int) -> Tail | None:
    """That of the draft, without the target's padding."""
    if runner.tail_logits is None:
        return None
    num_rows = len(runner.output_ids) + len(runner.tail_logits)
    is_id = other_ids(runner.output_ids, num_rows) < vocabulary_size
    return Tail(runner.tail_logits[is_id], runner.output_ids)
