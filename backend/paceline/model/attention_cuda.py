"""Paged attention on CUDA: torch's variable-length attention over block tables.

`torch.nn.attention.varlen.varlen_attn` takes ragged queries over paged K/V, which is exactly the
shape of a verification. `window_size=(-1, 0)` is causal and aligned to the end of each context;
`num_splits=1` makes a sequence's result independent of the rest of the batch.

The kernel is an argument, so that tests on a CPU drive the same code with a plain implementation of
its signature.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from paceline.model.attention import to_device, write_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from paceline.model.batch import PackedBatch


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


class VarlenPagedAttention:
    """The `AttentionContext` of one forward pass on CUDA."""

    def __init__(
        self,
        batch: PackedBatch,
        layers: Sequence[Tensor],
        kernel: VarlenKernel,
        device: torch.device,
    ) -> None:
        """layers: one [2, blocks, block_size, Hkv, D] per model layer, on `device`."""
        self._layers = layers
        self._kernel = kernel
        bounds = np.zeros(len(batch.query_lengths) + 1, dtype=np.int32)
        np.cumsum(batch.query_lengths, out=bounds[1:])
        self._query_bounds = to_device(bounds, device)
        self._contexts = to_device(batch.context_lengths, device)
        self._block_tables = to_device(batch.block_tables, device)
        self._slots = to_device(batch.slots, device)
        self._max_query = int(batch.query_lengths.max())
        self._max_context = int(batch.context_lengths.max())

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
        left = -1 if sliding_window is None else sliding_window - 1
        return self._kernel(
            query.contiguous(),
            cache[0],
            cache[1],
            self._query_bounds,
            None,
            self._max_query,
            self._max_context,
            scale=scale,
            window_size=(left, 0),
            enable_gqa=query.shape[1] != cache.shape[3],
            seqused_k=self._contexts,
            block_table=self._block_tables,
            num_splits=1,
        )
