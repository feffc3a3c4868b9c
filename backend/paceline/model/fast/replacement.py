"""Module by module, for models whose structure as a whole is not known."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.model.fast.equality import check_module
from paceline.model.fast.lean import make_norm
from paceline.model.fast.operations import NormWeight, TorchOperations
from paceline.model.fast.projection import PackedProjection, can_prepack
from paceline.model.fast.recognise import is_rms_norm

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_PROBE_ROWS = 5


class PackedLinear(nn.Module):
    """In place of a Linear: inputs of any leading shape."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._product = PackedProjection(linear.weight, linear.bias)

    def forward(self, rows: Tensor) -> Tensor:
        if rows.numel() == 0:
            return rows.new_empty(*rows.shape[:-1], self.out_features)
        return self._product(rows)


class FusedNorm(nn.Module):
    """In place of an RMSNorm."""

    def __init__(self, norm: NormWeight) -> None:
        super().__init__()
        self._norm = norm
        self._operations = TorchOperations()

    def forward(self, rows: Tensor) -> Tensor:
        return self._operations.norm(rows, self._norm)


def replace_modules(model: PreTrainedModel) -> tuple[str, ...]:
    """Replace plain Linear and RMSNorm modules that pass the check. Returns a line per kind.

    A weight that several modules share (an output head tied to the embedding) is packed for the one
    and kept for the others.
    """
    generator = torch.Generator().manual_seed(0)
    shared = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    counts: Counter[str] = Counter()
    for parent_name, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            equivalent = _equivalent(child, generator)
            if equivalent is None:
                continue
            setattr(parent, name, equivalent)
            weight = child.get_parameter("weight")
            if shared[id(weight)] == 1:
                weight.data = weight.data.new_empty(0)
            # One line for each name, whatever the layer's number.
            last = parent_name.rpartition(".")[2]
            path = f"{last}.{name}" if last and not last.isdigit() else name
            kind = "prepacked" if isinstance(equivalent, PackedLinear) else "fused"
            counts[f"{path}: {kind}"] += 1
    return tuple(f"{count} x {line}" for line, count in counts.items())


def _equivalent(module: nn.Module, generator: torch.Generator) -> nn.Module | None:
    if type(module) is nn.Linear and can_prepack(module.weight):
        rows = _random(module.in_features, module.weight, generator)
        packed = PackedLinear(module)
        return packed if check_module(module, packed, rows) else None
    if is_rms_norm(module):
        weight = module.get_parameter("weight")
        rows = _random(weight.shape[-1], weight, generator)
        for offset in (0.0, 1.0):
            norm = FusedNorm(make_norm(module, offset=offset))
            if check_module(module, norm, rows):
                return norm
    return None


def _random(width: int, like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(_PROBE_ROWS, width, generator=generator).to(like.dtype)
