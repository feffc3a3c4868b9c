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


def pack(segments: Sequence[Segment], block_size: int) -> PackedBatch:
    """Lay segments end to end. Each needs at least one token and a table that covers its end."""
    lengths = np.array([len(s.token_ids) for s in segments], dtype=np.int32)
    starts = np.array([s.start for s in segments], dtype=np.int32)
    ends = np.cumsum(lengths, dtype=np.int64)
    contexts = starts + lengths
    widths = -(-contexts // block_size)
    tables = np.zeros((len(segments), int(widths.max())), dtype=np.int32)
    for row, (segment, width) in enumerate(zip(segments, widths.tolist(), strict=True)):
        tables[row, :width] = segment.block_table[:width]
    owner = np.repeat(np.arange(len(segments)), lengths)
    offsets = np.arange(int(ends[-1])) - np.repeat(ends - lengths, lengths)
    positions = starts[owner] + offsets
    slots = tables[owner, positions // block_size] * np.int64(block_size) + positions % block_size
    token_ids = np.fromiter(
        (token for s in segments for token in s.token_ids), dtype=np.int64, count=int(ends[-1])
    )
    wanted = np.array([s.num_logits for s in segments], dtype=np.int64)
    total = int(wanted.sum())
    inside = np.arange(total) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    logit_rows = np.repeat(ends - wanted, wanted) + inside
    return PackedBatch(
        token_ids=token_ids,
        positions=positions.astype(np.int64),
        slots=slots.astype(np.int64),
        query_lengths=lengths,
        context_lengths=contexts.astype(np.int32),
        block_tables=tables,
        logit_rows=logit_rows.astype(np.int64),
        block_size=block_size,
    )
