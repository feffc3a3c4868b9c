"""From logits to the distribution that a token is drawn from: one function for target and draft,
for plain and for speculative decoding.

Order as in transformers: temperature, top-k, top-p, min-p. Everything is float32. Ties at a
cut-off are broken by the lower token id, so the result is a function of the row alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import SamplingParams

_CANDIDATES = 1024


@dataclass(frozen=True, slots=True)
class WarpParameters:
    """Sampling parameters of R rows as tensors, with what any row needs known on the host.

    temperature, top_p, min_p: float32 [R]; temperature 1 on greedy rows. top_k: int64 [R], 0 keeps
    all. is_greedy: bool [R].
    """

    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    is_greedy: Tensor
    any_greedy: bool
    all_greedy: bool
    max_top_k: int
    any_top_p: bool
    any_min_p: bool

    @classmethod
    def of(cls, params: Sequence[SamplingParams], device: torch.device) -> WarpParameters:
        greedy = [p.is_greedy for p in params]
        return cls(
            temperature=torch.tensor(
                [1.0 if p.is_greedy else p.temperature for p in params], device=device
            ),
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int64, device=device),
            top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
            min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
            is_greedy=torch.tensor(greedy, dtype=torch.bool, device=device),
            any_greedy=any(greedy),
            all_greedy=all(greedy),
            max_top_k=max((p.top_k for p in params), default=0),
            any_top_p=any(p.top_p < 1 for p in params),
            any_min_p=any(p.min_p > 0 for p in params),
        )

    def take(self, rows: Tensor) -> WarpParameters:
        """The parameters of these rows (int64 [S]); host-side facts stay those of the whole."""
        return WarpParameters(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.is_greedy[rows],
            self.any_greedy,
            self.all_greedy,
            self.max_top_k,
            self.any_top_p,
            self.any_min_p,
        )


def argmax_lowest(logits: Tensor) -> Tensor:
    """Index of the highest logit of each row [R, V] -> int64 [R]; the lowest index on ties."""
    highest = logits.amax(-1, keepdim=True)
    return (logits == highest).to(torch.uint8).argmax(-1)


def warp(logits: Tensor, parameters: WarpParameters) -> Tensor:
    """The distribution of the next token on each row.

    Args:
        logits: [R, V], any float type; finite or minus infinity.
        parameters: of these R rows.

    Returns:
        float32 [R, V], rows sum to 1 up to rounding; one-hot on greedy rows.
    """
    if parameters.all_greedy:
        return _one_hot(logits)
    scaled = logits.to(torch.float32) / parameters.temperature[:, None]
    if parameters.max_top_k > 0:
        scaled = _keep_top_k(scaled, parameters.top_k, parameters.max_top_k)
    probs = torch.softmax(scaled, -1)
    if parameters.any_top_p:
        probs = _keep_top_p(probs, parameters.top_p)
    if parameters.any_min_p:
        cut = probs.amax(-1, keepdim=True) * parameters.min_p[:, None]
        probs = torch.where(probs >= cut, probs, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    if parameters.any_greedy:
        probs = torch.where(parameters.is_greedy[:, None], _one_hot(logits), probs)
    return probs


def _one_hot(logits: Tensor) -> Tensor:
    one_hot = torch.zeros(logits.shape, dtype=torch.float32, device=logits.device)
    return one_hot.scatter_(-1, argmax_lowest(logits)[:, None], 1.0)


def _keep_top_k(scaled: Tensor, top_k: Tensor, max_top_k: int) -> Tensor:
    """Minus infinity outside each row's top_k highest values; ties go to the lower ids."""
    size = min(max_top_k, scaled.shape[-1])
    highest = scaled.topk(size, dim=-1).values
    wanted = torch.where(top_k > 0, top_k, size).clamp_max(size)
    cut = highest.gather(-1, (wanted - 1)[:, None])
    above = scaled > cut
    at_cut = scaled == cut
    room = wanted[:, None] - above.sum(-1, keepdim=True)
    keep = above | (at_cut & (at_cut.cumsum(-1) <= room))
    keep |= (top_k <= 0)[:, None]
    return torch.where(keep, scaled, float("-inf"))


def _keep_top_p(probs: Tensor, top_p: Tensor) -> Tensor:
    """Renormalised over each row's smallest set of most probable tokens with mass >= top_p."""
    size = min(_CANDIDATES, probs.shape[-1])
    values, ids = _most_probable(probs, size)
    mass = values.sum(-1, dtype=torch.float64)
    if size < probs.shape[-1] and bool(((mass < top_p) & (top_p < 1)).any()):
        values, ids = _most_probable(probs, probs.shape[-1])
    before = values.to(torch.float64).cumsum(-1) - values
    kept = torch.where(before < top_p[:, None], values, 0.0)
    cut = torch.zeros_like(probs).scatter_(-1, ids, kept)
    cut = cut / cut.sum(-1, keepdim=True)
    return torch.where((top_p < 1)[:, None], cut, probs)


def _most_probable(probs: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """The `size` highest values in falling order with their ids; equal values by rising id."""
    if size == probs.shape[-1]:
        values, ids = probs.sort(dim=-1, descending=True, stable=True)
        return values, ids
    values, ids = probs.topk(size, dim=-1, sorted=False)
    ids = ids.sort(dim=-1).values
    values, order = probs.gather(-1, ids).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, order)
