"""The K/V memory itself: one tensor a layer, addressed by block.

Layout `[2, num_blocks, block_size, num_kv_heads, head_dim]`: index 0 keys (after rotary embedding),
1 values. `layer[0]` is the paged key pool that CUDA's variable-length attention takes, and one
`index_select` along dimension 1 gathers keys and values of a block table together. On a CPU the
heads are outermost in memory (the shape is the same, the strides differ), so that a head's keys
follow one another and are read as a stream.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paceline.core.huge_pages import zeroed_memory

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class KVShape:
    """What one model stores for a token: per layer its number of K/V heads and their width."""

    layers: tuple[tuple[int, int], ...]
    dtype: torch.dtype

    @property
    def num_bytes_per_token(self) -> int:
        return sum(2 * heads * width for heads, width in self.layers) * self.dtype.itemsize


class KVTensors:
    """Allocated at once and never resized. Rows start at zero, so that masked garbage is finite."""

    def __init__(
        self, shape: KVShape, num_blocks: int, block_size: int, device: torch.device
    ) -> None:
        self.shape = shape
        self.layers = tuple(
            _zeros(num_blocks, block_size, heads, width, shape.dtype, device)
            for heads, width in shape.layers
        )

    def scrub(self, blocks: Sequence[int]) -> None:
        """Zero these blocks. A masked NaN still poisons the weighted sum of values, so blocks of a
        sequence that failed with NaN must not be handed on as they are."""
        if not blocks:
            return
        for layer in self.layers:
            layer[:, torch.as_tensor(blocks, device=layer.device)] = 0


def _zeros(
    num_blocks: int,
    block_size: int,
    heads: int,
    width: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    if device.type != "cpu":
        return torch.zeros(2, num_blocks, block_size, heads, width, dtype=dtype, device=device)
    shape = (2, heads, num_blocks, block_size, width)
    if not math.prod(shape):
        return torch.zeros(shape, dtype=dtype).permute(0, 2, 3, 1, 4)
    memory = zeroed_memory(math.prod(shape) * dtype.itemsize)
    # Written to now, so that it is there when it is needed and no step waits for its pages.
    rows = torch.frombuffer(memory, dtype=dtype).zero_()
    return rows.view(shape).permute(0, 2, 3, 1, 4)
