"""The row operations of a lean layer: on torch's kernels, or fused in our own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from paceline.model.native import Kernels


@dataclass(frozen=True, slots=True)
class NormWeight:
    """An RMSNorm over the last dimension. weight: float32 [H], or [heads, D] for single heads."""

    weight: Tensor
    epsilon: float


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary embedding of a step's rows, in the two halves' layout.

    cos, sin: [T, D]. turning_sin: sin with its first half negated, so that rotating is a roll.
    """

    cos: Tensor
    sin: Tensor
    turning_sin: Tensor

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor) -> Rotation:
        """cos, sin: [T, D], as transformers' rotary modules make them."""
        half = sin.shape[-1] // 2
        return cls(
            cos.contiguous(), sin.contiguous(), torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
        )


class Operations(Protocol):
    """Each computes in float32 and rounds at the end, and may reuse what it is given.

    kernels: our own, None where they are not used.
    """

    @property
    def kernels(self) -> Kernels | None: ...

    def norm(self, rows: Tensor, norm: NormWeight) -> Tensor:
        """RMSNorm of rows [T, H]."""
        ...

    def add_norm(self, rows: Tensor, added: Tensor, norm: NormWeight) -> tuple[Tensor, Tensor]:
        """rows + added [T, H], and the RMSNorm of that sum."""
        ...

    def turn(self, heads: Tensor, rotation: Rotation | None, norm: NormWeight | None) -> Tensor:
        """heads [T, H, D]: RMSNorm of each, then rotary embedding; None leaves one out."""
        ...

    def gate(self, gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """activation(gate) * up of [T, 2 * I]."""
        ...


class TorchOperations:
    """On torch's kernels, for any device."""

    kernels: None = None

    def norm(self, rows: Tensor, norm: NormWeight) -> Tensor:
        """See `Operations`."""
        length = torch.linalg.vector_norm(rows, 2, (-1,), True, dtype=torch.float32)
        scale = length.square_().mul_(1.0 / rows.shape[-1]).add_(norm.epsilon).rsqrt_()
        scaled: Tensor = (rows * scale).mul_(norm.weight)
        return scaled.to(rows.dtype)

    def add_norm(self, rows: Tensor, added: Tensor, norm: NormWeight) -> tuple[Tensor, Tensor]:
        """See `Operations`."""
        total = rows + added
        return total, self.norm(total, norm)

    def turn(self, heads: Tensor, rotation: Rotation | None, norm: NormWeight | None) -> Tensor:
        """See `Operations`."""
        if norm is not None:
            heads = self.norm(heads, norm)
        if rotation is None:
            return heads
        rolled = heads.roll(heads.shape[-1] // 2, -1)
        return (heads * rotation.cos[:, None]).addcmul_(rolled, rotation.turning_sin[:, None])

    def gate(self, gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """See `Operations`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return activation(gate) * up


class NativeOperations:
    """In our own kernels; bfloat16 on a CPU, head widths that are multiples of 32."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self._torch = TorchOperations()

    def norm(self, rows: Tensor, norm: NormWeight) -> Tensor:
        """See `Operations`."""
        return self.kernels.norm(rows, norm.weight, norm.epsilon)

    def add_norm(self, rows: Tensor, added: Tensor, norm: NormWeight) -> tuple[Tensor, Tensor]:
        """See `Operations`."""
        return self.kernels.add_norm(rows, added, norm.weight, norm.epsilon)

    def turn(self, heads: Tensor, rotation: Rotation | None, norm: NormWeight | None) -> Tensor:
        """See `Operations`. In place."""
        if rotation is None:
            return self._torch.turn(heads, None, norm)
        weight, epsilon = (None, 0.0) if norm is None else (norm.weight, norm.epsilon)
        self.kernels.rotate_(heads, rotation.cos, rotation.sin, weight, epsilon)
        return heads

    def gate(self, gate_up: Tensor, activation: Callable[[Tensor], Tensor]) -> Tensor:
        """See `Operations`."""
        if activation is F.silu:
            return self.kernels.silu_mul(gate_up)
        return self._torch.gate(gate_up, activation)


def plain_activation(module: nn.Module) -> Callable[[Tensor], Tensor]:
    """An activation module as a function, `F.silu` itself where it is that."""
    if type(module).__name__ in ("SiLU", "SiLUActivation"):
        return F.silu
    return module
