"""What one forward pass takes: plain values, the same for a prefill chunk, a decode and a
verification, for the target and for a draft model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]
    Int32s = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Segment:
    """The run of one sequence's tokens that a forward pass computes.

    token_ids: tokens at positions start, start + 1, ... block_table: covers all of them.
    num_logits: logits are wanted for this many of its last tokens.
    """

    token_ids: Sequence[int]
    start: int
    block_table: Sequence[int]
    num_logits: int


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """B segments laid end to end, T tokens in all.

    token_ids, positions, slots: int64 [T]; slot = block id * block_size + offset, where the token's
    key and value are written. query_lengths, context_lengths: int32 [B]; tokens computed now, and
    valid K/V rows once they are written. block_tables: int32 [B, widest], padded with 0.
    logit_rows: int64 [R], indices into the T rows. fixed_shapes: a row's result must not depend on
    the other segments, not even in its last bits; all segments are one row long then.
    """

    token_ids: Int64s
    positions: Int64s
    slots: Int64s
    query_lengths: Int32s
    context_lengths: Int32s
    block_tables: Int32s
    logit_rows: Int64s
    block_size: int
    fixed_shapes: bool = False

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


def slots_of(block_table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """Slots of the positions from start up to end in a sequence's blocks."""
    slots: list[int] = []
    while start < end:
        block, offset = divmod(start, block_size)
        first = block_table[block] * block_size + offset
        count = min(end - start, block_size - offset)
        slots.extend(range(first, first + count))
        start += count
    return slots


def pack(segments: Sequence[Segment], block_size: int) -> PackedBatch:
    """Lay segments end to end. Each needs at least one token and a table that covers its end."""
    # Plain lists: a step has few tokens, and each call of numpy costs more than all of them do.
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    lengths: list[int] = []
    contexts: list[int] = []
    logit_rows: list[int] = []
    for segment in segments:
        position, end = segment.start, segment.start + len(segment.token_ids)
        token_ids.extend(segment.token_ids)
        positions.extend(range(position, end))
        slots += slots_of(segment.block_table, position, end, block_size)
        lengths.append(len(segment.token_ids))
        contexts.append(end)
        logit_rows.extend(range(len(token_ids) - segment.num_logits, len(token_ids)))
    widths = [-(-context // block_size) for context in contexts]
    tables = np.zeros((len(segments), max(widths)), dtype=np.int32)
    for row, (segment, width) in enumerate(zip(segments, widths, strict=True)):
        tables[row, :width] = segment.block_table[:width]
    return PackedBatch(
        token_ids=np.array(token_ids, dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
        slots=np.array(slots, dtype=np.int64),
        query_lengths=np.array(lengths, dtype=np.int32),
        context_lengths=np.array(contexts, dtype=np.int32),
        block_tables=tables,
        logit_rows=np.array(logit_rows, dtype=np.int64),
        block_size=block_size,
    )
