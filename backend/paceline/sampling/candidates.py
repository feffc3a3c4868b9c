"""The highest logits of long rows, without sorting the rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Rows that are looked at together on a CPU: they stay in its cache.
_CHUNK = 8


@dataclass(frozen=True, slots=True)
class Candidates:
    """All entries of R rows above a bound, in order of rising id, padded to C.

    values: float32 [R, C], minus infinity on padding. ids: int64 [R, C], 0 on padding.
    bound: float32 [R]. num_listed: int64 [R].
    """

    values: Tensor
    ids: Tensor
    bound: Tensor
    num_listed: Tensor


def candidates(logits: Tensor, count: int, group: int = 32) -> Candidates:
    """The highest entries of each row: `count` of them or more, fewer only where logits are tied.

    The row is split into groups (ids that are equal modulo the number of groups, so that maxima
    over groups are maxima over whole stretches of memory), and the bound is the highest maximum
    that `count` other ones exceed: at least `count` entries are above it. Two passes over the row
    and a search among its group maxima find them.

    Args:
        logits: [R, V], any float type, no NaN. All entries are listed if V is below count * group.
    """
    mask = torch.empty(logits.shape, dtype=torch.bool, device=logits.device)
    bounds = []
    chunk = len(logits) if logits.is_cuda else _CHUNK
    for part, its_mask in zip(torch.split(logits, chunk), torch.split(mask, chunk), strict=True):
        values = part.to(torch.float32)
        bounds.append(_bound(values, count, group))
        _greater(values, bounds[-1][:, None], its_mask)
    bound = torch.cat(bounds)
    rows, ids, columns, num_listed = _listing(mask)
    shape = (len(logits), max(1, int(num_listed.max())))
    values = torch.full(shape, float("-inf"), dtype=torch.float32, device=logits.device)
    values[rows, columns] = logits[rows, ids].to(torch.float32)
    listed = torch.zeros(shape, dtype=torch.int64, device=logits.device)
    listed[rows, columns] = ids
    return Candidates(values, listed, bound, num_listed)


def _bound(values: Tensor, count: int, group: int) -> Tensor:
    """The bound of each row: float32 [R]."""
    num_groups = values.shape[1] // group
    if num_groups <= count:
        return torch.full_like(values[:, 0], float("-inf"))
    grouped = torch.unflatten(values[:, : num_groups * group], 1, (group, num_groups))
    return _nth_highest(grouped.amax(1), count)


def above(found: Candidates, cut: Tensor) -> Candidates:
    """Only the candidates that are at least as high as each row's cut [R]."""
    rows, places, columns, num_listed = _listing(found.values >= cut[:, None])
    shape = (len(cut), max(1, int(num_listed.max())))
    values = torch.full(shape, float("-inf"), dtype=torch.float32, device=cut.device)
    values[rows, columns] = found.values[rows, places]
    ids = torch.zeros(shape, dtype=torch.int64, device=cut.device)
    ids[rows, columns] = found.ids[rows, places]
    return Candidates(values, ids, found.bound, num_listed)


def _listing(mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Row and place of each True of a mask [R, V], its number within its row, and how many each
    row has: int64 [N] three times, [R]."""
    width = mask.shape[1]
    flat = _nonzero(mask)
    rows = torch.div(flat, width, rounding_mode="floor")
    counts = torch.bincount(rows, minlength=len(mask))
    columns = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
    return rows, flat - rows * width, columns, counts


def falling(values: Tensor) -> Tensor:
    """Each row [R, C] sorted from the highest to the lowest."""
    if values.device.type == "cpu":
        # numpy sorts with vector instructions, torch without: ten times faster.
        return torch.from_numpy(np.sort(values.neg().numpy(), -1)).neg_()
    return values.sort(-1, descending=True).values


def first_true(mask: Tensor) -> Tensor:
    """Index of the first True of each row [R, V]: int64 [R]; 0 where there is none."""
    if mask.device.type == "cpu":
        return torch.from_numpy(mask.numpy().argmax(-1))
    return mask.to(torch.uint8).argmax(-1)


def _nth_highest(values: Tensor, index: int) -> Tensor:
    """The value of each row [R, C] that `index` others precede in falling order: [R]."""
    if values.device.type == "cpu":
        place = values.shape[1] - 1 - index
        return torch.from_numpy(np.partition(values.numpy(), place, -1)[:, place].copy())
    return values.topk(index + 1, -1).values[:, -1]


def _greater(left: Tensor, right: Tensor, out: Tensor) -> None:
    """out = left > right, by broadcasting; numpy's comparison is the faster one on a CPU."""
    if left.device.type == "cpu":
        np.greater(left.numpy(), right.numpy(), out=out.numpy())
    else:
        torch.gt(left, right, out=out)


def _nonzero(mask: Tensor) -> Tensor:
    """Flat indices of the True entries, rising."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.flatnonzero(mask.numpy()))
    return mask.flatten().nonzero()[:, 0]
