"""What a draft model would have given to tokens that are known by now.

While a session's gate is closed nothing is drafted, so nothing is accepted or rejected either. The
rows that the draft model computes to keep up say how it would have done: for a token `x` drawn from
the target, `min(1, draft(x) / target(x))` has the acceptance probability as its mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.sampling.warping import WarpParameters, argmax_lowest, warp

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.core.request import SamplingParams


def score_known(
    logits: Tensor, tokens: Many[int], params: SamplingParams, vocab_ids: Tensor | None
) -> tuple[float, ...]:
    """Probabilities of tokens under a draft model, warped as a draft would be.

    Args:
        logits: [N, D], the rows that precede the tokens.
        tokens: N of the target's ids.
        params: of their sequence. Penalties are left out: an estimate needs none.
        vocab_ids: int64 [D], the target's id of each column, rising; None where they are equal.

    Returns:
        For each token its probability; 0 where the draft can't say it. A greedy draft gives 1 to
        its one choice.
    """
    ids = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    columns, is_known = ids, torch.ones_like(ids, dtype=torch.bool)
    if vocab_ids is not None:
        columns = torch.searchsorted(vocab_ids, ids).clamp_max(len(vocab_ids) - 1)
        is_known = vocab_ids[columns] == ids
    if params.is_greedy:
        probs = (argmax_lowest(logits) == columns).to(torch.float64)
    else:
        rows = warp(logits, WarpParameters.of([params] * len(tokens), logits.device))
        probs = rows.probability(torch.arange(len(tokens), device=logits.device), columns)
    scores: list[float] = torch.where(is_known, probs, 0.0).tolist()
    return tuple(scores)
