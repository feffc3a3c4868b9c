"""One number fitted after training: how sharp the draft's distributions are.

Training mixes a divergence, which punishes confidence where the target is unsure, with acceptance,
which rewards it. Scaling all logits by one factor afterwards lifts acceptance at temperature 1 by
one or two points and leaves greedy drafts as they are. The factor goes into the weight of the
output norm, so it costs nothing at run time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.training.unroll import rows_with_depth, unroll

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.model.draft_head import DraftModule
    from paceline.training.batches import BatchSource

FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)
_DEPTHS = 2
_SEQUENCES_PER_BATCH = 4


@torch.no_grad()
def sharpen(
    module: DraftModule, source: BatchSource, references: Sequence[tuple[int, int]]
) -> float:
    """Scale ``module``'s output norm by the factor of `FACTORS` with the highest acceptance over
    the first two depths of the answers ``references``; returns the factor."""
    totals = dict.fromkeys(FACTORS, 0.0)
    for start in range(0, len(references), _SEQUENCES_PER_BATCH):
        batch = source.pack(references[start : start + _SEQUENCES_PER_BATCH])
        target = batch.target.probabilities.float()
        for depth, hidden in enumerate(unroll(module, batch.rows, _DEPTHS), start=1):
            rows = batch.answer & rows_with_depth(batch.rows.lengths, depth, hidden.device)
            logits = module.logits(hidden[rows]).float()
            for factor in FACTORS:
                overlap = torch.minimum((logits * factor).softmax(-1), target[rows])
                totals[factor] += float(overlap.sum())
    best = max(FACTORS, key=lambda factor: (totals[factor], -abs(factor - 1.0)))
    module.output_norm.weight.mul_(best)
    return best
