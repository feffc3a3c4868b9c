"""The highest logits of long rows, without sorting the rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Ids that are equal modulo the number of groups form a group: the maximum over groups is then a
# maximum over whole stretches of memory, one vector instruction after another.
_GROUP = 32


@dataclass(frozen=True, slots=True)
class Candidates:
    """The highest logits of R rows, falling: values float32 [R, C], ids int64 [R, C].

    bound: float32 [R]. Every entry above it is listed; of those equal to it some may be missing.
    """

    values: Tensor
    ids: Tensor
    bound: Tensor


def highest(logits: Tensor, count: int) -> Candidates:
    """At least the `count` highest entries of each row, or all of a row shorter than that.

    The entries are split into groups, and the `count` groups with the highest maxima are searched:
    they hold the `count` highest entries, because an entry outside them has `count` group maxima
    above it. One pass over the row and a search among a few thousand entries do.

    Args:
        logits: [R, V], any float type, no NaN.
    """
    width = logits.shape[-1]
    num_groups = width // _GROUP
    if num_groups < 2 * count:
        return _search_all(logits, count)
    grouped = torch.unflatten(logits[:, : num_groups * _GROUP], 1, (_GROUP, num_groups))
    maxima, groups = grouped.amax(1).to(torch.float32).topk(count + 1, -1)
    bound, groups = maxima[:, -1], groups[:, :-1]
    starts = torch.arange(_GROUP, device=logits.device) * num_groups
    ids = (groups[:, None, :] + starts[:, None]).flatten(1)
    if num_groups * _GROUP < width:
        tail = torch.arange(num_groups * _GROUP, width, device=logits.device)
        ids = torch.cat((ids, tail.expand(len(ids), -1)), 1)
    found = logits.gather(1, ids).to(torch.float32)
    values, order = found.topk(count, -1)
    return Candidates(values, ids.gather(1, order), torch.maximum(bound, values[:, -1]))


def _search_all(logits: Tensor, count: int) -> Candidates:
    if count >= logits.shape[-1]:
        values, ids = logits.to(torch.float32).sort(-1, descending=True)
        return Candidates(values, ids, torch.full_like(values[:, 0], float("-inf")))
    values, ids = logits.to(torch.float32).topk(count, -1)
    return Candidates(values, ids, values[:, -1])
