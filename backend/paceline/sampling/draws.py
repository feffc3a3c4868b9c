"""Drawing a token from each of many distributions, with given randomness."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.sampling.native import inverse_cdf_of
from paceline.sampling.randomness import Purpose, exponentials

if TYPE_CHECKING:
    import numpy.typing as npt

    from paceline.sampling.rows import Rows

_GROUP = 256


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw an index from each row of unnormalised weights.

    Args:
        weights: [N, V], not negative, each row with some mass.
        uniforms: float64 [N] in [0, 1).

    Returns:
        int64 [N]: the first index whose cumulative weight exceeds uniform * total, in float64;
        never an index of weight zero.
    """
    found = inverse_cdf_of(weights, uniforms)
    if found is not None:
        return found
    num_rows, width = weights.shape
    padding = -width % min(_GROUP, width)
    if padding:
        weights = torch.nn.functional.pad(weights, (0, padding))
    size = min(_GROUP, width)
    grouped = weights.view(num_rows, -1, size)
    # Two levels: sums of groups first, so that only one group of each row is accumulated.
    group_sums = grouped.sum(-1).to(torch.float64)
    group_cdf = group_sums.cumsum(-1)
    level = uniforms * group_cdf[:, -1]
    group = _first_above(group_cdf, group_sums, level)
    rest = (level - group_cdf.gather(1, group[:, None])[:, 0]) / group_sums.gather(
        1, group[:, None]
    )[:, 0] + 1
    inside = grouped[torch.arange(num_rows, device=weights.device), group].to(torch.float64)
    inside_cdf = inside.cumsum(-1)
    offset = _first_above(inside_cdf, inside, rest * inside_cdf[:, -1])
    return group * size + offset


def draw_tokens(rows: Rows, uniforms: Tensor) -> Tensor:
    """A token of each row by `inverse_cdf`: int64 [R]."""
    entry = inverse_cdf(rows.weights, uniforms)
    return entry if rows.ids is None else rows.ids.gather(1, entry[:, None])[:, 0]


def race(
    rows: Rows, seeds: npt.ArrayLike, positions: npt.ArrayLike, vocabulary_size: int
) -> Tensor:
    """A token of each row as a function of (seed, position) and the row alone: int64 [R].

    Exponential races (Gumbel-max in another coat): of independent exponential times divided by
    weights, the smallest belongs to entry i with probability weight_i / total. Two rows that are
    close and share (seed, position) mostly draw the same token (in one race with probability at
    least (1 - TV) / (1 + TV)): that is how a draft model guesses a seeded sample.

    A race over a whole vocabulary would need a random number for each token. This one has two laps,
    over the sums of 256 neighbouring ids each and then inside the winner, and needs a hundredth of
    them. A token's noise depends on its id, so it is the same for rows over different subsets.
    """
    device = rows.weights.device
    size = min(_GROUP, vocabulary_size)
    num_groups = -(-vocabulary_size // size)
    noise = exponentials(seeds, positions, Purpose.TARGET, num_groups + size)
    times = torch.from_numpy(noise).to(device)
    group_times, token_times = times[:, :num_groups], times[:, num_groups:]
    if rows.ids is None:
        weights = rows.weights
        padding = num_groups * size - weights.shape[1]
        if padding:
            weights = torch.nn.functional.pad(weights, (0, padding))
        grouped = weights.view(len(weights), num_groups, size)
        group = (group_times / grouped.sum(-1).to(torch.float64)).argmin(-1)
        inside = grouped[torch.arange(len(weights), device=device), group].to(torch.float64)
        return group * size + (token_times / inside).argmin(-1)
    weights = rows.weights.to(torch.float64)
    groups = rows.ids // size
    sums = torch.zeros_like(group_times).scatter_add_(1, groups, weights)
    group = (group_times / sums).argmin(-1)
    arrival = token_times.gather(1, rows.ids % size) / weights
    arrival = torch.where(groups == group[:, None], arrival, float("inf"))
    return rows.ids.gather(1, arrival.argmin(-1, keepdim=True))[:, 0]


def _first_above(cdf: Tensor, mass: Tensor, level: Tensor) -> Tensor:
    """First index with cdf > level and mass > 0; the last one with mass if rounding hides it."""
    hit = (cdf > level[:, None]) & (mass > 0)
    width = mass.shape[-1]
    ids = torch.arange(width, device=mass.device)
    first = torch.where(hit, ids, width).amin(-1)
    last = torch.where(mass > 0, ids, 0).amax(-1)
    return torch.minimum(first, last)
