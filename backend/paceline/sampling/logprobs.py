"""Log-probabilities of emitted tokens under the target before any warping."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from paceline.sampling.candidates import candidates
from paceline.sampling.warping import totals


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
    peaks = logits.amax(-1).to(torch.float32)
    total = peaks + totals(logits, peaks, torch.ones_like(peaks)).log()
    chosen = logits.gather(1, tokens[:, None])[:, 0].to(torch.float32) - total
    num_top = min(num_top, logits.shape[1])
    # Logits tied at the bound leave fewer candidates than asked for: rarely, with some to spare.
    best = candidates(logits, num_top + 32)
    if int(best.num_listed.min()) < num_top:
        best = candidates(logits, logits.shape[1])
    # A row of NaN has no candidates at all; its sequence ends with an error elsewhere.
    values, places = best.values.topk(min(num_top, best.values.shape[1]), -1)
    return RowLogprobs(
        chosen.to(torch.float32),
        best.ids.gather(1, places),
        (values - total[:, None]).to(torch.float32),
    )
