"""An independent small model as drafter: same tokenizer, own K/V in the target's blocks.

To draft, it first computes the known tokens it lags behind by (one or two in the steady state),
then one token after another from its own distribution. Its rows for drafted tokens that were
accepted stay valid; the last drafted token is never fed to it, so after a full acceptance it trails
by one token more.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from paceline.engine.drafters.autoregressive import AutoregressiveDrafter
from paceline.model.batch import pack

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.drafters.interface import Proposal
    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.runner import Runner
    from paceline.engine.sequence import Sequence
    from paceline.model.batch import Segment


class ModelDrafter(AutoregressiveDrafter):
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
        super().__init__(
            vocabulary_size=vocabulary_size,
            output_ids=None,
            max_model_len=max_model_len,
            scrub=scrub,
        )
        self._runner = runner
        self._block_size = block_size
        self._num_draft_rows: dict[str, int] = {}

    @property
    def required_features(self) -> tuple[int, ...]:
        return ()

    @property
    def keeps_accepted_rows(self) -> bool:
        return True

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        proposal = super().propose(entries)
        for entry, ids in zip(entries, proposal.draft_ids, strict=True):
            self._num_draft_rows[entry.sequence.request_id] = max(0, len(ids) - 1)
        return proposal

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        for outcome in outcomes:
            sequence = outcome.sequence
            written = self._num_draft_rows.pop(sequence.request_id, 0)
            if written:
                sequence.num_draft_computed += min(outcome.num_accepted, written)

    def release(self, sequence: Sequence) -> None:
        super().release(sequence)
        self._num_draft_rows.pop(sequence.request_id, None)

    def _known_rows(self, segments: Many[Segment]) -> tuple[Tensor, list[int]]:
        ends = list(accumulate(segment.num_logits for segment in segments))
        return self._forward(segments), ends

    def _drafted_rows(self, segments: Many[Segment], rows: Tensor, origins: list[int]) -> Tensor:
        return self._forward(segments)

    def _logits(self, rows: Tensor) -> Tensor:
        return rows

    def _forward(self, segments: Many[Segment]) -> Tensor:
        """Logits [R, V] of the rows that are wanted."""
        logits = self._runner.forward(pack(segments, self._block_size)).logits
        return logits[:, : self._vocabulary_size]
