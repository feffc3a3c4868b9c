"""Packed weights side by side, in the order in which a step reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.core.huge_pages import zeroed_memory

if TYPE_CHECKING:
    from torch import Tensor

_CHUNK_BYTES = 64 << 20
_LINE = 64


class WeightMemory:
    """Of one model; freed in chunks, when all weights of a chunk are. Most weights are shorter than
    a huge page or end within one, so that each in memory of its own would waste the rest."""

    def __init__(self) -> None:
        self._free = memoryview(b"")

    def keep(self, weight: Tensor) -> Tensor:
        """A contiguous copy of a CPU tensor, to stay for as long as the model is served."""
        num_bytes = weight.numel() * weight.element_size()
        if not num_bytes:
            return weight.contiguous()
        taken = -(-num_bytes // _LINE) * _LINE
        if taken > len(self._free):
            self._free = zeroed_memory(max(taken, _CHUNK_BYTES))
        memory, self._free = self._free[:num_bytes], self._free[taken:]
        return torch.frombuffer(memory, dtype=weight.dtype).view(weight.shape).copy_(weight)
