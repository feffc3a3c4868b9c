"""Log-probabilities of emitted tokens under the target before any warping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.sampling.candidates import highest


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    """For N rows: chosen float32 [N], of the emitted token; top_ids int64 and top float32 [N, K],
    the K most probable tokens, falling."""

    chosen: Tensor
    top_ids: Tensor
    top: Tensor


def row_logprobs(logits: Tensor, tokens: Tensor, num_top: int) -> RowLogprobs:
    """Natural logarithms of probabilities at temperature 1.

    Args:
        logits: [N, V] as the model gave them. tokens: int64 [N]. num_top: 0 or more.
    """
    rows = logits.to(torch.float32)
    total = rows.logsumexp(-1, keepdim=True)
    chosen = (rows.gather(1, tokens[:, None]) - total)[:, 0]
    best = highest(rows, max(1, min(num_top, rows.shape[1])))
    top = (best.values - total)[:, :num_top]
    return RowLogprobs(chosen, best.ids[:, :num_top], top)
