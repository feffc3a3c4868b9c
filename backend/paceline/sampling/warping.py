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
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from paceline.sampling.candidates import Candidates, above, candidates, falling, first_true
from paceline.sampling.native import highest_of, keep_likely, weigh_rows
from paceline.sampling.rows import Rows, row_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import SamplingParams

# How many candidates are looked at first, and in groups of how many ids: where one number rules all
# cuts of a batch, and where top-p alone can cut anywhere. Then on rows where the cut lies deeper,
# and at last, on those where it lies deeper still, all.
_FEW = (96, 32)
_SOME = (256, 32)
_DEEPER = ((2048, 8), (8192, 4))
# Rows of a whole vocabulary that are handled at a time: the temporaries stay in the cache.
_CHUNK = 8
# Below this a reciprocal overflows; far above it already, only the highest logits have any weight.
_LOWEST_TEMPERATURE = 1e-30


@dataclass(frozen=True, slots=True)
class WarpParameters:
    """Sampling parameters of R sampled rows as tensors, with what any row needs known on the host.

    temperature, min_p: float32 [R]. top_p: float64 [R]. top_k: int64 [R], 0 keeps all. The last
    three are empty where nothing is cut off.
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
        """For rows of one kind of truncation, none of them greedy. Mixed kinds get their laws too,
        but the last bits of a row can then depend on the kinds beside it."""
        temperatures = [max(p.temperature, _LOWEST_TEMPERATURE) for p in params]
        temperature = torch.from_numpy(np.array(temperatures, dtype=np.float32)).to(device)
        if not any(truncation_of(p) for p in params):
            none = temperature[:0]
            return cls(temperature, none, none, none, 0, is_truncated=False, needs_totals=False)
        return cls(
            temperature=temperature,
            top_k=torch.tensor([p.top_k for p in params], dtype=torch.int64, device=device),
            top_p=torch.tensor([p.top_p for p in params], dtype=torch.float64, device=device),
            min_p=torch.tensor([p.min_p for p in params], dtype=torch.float32, device=device),
            max_top_k=max(p.top_k for p in params),
            is_truncated=True,
            needs_totals=any(p.top_p < 1 and p.top_k == 0 for p in params),
        )

    def take(self, rows: Tensor) -> WarpParameters:
        """The parameters of these truncated rows (int64 [S]); host-side facts stay those of the
        whole."""
        return WarpParameters(
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.max_top_k,
            self.is_truncated,
            self.needs_totals,
        )


class Truncation(IntEnum):
    """What cuts a row off; rows of one kind are warped together, in the same way wherever they are.

    NONE: nothing. RANK: top-k, perhaps with others. LIKELIHOOD: top-p or min-p alone.
    """

    NONE = 0
    RANK = 1
    LIKELIHOOD = 2


def truncation_of(params: SamplingParams) -> Truncation:
    """Which kind of truncation a request asks for."""
    if params.top_k > 0:
        return Truncation.RANK
    is_cut = params.top_p < 1 or params.min_p > 0
    return Truncation.LIKELIHOOD if is_cut else Truncation.NONE


def argmax_lowest(logits: Tensor) -> Tensor:
    """Index of the highest logit of each row [R, V] -> int64 [R]; the lowest index on ties."""
    return highest(logits)[0]


def highest(logits: Tensor) -> tuple[Tensor, Tensor]:
    """`argmax_lowest` and that logit [R]: NaN, and any index, where the row holds one."""
    found = highest_of(logits)
    if found is not None:
        return found
    peaks = logits.amax(-1)
    return first_true(logits == peaks[:, None]), peaks


def warp(logits: Tensor, parameters: WarpParameters, peaks: Tensor | None = None) -> Rows:
    """The distribution of the next token on each row.

    Args:
        logits: [R, V], any float type; finite or minus infinity, something finite in each row.
        parameters: of these R rows, none of them greedy.
        peaks: [R], the highest logit of each row, if it is known already.
    """
    peaks = (logits.amax(-1) if peaks is None else peaks).to(torch.float32)
    if parameters.is_truncated:
        return _truncated(logits, parameters, peaks)
    weighed = weigh_rows(logits, peaks, parameters.temperature, keep=True)
    if weighed is not None and weighed[0] is not None:
        return Rows(weighed[0], weighed[1])
    weights = _weigh(logits.to(torch.float32, copy=True), peaks, parameters.temperature)
    return Rows(weights, row_sums(weights))


def _truncated(logits: Tensor, parameters: WarpParameters, peaks: Tensor) -> Rows:
    if parameters.max_top_k == 0:
        likely = keep_likely(
            logits, peaks, parameters.temperature, parameters.top_p, parameters.min_p
        )
        if likely is not None:
            weights, ids = likely
            return Rows(weights, weights.to(torch.float64).cumsum(-1)[:, -1], ids)
    whole = None
    if parameters.needs_totals:
        whole = totals(logits, peaks, parameters.temperature)
    few, group = _FEW if whole is None else _SOME
    # Room for ties at the cut of top-k, so that they rarely need a second look.
    found = candidates(logits, max(few, parameters.max_top_k + 32), group)
    cut, is_complete = _cuts(found, parameters, peaks, whole)
    if not bool(is_complete.all()):
        found = above(found, cut)
    for count, size in (*_DEEPER, (logits.shape[-1], 1)):
        if bool(is_complete.all()):
            break
        rows = (~is_complete).nonzero()[:, 0]
        part = None if whole is None else whole[rows]
        more = candidates(logits[rows], count, size)
        cut[rows], is_complete[rows] = _cuts(more, parameters.take(rows), peaks[rows], part)
        found = _replace(found, rows, above(more, cut[rows]))
    weights = _weigh(found.values.clone(), peaks, parameters.temperature)
    weights = torch.where(found.values >= cut[:, None], weights, 0.0)
    return Rows(weights, weights.to(torch.float64).cumsum(-1)[:, -1], found.ids)


def _weigh(logits: Tensor, peaks: Tensor, temperature: Tensor) -> Tensor:
    """exp((logit - peak) / temperature), in place: float32 [R, V], 1 for the highest."""
    return logits.sub_(peaks[:, None]).mul_(1 / temperature[:, None]).exp_()


def totals(logits: Tensor, peaks: Tensor, temperature: Tensor) -> Tensor:
    """Sum of the weights of each whole row: float64 [R]."""
    weighed = weigh_rows(logits, peaks, temperature, keep=False)
    if weighed is not None:
        return weighed[1]
    buffer = torch.empty(_CHUNK, logits.shape[1], dtype=torch.float32, device=logits.device)
    sums = []
    for part, peak, heat in zip(
        torch.split(logits, _CHUNK),
        torch.split(peaks, _CHUNK),
        torch.split(temperature, _CHUNK),
        strict=True,
    ):
        sums.append(row_sums(_weigh(buffer[: len(part)].copy_(part), peak, heat)))
    return torch.cat(sums)


def _cuts(
    found: Candidates, parameters: WarpParameters, peaks: Tensor, whole: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The lowest logit of each row that survives, and whether that is certain: [R] both.

    It is where nothing beyond the candidates can survive or count.
    whole: float64 [R], the sum of all weights of a row, for top-p without top-k.
    """
    values = falling(found.values)
    weights = _weigh(values.clone(), peaks, parameters.temperature)
    lowest = torch.full_like(found.bound, float("-inf"))
    limit = values.shape[1]
    has_k, has_p = parameters.top_k > 0, parameters.top_p < 1
    wanted = parameters.top_k.clamp(1, limit)
    cut = torch.where(has_k, values.gather(1, (wanted - 1)[:, None])[:, 0], lowest)
    is_complete = ~has_k | (parameters.top_k <= found.num_listed)
    mass = torch.where(values >= cut[:, None], weights, 0.0).to(torch.float64)
    reached = mass.cumsum(-1)
    total = reached[:, -1]
    if whole is not None:
        total = torch.where(has_k, total, whole)
    needed = parameters.top_p * total
    num_kept = ((reached - mass) < needed[:, None]).sum(-1).clamp(1, limit)
    at_p = values.gather(1, (num_kept - 1)[:, None])[:, 0]
    cut = torch.where(has_p, torch.maximum(cut, at_p), cut)
    is_complete &= ~has_p | (reached[:, -1] >= needed)
    num_likely = (weights >= parameters.min_p[:, None]).sum(-1).clamp(1, limit)
    cut = torch.maximum(cut, values.gather(1, (num_likely - 1)[:, None])[:, 0])
    at_bound = _weigh(found.bound[:, None].clone(), peaks, parameters.temperature)[:, 0]
    is_complete &= has_k | has_p | (at_bound < parameters.min_p)
    return cut, is_complete | (found.bound == float("-inf"))


def _replace(found: Candidates, rows: Tensor, more: Candidates) -> Candidates:
    """Replace the candidates of these rows by longer lists."""
    extra = more.values.shape[1] - found.values.shape[1]
    pad = torch.nn.functional.pad
    values = pad(found.values, (0, max(extra, 0)), value=float("-inf"))
    ids = pad(found.ids, (0, max(extra, 0)))
    values[rows] = pad(more.values, (0, max(-extra, 0)), value=float("-inf"))
    ids[rows] = pad(more.ids, (0, max(-extra, 0)))
    bound, num_listed = found.bound.clone(), found.num_listed.clone()
    bound[rows], num_listed[rows] = more.bound, more.num_listed
    return Candidates(values, ids, bound, num_listed)
