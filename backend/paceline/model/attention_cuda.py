"""Paged attention on CUDA: torch's variable-length attention over block tables.

`torch.nn.attention.varlen.varlen_attn` takes ragged queries over paged K/V, which is exactly the
shape of a verification. `window_size=(-1, 0)` is causal and aligned to the end of each context;
`num_splits=1` makes a sequence's result independent of the rest of the batch.

The kernel is an argument, so that tests on a CPU drive the same code with a plain implementation of
its signature.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from paceline.model.attention import to_device, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from paceline.model.batch import Int32s, PackedBatch


class VarlenKernel(Protocol):
    """The part of varlen_attn's signature that is used here."""

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor | None,
        max_q: int,
        max_k: int,
        *,
        scale: float,
        window_size: tuple[int, int],
        enable_gqa: bool,
        seqused_k: Tensor,
        block_table: Tensor,
        num_splits: int,
    ) -> Tensor:
        """query [T, Hq, D]; key, value [blocks, block_size, Hkv, D] -> [T, Hq, D]."""
        ...


def varlen_kernel() -> VarlenKernel:
    """torch's own kernel; imports it only when CUDA is used."""
    from torch.nn.attention.varlen import varlen_attn

    # Without `return_aux` it returns the output alone, which its annotation leaves open.
    return cast("VarlenKernel", varlen_attn)


@dataclass(frozen=True, slots=True)
class VarlenInputs:
    """What the kernel takes of a batch of B sequences and T rows, on the device.

    slots: int64 [T]. query_bounds: int32 [B + 1], the rows of sequence i end where those of the
    next one begin. contexts: int32 [B]. block_tables: int32 [B, widest]. max_query, max_context:
    no sequence has more.
    """

    slots: Tensor
    query_bounds: Tensor
    contexts: Tensor
    block_tables: Tensor
    max_query: int
    max_context: int

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> VarlenInputs:
        return cls(
            to_device(batch.slots, device),
            to_device(query_bounds(batch), device),
            to_device(batch.context_lengths, device),
            to_device(batch.block_tables, device),
            int(batch.query_lengths.max()),
            int(batch.context_lengths.max()),
        )


def query_bounds(batch: PackedBatch) -> Int32s:
    """int32 [B + 1], see `VarlenInputs`."""
    bounds = np.zeros(len(batch.query_lengths) + 1, dtype=np.int32)
    np.cumsum(batch.query_lengths, out=bounds[1:])
    return bounds


class VarlenPagedAttention:
    """The `AttentionContext` of one forward pass on CUDA."""

    def __init__(
        self, inputs: VarlenInputs, layers: Sequence[Tensor], kernel: VarlenKernel
    ) -> None:
        """layers: one [2, blocks, block_size, Hkv, D] per model layer, on the inputs' device."""
        self._inputs = inputs
        self._layers = layers
        self._kernel = kernel

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
        cache, inputs = self._layers[layer], self._inputs
        write_rows(cache, inputs.slots, key, value)
        left = -1 if sliding_window is None else sliding_window - 1
        return self._kernel(
            query.contiguous(),
            cache[0],
            cache[1],
            inputs.query_bounds,
            None,
            inputs.max_query,
            inputs.max_context,
            scale=scale,
            window_size=(left, 0),
            enable_gqa=query.shape[1] != cache.shape[3],
            seqused_k=inputs.contexts,
            block_table=inputs.block_tables,
            num_splits=1,
        )
