"""From logits to the distribution that a token is drawn from: one function for target and draft,
for plain and for speculative decoding.

Order as in transformers: (penalties, biases and bans, see `constraints`), temperature, top-k,
top-p, min-p. Each truncation keeps what is at least as high as some logit of the row, so tokens
tied at the cut stay together and the distribution is a function of the row's values alone.
Truncated rows come out as their surviving entries, the others as whole rows.

Arithmetic is float32, sums that a cut depends on float64. How a row comes out does not depend on
the rows beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.sampling.candidates import Candidates, highest
from paceline.sampling.rows import Rows, row_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import SamplingParams

# Candidates looked at first for top-p and min-p, for rows where they do not do, and for the rest.
_FEW = 128
_MANY = 1024
# Below this a reciprocal overflows; far above it already, only the highest logits have any weight.
_LOWEST_TEMPERATURE = 1e-30


@dataclass(frozen=True, slots=True)
class WarpParameters:
    """Sampling parameters of R sampled rows as tensors, with what any row needs known on the host.

    temperature, top_p, min_p: float32 [R]. top_k: int64 [R], 0 keeps all.
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    max_top_k: int
    is_truncated: bool
    needs_totals: bool

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> WarpParameters:
        """For rows that are all truncated or all not (see `is_truncated`), none of them greedy."""
        return cls(
            temperature=torch.tensor(
                [max(p.temperature, _LOWEST_TEMPERATURE) for p in params],
                dtype=torch.float32,
                device=device,
            ),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int64, device=device),
            top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
            min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
            max_top_k=max((p.top_k for p in params), default=0),
            is_truncated=any(is_truncated(p) for p in params),
            needs_totals=any(p.top_p < 1 and p.top_k == 0 for p in params),
        )

    def take(self, rows: Tensor) -> WarpParameters:
        """The parameters of these rows (int64 [S]); host-side facts stay those of the whole."""
        return WarpParameters(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.max_top_k,
            self.is_truncated,
            self.needs_totals,
        )


def is_truncated(params: SamplingParams) -> bool:
    """Whether some tokens get probability zero by top-k, top-p or min-p."""
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def argmax_lowest(logits: Tensor) -> Tensor:
    """Index of the highest logit of each row [R, V] -> int64 [R]; the lowest index on ties."""
    highest_value = logits.amax(-1, keepdim=True)
    return (logits == highest_value).to(torch.uint8).argmax(-1)


def warp(logits: Tensor, parameters: WarpParameters) -> Rows:
    """The distribution of the next token on each row.

    Args:
        logits: [R, V], any float type; finite or minus infinity, something finite in each row.
        parameters: of these R rows, none of them greedy.
    """
    if not parameters.is_truncated:
        weights = _weights(logits, logits.amax(-1), parameters.temperature)
        return Rows(weights, row_sums(weights))
    vocabulary_size = logits.shape[-1]
    totals = None
    if parameters.needs_totals:
        totals = row_sums(_weights(logits, logits.amax(-1), parameters.temperature))
    # Room for ties at the cut of top-k, so that they rarely need a second look.
    count = max(_FEW, -(-(parameters.max_top_k + 32) // 64) * 64)
    candidates, weights, is_complete = _survivors(logits, parameters, totals, count)
    for larger in (_MANY, vocabulary_size):
        if count >= min(larger, vocabulary_size) or bool(is_complete.all()):
            continue
        count = min(larger, vocabulary_size)
        missing = (~is_complete).nonzero()[:, 0]
        part = None if totals is None else totals[missing]
        more = _survivors(logits[missing], parameters.take(missing), part, count)
        candidates = _widen(candidates, missing, more[0])
        weights = torch.nn.functional.pad(weights, (0, more[1].shape[1] - weights.shape[1]))
        weights[missing] = more[1]
        is_complete[missing] = more[2]
    return Rows(weights, weights.to(torch.float64).cumsum(-1)[:, -1], candidates.ids)


def _weights(logits: Tensor, highest_value: Tensor, temperature: Tensor) -> Tensor:
    """exp((logit - highest) / temperature): float32 [R, V], 1 for the highest."""
    scaled = logits.to(torch.float32, copy=True)
    scaled.sub_(highest_value.to(torch.float32)[:, None])
    return scaled.mul_(1 / temperature[:, None]).exp_()


def _survivors(
    logits: Tensor, parameters: WarpParameters, totals: Tensor | None, count: int
) -> tuple[Candidates, Tensor, Tensor]:
    """Candidates of each row, their weights (0 outside the cuts), and whether none is missing.

    totals: float64 [R], the sum of all weights of a row, for top-p without top-k.
    """
    found = highest(logits, count)
    values = found.values
    weights = _weights(values, values[:, 0], parameters.temperature)
    lowest = torch.full_like(found.bound, float("-inf"))
    limit = values.shape[1]
    cut = lowest
    if parameters.max_top_k > 0:
        wanted = parameters.top_k.clamp(1, limit)
        at_k = values.gather(1, (wanted - 1)[:, None])[:, 0]
        has_k = parameters.top_k > 0
        # A k-th value that may be missing some of its ties counts as a cut at the bound, and so
        # does a k beyond the list: both make the row incomplete.
        cut = torch.where(has_k, at_k, lowest)
        in_top_k = values >= cut[:, None]
        is_complete = ~has_k | ((parameters.top_k <= limit) & (cut > found.bound))
    else:
        in_top_k = torch.ones_like(values, dtype=torch.bool)
        is_complete = torch.ones_like(found.bound, dtype=torch.bool)
        has_k = torch.zeros_like(is_complete)
    has_p = parameters.top_p < 1
    mass = torch.where(in_top_k, weights, 0.0).to(torch.float64)
    reached = mass.cumsum(-1)
    total = reached[:, -1]
    if totals is not None:
        total = torch.where(has_k, total, totals)
    needed = parameters.top_p.to(torch.float64) * total
    num_kept = ((reached - mass) < needed[:, None]).sum(-1).clamp(1, limit)
    at_p = values.gather(1, (num_kept - 1)[:, None])[:, 0]
    is_complete &= ~has_p | (at_p > found.bound)
    cut = torch.where(has_p, torch.maximum(cut, at_p), cut)
    least = parameters.min_p[:, None]
    kept = torch.where(in_top_k & (values >= cut[:, None]) & (weights >= least), weights, 0.0)
    # Something must rule out what is not listed: a known cut above the bound, or min-p.
    at_bound = _weights(found.bound[:, None], values[:, 0], parameters.temperature)[:, 0]
    is_closed = (cut > found.bound) | (at_bound < parameters.min_p)
    is_whole = found.bound == float("-inf")
    return found, kept, (is_complete & is_closed) | is_whole


def _widen(candidates: Candidates, rows: Tensor, more: Candidates) -> Candidates:
    """Replace these rows by longer ones; the others get entries that are never drawn."""
    extra = more.values.shape[1] - candidates.values.shape[1]
    pad = torch.nn.functional.pad
    values = pad(candidates.values, (0, extra), value=float("-inf"))
    ids = pad(candidates.ids, (0, extra))
    values[rows], ids[rows] = more.values, more.ids
    bound = candidates.bound.clone()
    bound[rows] = more.bound
    return Candidates(values, ids, bound)
