"""Distributions over token ids, as the rest of this package passes them around."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_GROUP = 256


@dataclass(frozen=True, slots=True)
class Rows:
    """R distributions with C entries each: all token ids, or only those that can be drawn.

    weights: float32 [R, C], not negative; the probability of an entry is weight / total.
    totals: float64 [R], above 0.
    ids: int64 [R, C], the token of each entry; None where entry c is token c. Entries of weight 0
        may stand anywhere; the others of a row have different ids.

    Truncated distributions keep a few hundred entries instead of a vocabulary: whatever is done
    with them afterwards costs next to nothing.
    """

    weights: Tensor
    totals: Tensor
    ids: Tensor | None = None

    def take(self, rows: Tensor) -> Rows:
        """These rows, int64 [S]."""
        ids = None if self.ids is None else self.ids[rows]
        return Rows(self.weights[rows], self.totals[rows], ids)

    def probability(self, rows: Tensor, tokens: Tensor) -> Tensor:
        """Probability of one token in each of these rows: float64 [N] for int64 [N] twice."""
        if self.ids is None:
            weight = self.weights[rows, tokens]
        else:
            is_token = self.ids[rows] == tokens[:, None]
            weight = torch.where(is_token, self.weights[rows], 0.0).amax(-1)
        return weight.to(torch.float64) / self.totals[rows]

    def dense(self, vocabulary_size: int) -> Tensor:
        """Probabilities over all token ids: float32 [R, V]."""
        probs = self.weights / self.totals[:, None].to(torch.float32)
        if self.ids is None:
            return probs
        rows = torch.zeros(len(probs), vocabulary_size, dtype=torch.float32, device=probs.device)
        return rows.scatter_add_(-1, self.ids, probs)

    @classmethod
    def of(cls, probs: Tensor) -> Rows:
        """Rows [R, V] of probabilities or other weights, over all token ids."""
        weights = probs.to(torch.float32)
        return cls(weights, row_sums(weights))


def row_sums(weights: Tensor) -> Tensor:
    """Sum of each row [R, C] in float64.

    Groups are summed in float32 first: adding 49152 numbers one after another in float32 loses
    digits, adding them all in float64 costs fifteen times as much. The grouping depends on C alone,
    so a row's sum does not depend on the rows beside it.
    """
    num_rows, width = weights.shape
    whole = width - width % _GROUP
    sums = torch.unflatten(weights[:, :whole], 1, (-1, _GROUP)).sum(-1).to(torch.float64).sum(-1)
    if whole < width:
        sums += weights[:, whole:].to(torch.float64).sum(-1)
    return sums
