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


# Kinds whose frequencies do not depend on how long a sequence is.
_FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")
_MOST_TABLE_POSITIONS = 1 << 16


@dataclass(frozen=True, slots=True)
class NormWeight:
    """An RMSNorm over the last dimension. weight: float32 [H], or [heads, D] for single heads."""

    weight: Tensor
    epsilon: float


class Rotation:
    """Rotary embedding of a step's rows, in two halves. cos, sin: [T, D], contiguous."""

    __slots__ = ("_turning_sin", "cos", "sin")

    def __init__(self, cos: Tensor, sin: Tensor) -> None:
        self.cos = cos
        self.sin = sin
        self._turning_sin: Tensor | None = None

    @property
    def turning_sin(self) -> Tensor:
        """sin with its first half negated, so that rotating is a roll; made once a step."""
        if self._turning_sin is None:
            half = self.sin.shape[-1] // 2
            self._turning_sin = torch.cat((-self.sin[:, :half], self.sin[:, half:]), dim=-1)
        return self._turning_sin


class RotaryTable:
    """Rotary embedding by position: transformers' own module, asked once for all positions where
    they are few and never change, else at every step.

    module: takes rows [1, T, H] and positions [1, T], gives cos and sin [1, T, D].
    """

    def __init__(
        self, module: nn.Module, num_positions: int, like: Tensor, operations: Operations
    ) -> None:
        """like: of the dtype and on the device of the rows."""
        self._module = module
        self._operations = operations
        self._like = like.new_empty(1, 1, 1)
        self._table: tuple[Tensor, Tensor] | None = None
        is_fixed = getattr(module, "rope_type", None) in _FIXED_ROTATIONS
        if is_fixed and num_positions <= _MOST_TABLE_POSITIONS:
            self._table = self._ask(torch.arange(num_positions, device=like.device))

    def rotation(self, positions: Tensor) -> Rotation:
        """positions: int64 [T]."""
        if self._table is None:
            return Rotation(*self._ask(positions))
        return Rotation(*(self._operations.pick(side, positions) for side in self._table))

    def _ask(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self._module(self._like, positions[None])
        return cos[0].contiguous(), sin[0].contiguous()


class Operations(Protocol):
    """Each computes in float32 and rounds at the end, and may reuse what it is given.

    kernels: our own, None where they are not used.
    """

    @property
    def kernels(self) -> Kernels | None: ...

    def pick(self, table: Tensor, places: Tensor) -> Tensor:
        """table[places]: [N, W] of a contiguous table [M, W]; places: int64 [N], all in range."""
        ...

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

    def pick(self, table: Tensor, places: Tensor) -> Tensor:
        """See `Operations`."""
        return table.index_select(0, places)

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

    def pick(self, table: Tensor, places: Tensor) -> Tensor:
        """See `Operations`."""
        return self.kernels.pick(table, places.contiguous())

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
