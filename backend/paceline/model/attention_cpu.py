"""Paged attention on a CPU: few batched calls a layer, whatever the number of sequences.

The segments of a step are put into groups, each padded to its longest query and longest context and
computed by one `scaled_dot_product_attention`. Padding costs time, and so does every further call;
`plan_groups` merges neighbours while that is the cheaper of the two. A batch of decodes is one
group; a prefill chunk beside it is another.

Query heads that share a K/V head are packed along the query dimension, so that keys and values are
never repeated in memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from paceline.model.attention import write_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from paceline.model.batch import PackedBatch

# Rough costs in microseconds on two cores: a call, a gathered K/V row, a query-key pair.
_CALL_COST = 80.0
_ROW_COST = 0.1
_PAIR_COST = 0.05


@dataclass(slots=True)
class _Group:
    """Segments computed by one call: B of them, M queries and N keys each after padding.

    blocks: int64 [B * blocks per segment]. query_rows: int64 [B, M] into the packed rows, padding
    repeats a segment's last row. positions: int64 [B, M], -1 on padding. real: int64 into B * M,
    the entries that are not padding; None when all are real and in packed order.
    """

    num_segments: int
    max_query: int
    max_context: int
    blocks: Tensor
    first_block: int | None
    query_rows: Tensor
    positions: Tensor
    real: Tensor | None
    covers_batch: bool
    always_masked: bool
    masks: dict[tuple[int | None, int, torch.dtype], Tensor | None] = field(default_factory=dict)


class PagedAttention:
    """The `AttentionContext` of one forward pass on a CPU."""

    def __init__(self, batch: PackedBatch, layers: Sequence[Tensor] | Mapping[int, Tensor]) -> None:
        """layers: one [2, blocks, block_size, Hkv, D] per model layer."""
        self._layers = layers
        self._block_size = batch.block_size
        self._slots = torch.from_numpy(batch.slots)
        if batch.fixed_shapes:
            by_width = _fixed_groups(batch.context_lengths.tolist())
            self._groups = [_make_group(batch, rows, width) for width, rows in by_width.items()]
        else:
            members = plan_groups(batch.query_lengths.tolist(), batch.context_lengths.tolist())
            self._groups = [_make_group(batch, rows) for rows in members]

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """See `AttentionContext.attend`."""
        cache = self._layers[layer]
        write_rows(cache, self._slots, key, value)
        if len(self._groups) == 1 and self._groups[0].covers_batch:
            return self._attend_group(self._groups[0], cache, query, scale, sliding_window)
        output = torch.empty_like(query)
        for group in self._groups:
            part = self._attend_group(group, cache, query, scale, sliding_window)
            if group.real is None:
                output[group.query_rows.flatten()] = part
            else:
                output[group.query_rows.flatten()[group.real]] = part[group.real]
        return output

    def _attend_group(
        self, group: _Group, cache: Tensor, query: Tensor, scale: float, window: int | None
    ) -> Tensor:
        """Attention of the group's queries: [B * M, Hq, D]."""
        size, longest = group.num_segments, group.max_query
        num_heads, width = query.shape[1], query.shape[2]
        num_kv_heads = cache.shape[3]
        share = num_heads // num_kv_heads
        # Heads outermost, as the memory is laid out on a CPU: the gather then copies whole blocks.
        memory = cache.permute(0, 3, 1, 2, 4)
        if group.first_block is not None:
            end = group.first_block + len(group.blocks) // size
            gathered = memory[:, :, group.first_block : end]
        else:
            gathered = memory.index_select(2, group.blocks)
        gathered = gathered.reshape(2, num_kv_heads, size, -1, width)[..., : group.max_context, :]
        keys, values = gathered[0].transpose(0, 1), gathered[1].transpose(0, 1)
        rows = query if group.covers_batch else query[group.query_rows.flatten()]
        # [B, M, Hkv, share, D] -> [B, Hkv, M * share, D]
        packed = rows.view(size, longest, num_kv_heads, share, width).transpose(1, 2)
        packed = packed.reshape(size, num_kv_heads, longest * share, width)
        mask = _mask(group, share, window, query.dtype)
        output = F.scaled_dot_product_attention(packed, keys, values, attn_mask=mask, scale=scale)
        output = output.view(size, num_kv_heads, longest, share, width).transpose(1, 2)
        return output.reshape(size * longest, num_heads, width)


def plan_groups(query_lengths: list[int], context_lengths: list[int]) -> list[list[int]]:
    """Which segments share a padded call: lists of segment indices, each in batch order."""
    order = sorted(
        range(len(query_lengths)), key=lambda i: (query_lengths[i], context_lengths[i], i)
    )
    groups: list[list[int]] = []
    shape = (0, 0)
    for index in order:
        query, context = query_lengths[index], context_lengths[index]
        if groups:
            count = len(groups[-1])
            merged = (max(shape[0], query), max(shape[1], context))
            apart = _cost(count, *shape) + _cost(1, query, context)
            if _cost(count + 1, *merged) <= apart:
                groups[-1].append(index)
                shape = merged
                continue
        groups.append([index])
        shape = (query, context)
    return [sorted(group) for group in groups]


def _cost(count: int, query: int, context: int) -> float:
    return _CALL_COST + count * context * (_ROW_COST + _PAIR_COST * query)


def _fixed_groups(context_lengths: list[int]) -> dict[int, list[int]]:
    """Segments by the power of two that their context is padded to, a function of it alone."""
    groups: dict[int, list[int]] = {}
    for index, context in enumerate(context_lengths):
        groups.setdefault(max(64, 1 << (context - 1).bit_length()), []).append(index)
    return groups


def _make_group(batch: PackedBatch, members: list[int], padded_to: int | None = None) -> _Group:
    """padded_to: how many keys the group gets whatever it needs; None for what it needs."""
    lengths = batch.query_lengths[members].astype(np.int64)
    contexts = batch.context_lengths[members].astype(np.int64)
    starts = (np.cumsum(batch.query_lengths, dtype=np.int64) - batch.query_lengths)[members]
    longest, context = int(lengths.max()), padded_to or int(contexts.max())
    width = -(-context // batch.block_size)
    blocks = np.ascontiguousarray(batch.block_tables[members, :width]).astype(np.int64)
    if blocks.shape[1] < width:
        blocks = np.pad(blocks, ((0, 0), (0, width - blocks.shape[1])), mode="edge")
    offsets = np.arange(longest)
    is_real = offsets[None, :] < lengths[:, None]
    rows = starts[:, None] + np.minimum(offsets[None, :], lengths[:, None] - 1)
    positions = np.where(is_real, batch.positions[rows], -1)
    all_real = bool(is_real.all())
    in_order = len(members) == len(batch.query_lengths)
    first_block = None
    if padded_to is None and len(members) == 1 and bool((np.diff(blocks[0]) == 1).all()):
        first_block = int(blocks[0, 0])
    return _Group(
        num_segments=len(members),
        max_query=longest,
        max_context=context,
        blocks=torch.from_numpy(blocks.flatten()),
        first_block=first_block,
        query_rows=torch.from_numpy(rows),
        positions=torch.from_numpy(positions),
        real=None if all_real else torch.from_numpy(np.flatnonzero(is_real)),
        covers_batch=all_real and in_order,
        always_masked=padded_to is not None,
    )


def _mask(group: _Group, share: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
    """Additive mask [B, 1, M * share, N], the same for all layers with this window."""
    key = (window, share, dtype)
    if key not in group.masks:
        group.masks[key] = _make_mask(group, share, window, dtype)
    return group.masks[key]


def _make_mask(group: _Group, share: int, window: int | None, dtype: torch.dtype) -> Tensor | None:
    positions = group.positions[:, :, None]
    keys = torch.arange(group.max_context)
    visible = keys <= positions
    if window is not None:
        visible &= keys > positions - window
    # A padded query looks at the first key, so that its softmax has something to sum.
    visible[..., 0] |= group.positions < 0
    if bool(visible.all()) and not group.always_masked:
        return None
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill_(~visible, float("-inf"))
    return mask.repeat_interleave(share, dim=1).unsqueeze(1)
