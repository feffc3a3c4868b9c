"""Matrix products with weights laid out once for the kernel that reads them.

oneDNN reorders a plain bfloat16 weight at every call, which costs more than the product itself for
a few rows. A weight reordered at load is read at the speed of memory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from torch import Tensor

# oneDNN picks the layout for a number of rows. Measured for 1 to 256 rows, the layouts picked for
# 1, 4, 16, 64 and 256 ran alike.
_LAYOUT_ROWS = 1


class Projection(Protocol):
    """rows [T, inputs] -> [T, outputs], in the weight's dtype."""

    def __call__(self, rows: Tensor) -> Tensor: ...


def can_prepack(weight: Tensor) -> bool:
    """Whether this machine has a packed product for the weight: bfloat16 on a CPU with oneDNN."""
    return (
        weight.device.type == "cpu"
        and weight.dtype is torch.bfloat16
        and weight.dim() == 2
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )


class PackedProjection:
    """A linear layer with a prepacked weight.

    weight: [outputs, inputs], copied into the packed layout. bias: [outputs] or None.
    """

    __slots__ = ("_bias", "_call", "_weight")

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(
            weight.detach().contiguous(), _LAYOUT_ROWS
        )
        self._bias = None if bias is None else bias.detach()
        self._call = torch.ops.mkldnn._linear_pointwise.default

    def __call__(self, rows: Tensor) -> Tensor:
        product: Tensor = self._call(rows, self._weight, self._bias, "none", [], "")
        return product


def make_projection(weight: Tensor, bias: Tensor | None) -> Projection:
    """The fastest product for the weight on its device."""
    if can_prepack(weight):
        return PackedProjection(weight, bias)
    return partial(F.linear, weight=weight, bias=bias)
