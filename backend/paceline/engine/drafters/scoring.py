"""What a draft model would have given to tokens that are known by now.

While a session's gate is closed nothing is drafted, so nothing is accepted or rejected either. The
rows that the draft model computes to keep up say how it would have done: for a token `x` drawn from
the target, `min(1, draft(x) / target(x))` has the acceptance probability as its mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.sampling.tail import needs_tail
from paceline.sampling.warping import (
    Truncation,
    WarpParameters,
    argmax_lowest,
    truncation_of,
    warp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.core.request import SamplingParams
    from paceline.sampling.tail import Tail


def score_known(
    logits: Tensor,
    tokens: Many[int],
    params: SamplingParams,
    vocab_ids: Tensor | None,
    tail: Tail | None = None,
) -> tuple[float, ...]:
    """Probabilities of tokens under a draft model, warped as a draft would be.

    Args:
        logits: [N, D], the rows that precede the tokens.
        tokens: N of the target's ids.
        params: of their sequence. Penalties are left out: an estimate needs none.
        vocab_ids: int64 [D], the target's id of each column, rising; None where they are equal.
        tail: of the ids without a column.

    Returns:
        For each token its probability; 0 where the draft can't say it. A greedy draft gives 1 to
        its one choice.
    """
    ids = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
    if tail is not None and needs_tail(params):
        if truncation_of(params) is Truncation.NONE:
            return tuple(tail.probabilities(logits, ids, params.temperature).tolist())
        logits, vocab_ids = tail.widen(logits, [params] * len(tokens)), None
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
