"""Paged attention on a CPU in bfloat16, by our own kernel: keys and values are read where they lie.

Nothing is gathered, padded or masked, and a token's result does not depend on what else is in the
batch. Where the kernel cannot be had (no compiler, another dtype), `CpuAttention` falls back to
`attention_cpu`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from paceline.model.attention_cpu import PagedAttention
from paceline.model.native import Kernels, load_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paceline.model.attention import AttentionContext
    from paceline.model.batch import PackedBatch

# The kernel takes heads as whole vectors, and rotary embedding splits them in two.
_HEAD_MULTIPLE = 32


class CpuAttention:
    """Makes the attention context of each forward pass over one model's K/V memory.

    layers: one [2, blocks, block_size, Hkv, D] per model layer, never moved. allow_native: False
    for torch's operations in any case.
    """

    def __init__(self, layers: Sequence[Tensor], *, allow_native: bool = True) -> None:
        self._layers = layers
        self._memory: NativeMemory | None = None
        if allow_native and all(_serves(layer) for layer in layers):
            kernels = load_kernels()
            if kernels is not None:
                self._memory = NativeMemory(layers, kernels)

    def context(self, batch: PackedBatch) -> AttentionContext:
        """The context of the pass over `batch`."""
        if self._memory is None:
            return PagedAttention(batch, self._layers)
        return NativePagedAttention(batch, self._memory)


class _Batch(ctypes.Structure):
    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("num_segments", ctypes.c_int64),
        ("table_width", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("slots", ctypes.c_void_p),
        ("query_lengths", ctypes.c_void_p),
        ("context_lengths", ctypes.c_void_p),
        ("tables", ctypes.c_void_p),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("block_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
        ("head_stride", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


class NativeMemory:
    """K/V memory described once for the kernel; holds on to the tensors."""

    def __init__(self, layers: Sequence[Tensor] | Mapping[int, Tensor], kernels: Kernels) -> None:
        """layers: by index, [2, blocks, block_size, Hkv, D] each."""
        indexed = layers.items() if isinstance(layers, Mapping) else enumerate(layers)
        self._tensors = dict(indexed)
        self._structures = {index: _describe(layer) for index, layer in self._tensors.items()}
        self.addresses = {index: ctypes.addressof(s) for index, s in self._structures.items()}
        self.kernels = kernels


class NativePagedAttention:
    """The `AttentionContext` of one forward pass."""

    def __init__(self, batch: PackedBatch, memory: NativeMemory) -> None:
        self._memory = memory
        self._arrays = batch  # owns what the pointers point to
        self._batch = _Batch(
            batch.num_tokens,
            len(batch.query_lengths),
            batch.block_tables.shape[1],
            batch.block_size,
            batch.slots.ctypes.data,
            batch.query_lengths.ctypes.data,
            batch.context_lengths.ctypes.data,
            batch.block_tables.ctypes.data,
        )
        self.batch_pointer = ctypes.addressof(self._batch)
        self._attend = memory.kernels.attend
        # Also tells OpenMP, in a thread that computes for the first time, what was set.
        self.num_threads = torch.get_num_threads()

    def memory_pointer(self, layer: int) -> int:
        """Where the kernels find the layer's K/V memory described."""
        return self._memory.addresses[layer]

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
        query, key, value = _rows(query), _rows(key), _rows(value)
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        self._attend(
            self.batch_pointer,
            self._memory.addresses[layer],
            query.data_ptr(),
            key.data_ptr(),
            value.data_ptr(),
            query.stride(0),
            key.stride(0),
            value.stride(0),
            query.shape[1],
            scale,
            sliding_window or 0,
            output.data_ptr(),
            self.num_threads,
        )
        return output


def _serves(layer: Tensor) -> bool:
    return (
        layer.device.type == "cpu"
        and layer.dtype is torch.bfloat16
        and layer.shape[4] % _HEAD_MULTIPLE == 0
        and layer.stride(4) == 1
        and layer.shape[2] & (layer.shape[2] - 1) == 0
    )


def _describe(layer: Tensor) -> _Layer:
    """Where a layer [2, blocks, block_size, Hkv, D] lies; strides may be any but the last."""
    side, block, token, head, _ = layer.stride()
    keys = layer.data_ptr()
    values = keys + side * layer.element_size()
    return _Layer(keys, values, block, token, head, layer.shape[3], layer.shape[4])


def _rows(heads: Tensor) -> Tensor:
    """[T, H, D] with the heads of a row side by side, as the kernel reads them."""
    if heads.stride(2) == 1 and heads.stride(1) == heads.shape[2]:
        return heads
    return heads.contiguous()
