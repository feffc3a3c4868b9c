"""A whole decoder as a short list of kernel calls, for models of the Llama family.

An eager transformers layer spends about as long in Python and in dispatch as the memory needs to
read its weights. Here a layer is ten kernels: merged query/key/value and gate/up products with
prepacked weights, rotary embedding on queries and keys together, RMSNorm in few steps. Nothing is
mutated from step to step; the weights are the only state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from paceline.model.fast.projection import Projection, make_projection
from paceline.model.fast.recognise import DecoderParts, LayerParts, norm_epsilon
from paceline.model.features import FINAL_NORM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor, nn

    from paceline.model.attention import AttentionContext


class RootMeanSquareNorm:
    """RMSNorm over the last dimension: computed in float32, rounded once.

    weight: float32, broadcast against the rows; `1 + weight` models pass the sum.
    """

    __slots__ = ("_epsilon", "_factor", "_weight")

    def __init__(self, weight: Tensor, width: int, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = torch.tensor(epsilon, dtype=torch.float32, device=weight.device)
        self._factor = 1.0 / width

    def __call__(self, rows: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(rows, 2, (-1,), True, dtype=torch.float32)
        scale = torch.addcmul(self._epsilon, length, length, value=self._factor).rsqrt_()
        output = torch.empty_like(rows, memory_format=torch.contiguous_format)
        return torch.mul(rows * scale, self._weight, out=output)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary embedding of a step's rows: cos and sin [T, 1, D], the first half of sin negated so
    that rotating is a roll."""

    cos: Tensor
    sin: Tensor

    @classmethod
    def of(cls, cos: Tensor, sin: Tensor) -> Rotation:
        """cos, sin: [T, D], as transformers' rotary modules make them."""
        half = sin.shape[-1] // 2
        signed = torch.cat((-sin[:, :half], sin[:, half:]), dim=-1)
        return cls(cos.unsqueeze(1), signed.unsqueeze(1))

    def apply(self, heads: Tensor) -> Tensor:
        """heads: [T, H, D]."""
        rolled = heads.roll(heads.shape[-1] // 2, -1)
        return (heads * self.cos).addcmul_(rolled, self.sin)


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer asks of attention, seen while the original ran."""

    scale: float
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One decoder layer. head_norm: over queries and keys of each head, before rotation."""

    index: int
    call: AttentionCall
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_rotation: bool
    attention_norm: RootMeanSquareNorm
    query_key_value: Projection
    head_norm: RootMeanSquareNorm | None
    output: Projection
    feed_forward_norm: RootMeanSquareNorm
    gate_up: Projection
    activation: Callable[[Tensor], Tensor]
    down: Projection

    def forward(self, rows: Tensor, rotation: Rotation, context: AttentionContext) -> Tensor:
        """rows [T, hidden] -> [T, hidden]."""
        num_rows = rows.shape[0]
        heads = self.query_key_value(self.attention_norm(rows)).view(num_rows, -1, self.head_dim)
        num_rotated = self.num_heads + self.num_kv_heads
        turned = heads[:, :num_rotated]
        if self.head_norm is not None:
            turned = self.head_norm(turned)
        if self.has_rotation:
            turned = rotation.apply(turned)
        attended = context.attend(
            self.index,
            turned[:, : self.num_heads],
            turned[:, self.num_heads :],
            heads[:, num_rotated:],
            self.call.scale,
            self.call.sliding_window,
        )
        rows = rows + self.output(attended.reshape(num_rows, -1))
        gate, up = self.gate_up(self.feed_forward_norm(rows)).chunk(2, dim=-1)
        return rows + self.down(self.activation(gate).mul_(up))


class LeanDecoder:
    """The model: token ids in, logits out. Holds the packed weights; see `speed_up`."""

    def __init__(
        self,
        embedding: Tensor,
        rotary: nn.Module,
        layers: Sequence[LeanLayer],
        norm: RootMeanSquareNorm,
        head: Projection,
        vocabulary_rows: int,
    ) -> None:
        """embedding: [ids, hidden]. rotary: transformers' own module, called once a step."""
        self._embedding = embedding
        self._rotary = rotary
        self._layers = tuple(layers)
        self._norm = norm
        self._head = head
        self._vocabulary_rows = vocabulary_rows

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        logit_rows: Tensor,
        context: AttentionContext,
        feature_layers: Sequence[int] = (),
    ) -> tuple[Tensor, Tensor | None]:
        """Run under inference mode.

        Args:
            token_ids, positions: [T]. logit_rows: [R], increasing indices into the T rows.
            feature_layers: outputs of these layers, or of the final norm (`FINAL_NORM`).

        Returns:
            logits [R, V], and features [T, F] side by side in the order asked for, or None.
        """
        rows = F.embedding(token_ids, self._embedding)
        rotation = self.rotation(rows, positions)
        features: dict[int, Tensor] = {}
        for layer in self._layers:
            rows = layer.forward(rows, rotation, context)
            if layer.index in feature_layers:
                features[layer.index] = rows
        if FINAL_NORM in feature_layers:
            rows = features[FINAL_NORM] = self._norm(rows)
        if len(logit_rows) != len(rows):
            rows = rows[logit_rows]
        if FINAL_NORM not in feature_layers:
            rows = self._norm(rows)
        logits = self._head(rows) if len(rows) else rows.new_empty(0, self._vocabulary_rows)
        if not feature_layers:
            return logits, None
        return logits, torch.cat([features[index] for index in feature_layers], dim=-1)

    def rotation(self, rows: Tensor, positions: Tensor) -> Rotation:
        """The step's rotary embedding."""
        cos, sin = self._rotary(rows[None], positions[None])
        return Rotation.of(cos[0], sin[0])


def make_norm(module: nn.Module, *, offset: float = 0.0) -> RootMeanSquareNorm:
    """The equivalent of an RMSNorm that scales by `offset + weight`."""
    weight = module.get_parameter("weight").detach().to(torch.float32) + offset
    return RootMeanSquareNorm(weight, weight.shape[-1], _epsilon(module))


def make_layer(parts: LayerParts, call: AttentionCall, *, has_rotation: bool) -> LeanLayer:
    """Packs a layer's weights: a copy of them, while the original is still there."""
    head_dim = parts.head_dim
    num_heads = parts.query.out_features // head_dim
    num_kv_heads = parts.key.out_features // head_dim
    return LeanLayer(
        index=parts.index,
        call=call,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        has_rotation=has_rotation,
        attention_norm=make_norm(parts.attention_norm),
        query_key_value=_merge(parts.query, parts.key, parts.value),
        head_norm=_head_norm(parts, num_heads, num_kv_heads),
        output=_merge(parts.output),
        feed_forward_norm=make_norm(parts.feed_forward_norm),
        gate_up=_merge(parts.gate, parts.up),
        activation=_activation(parts.activation),
        down=_merge(parts.down),
    )


def make_decoder(parts: DecoderParts, layers: Sequence[LeanLayer]) -> LeanDecoder:
    """Packs the head too; `layers` are made already."""
    return LeanDecoder(
        embedding=parts.embedding.weight.detach(),
        rotary=parts.rotary,
        layers=layers,
        norm=make_norm(parts.norm),
        head=_merge(parts.head),
        vocabulary_rows=parts.head.out_features,
    )


def _merge(*linears: nn.Linear) -> Projection:
    """One product for layers that read the same rows; outputs side by side."""
    weights = [linear.weight.detach() for linear in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if all(linear.bias is None for linear in linears):
        return make_projection(weight, None)
    biases = [
        weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return make_projection(weight, torch.cat(biases))


def _head_norm(parts: LayerParts, num_heads: int, num_kv_heads: int) -> RootMeanSquareNorm | None:
    if parts.query_norm is None or parts.key_norm is None:
        return None
    weights = [
        norm.get_parameter("weight").detach().to(torch.float32).expand(count, -1)
        for norm, count in ((parts.query_norm, num_heads), (parts.key_norm, num_kv_heads))
    ]
    return RootMeanSquareNorm(torch.cat(weights), parts.head_dim, _epsilon(parts.query_norm))


def _activation(module: nn.Module) -> Callable[[Tensor], Tensor]:
    if type(module).__name__ in ("SiLU", "SiLUActivation"):
        return F.silu
    return module


def _epsilon(module: nn.Module) -> float:
    epsilon = norm_epsilon(module)
    if epsilon is None:
        raise ValueError(f"{type(module).__name__} is no RMSNorm")
    return epsilon
