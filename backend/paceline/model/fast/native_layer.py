"""A decoder layer as one call into our kernels, and products with weights laid out for them.

Every result is one chain of additions whose order depends on the weight alone, so a row comes out
the same, bit for bit, whether it is computed alone, beside others, or verified behind drafts.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

    from paceline.model.attention_native import NativePagedAttention
    from paceline.model.fast.lean import LeanLayer
    from paceline.model.fast.operations import Rotation
    from paceline.model.fast.weight_memory import WeightMemory
    from paceline.model.native import Kernels

_LANES = 16
_BLOCK = 2 * _LANES


class _Product(ctypes.Structure):
    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("inputs", ctypes.c_int64),
        ("outputs", ctypes.c_int64),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        ("attention_norm", ctypes.c_void_p),
        ("head_norm", ctypes.c_void_p),
        ("feed_forward_norm", ctypes.c_void_p),
        ("query_key_value", _Product),
        ("output", _Product),
        ("gate_up", _Product),
        ("down", _Product),
        ("hidden", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("has_rotation", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("attention_epsilon", ctypes.c_float),
        ("head_epsilon", ctypes.c_float),
        ("feed_forward_epsilon", ctypes.c_float),
        ("scale", ctypes.c_float),
    )


class NativeProjection:
    """A linear layer; with `is_gate`, silu(first half of the outputs) * second half.

    weight: bfloat16 [outputs, inputs], an even number of inputs; with `is_gate` the outputs are a
    multiple of 32. bias: [outputs] or None. memory: for the weight, if it is to serve.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        kernels: Kernels,
        *,
        is_gate: bool = False,
        memory: WeightMemory | None = None,
    ) -> None:
        self.outputs, self.inputs = weight.shape
        self._is_gate = is_gate
        self._kernels = kernels
        arranged = _arranged(weight.detach(), is_gate=is_gate)
        self._weight = arranged.contiguous() if memory is None else memory.keep(arranged)
        self._bias = None
        if bias is not None:
            columns = bias.detach().to(torch.float32)[:, None]
            self._bias = _blocks(columns, is_gate=is_gate).contiguous()
        self.structure = _Product(
            self._weight.data_ptr(),
            None if self._bias is None else self._bias.data_ptr(),
            self.inputs,
            self.outputs,
        )
        self._pointer = ctypes.addressof(self.structure)
        self._width = self.outputs // 2 if is_gate else self.outputs

    def __call__(self, rows: Tensor) -> Tensor:
        """rows [T, inputs] -> [T, outputs], or [T, outputs / 2] with `is_gate`."""
        rows = rows.contiguous()
        output = rows.new_empty(rows.shape[0], self._width)
        self._kernels.product(
            self._pointer,
            rows.data_ptr(),
            rows.shape[0],
            self._is_gate,
            output.data_ptr(),
            torch.get_num_threads(),
        )
        return output


class NativeLayer:
    """A lean layer whose projections are all native, run by one call."""

    def __init__(self, layer: LeanLayer, hidden: int, kernels: Kernels) -> None:
        products = (layer.query_key_value, layer.output, layer.gated, layer.down)
        first, second, third, fourth = (_structure(product) for product in products)
        self._kernels = kernels
        self._layer = layer  # owns what the pointers point to
        head_norm = layer.head_norm
        self._structure = _Layer(
            layer.attention_norm.weight.data_ptr(),
            None if head_norm is None else head_norm.weight.data_ptr(),
            layer.feed_forward_norm.weight.data_ptr(),
            first,
            second,
            third,
            fourth,
            hidden,
            layer.num_heads,
            layer.num_kv_heads,
            layer.head_dim,
            layer.has_rotation,
            layer.call.sliding_window or 0,
            layer.attention_norm.epsilon,
            0.0 if head_norm is None else head_norm.epsilon,
            layer.feed_forward_norm.epsilon,
            layer.call.scale,
        )
        self._pointer = ctypes.addressof(self._structure)
        heads = 2 * (layer.num_heads + layer.num_kv_heads) * layer.head_dim
        self.scratch_width = hidden + heads + third.outputs // 2

    def forward_(
        self, rows: Tensor, rotation: Rotation, context: NativePagedAttention, scratch: Tensor
    ) -> None:
        """The layer in place on contiguous rows [T, hidden]. scratch: at least
        T * `scratch_width` elements, overwritten."""
        self._kernels.layer(
            self._pointer,
            context.batch_pointer,
            context.memory_pointer(self._layer.index),
            rotation.cos.data_ptr(),
            rotation.sin.data_ptr(),
            rows.data_ptr(),
            scratch.data_ptr(),
            context.num_threads,
        )


def can_arrange(weight: Tensor, kernels: Kernels | None, *, is_gate: bool = False) -> bool:
    """Whether `NativeProjection` takes the weight [outputs, inputs]."""
    return (
        kernels is not None
        and kernels.has_products
        and weight.dtype is torch.bfloat16
        and weight.device.type == "cpu"
        and weight.shape[1] % 2 == 0
        and (not is_gate or weight.shape[0] % _BLOCK == 0)
    )


def _structure(product: object) -> _Product:
    if not isinstance(product, NativeProjection):
        raise TypeError(f"{type(product).__name__} is not laid out for our kernels")
    return product.structure


def _arranged(weight: Tensor, *, is_gate: bool) -> Tensor:
    """[outputs, inputs] -> a view [blocks, inputs / 2, 32, 2], short last block filled with
    zeros."""
    blocks = _blocks(weight, is_gate=is_gate)
    return blocks.view(blocks.shape[0], _BLOCK, -1, 2).transpose(1, 2)


def _blocks(rows: Tensor, *, is_gate: bool) -> Tensor:
    """[outputs, N] -> [blocks, 32, N]; with `is_gate` 16 gates, then the 16 values they gate."""
    if is_gate:
        gate, value = rows.chunk(2)
        halves = [half.reshape(-1, _LANES, rows.shape[1]) for half in (gate, value)]
        return torch.cat(halves, dim=1)
    missing = -rows.shape[0] % _BLOCK
    if missing:
        rows = torch.cat((rows, rows.new_zeros(missing, rows.shape[1])))
    return rows.reshape(-1, _BLOCK, rows.shape[1])
