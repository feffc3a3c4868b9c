"""A whole decoder as a short list of kernel calls, for models of the Llama family.

An eager transformers layer spends about as long in Python and in dispatch as the memory needs to
read its weights. Here a layer is ten kernels: merged query/key/value and gate/up products with
prepacked weights, and the operations on rows between them. Nothing is mutated from step to step;
the weights are the only state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from paceline.model.attention_native import NativePagedAttention
from paceline.model.fast.native_layer import NativeLayer, NativeProjection, can_arrange
from paceline.model.fast.operations import (
    NativeOperations,
    NormWeight,
    Operations,
    RotaryTable,
    Rotation,
    TorchOperations,
    plain_activation,
)
from paceline.model.fast.projection import Projection, make_projection
from paceline.model.fast.recognise import DecoderParts, LayerParts, norm_epsilon
from paceline.model.features import FINAL_NORM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn

    from paceline.model.attention import AttentionContext
    from paceline.model.fast.weight_memory import WeightMemory
    from paceline.model.native import Kernels


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What a layer asks of attention, seen while the original ran."""

    scale: float
    sliding_window: int | None


@dataclass(frozen=True, slots=True)
class LeanLayer:
    """One decoder layer. head_norm: over queries and keys of each head, before rotation. gated:
    rows [T, hidden] -> activation(gate) * up [T, intermediate]."""

    index: int
    call: AttentionCall
    num_heads: int
    num_kv_heads: int
    head_dim: int
    has_rotation: bool
    attention_norm: NormWeight
    query_key_value: Projection
    head_norm: NormWeight | None
    output: Projection
    feed_forward_norm: NormWeight
    gated: Projection
    down: Projection
    operations: Operations

    def forward(self, rows: Tensor, rotation: Rotation, context: AttentionContext) -> Tensor:
        """rows [T, hidden] -> [T, hidden]."""
        operations = self.operations
        num_rows = rows.shape[0]
        product = self.query_key_value(operations.norm(rows, self.attention_norm))
        heads = product.view(num_rows, -1, self.head_dim)
        num_turned = self.num_heads + self.num_kv_heads
        turned = operations.turn(
            heads[:, :num_turned], rotation if self.has_rotation else None, self.head_norm
        )
        attended = context.attend(
            self.index,
            turned[:, : self.num_heads],
            turned[:, self.num_heads :],
            heads[:, num_turned:],
            self.call.scale,
            self.call.sliding_window,
        )
        rows, normed = operations.add_norm(
            rows, self.output(attended.reshape(num_rows, -1)), self.feed_forward_norm
        )
        return rows + self.down(self.gated(normed))


class LeanDecoder:
    """The model: token ids in, logits out. Holds the packed weights; see `speed_up`."""

    def __init__(
        self,
        embedding: Tensor,
        rotary: RotaryTable,
        layers: Sequence[LeanLayer],
        norm: NormWeight,
        head: Projection,
        vocabulary_rows: int,
        operations: Operations,
    ) -> None:
        """embedding: [ids, hidden]."""
        self._embedding = embedding
        self._rotary = rotary
        self._layers = tuple(layers)
        self._norm = norm
        self._head = head
        self._vocabulary_rows = vocabulary_rows
        self._operations = operations
        natives = [native_layer(layer, embedding.shape[1]) for layer in self._layers]
        self._native = [native for native in natives if native is not None]
        if len(self._native) < len(self._layers):
            self._native = []

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
        rows = self._operations.pick(self._embedding, token_ids)
        rotation = self._rotary.rotation(positions)
        features: dict[int, Tensor] = {}
        if self._native and isinstance(context, NativePagedAttention):
            scratch = rows.new_empty(len(rows) * self._native[0].scratch_width)
            for index, native in enumerate(self._native):
                native.forward_(rows, rotation, context, scratch)
                if index in feature_layers:
                    features[index] = rows.clone()
        else:
            for layer in self._layers:
                rows = layer.forward(rows, rotation, context)
                if layer.index in feature_layers:
                    features[layer.index] = rows
        if FINAL_NORM in feature_layers:
            rows = features[FINAL_NORM] = self._operations.norm(rows, self._norm)
        if len(logit_rows) != len(rows):
            rows = self._operations.pick(rows, logit_rows)
        if FINAL_NORM not in feature_layers:
            rows = self._operations.norm(rows, self._norm)
        logits = self._head(rows) if len(rows) else rows.new_empty(0, self._vocabulary_rows)
        if not feature_layers:
            return logits, None
        return logits, torch.cat([features[index] for index in feature_layers], dim=-1)


def make_norm(module: nn.Module, *, offset: float = 0.0) -> NormWeight:
    """The weight of an RMSNorm that scales by `offset + weight`."""
    weight = module.get_parameter("weight").detach().to(torch.float32) + offset
    return NormWeight(weight, _epsilon(module))


def make_operations(parts: DecoderParts, kernels: Kernels | None) -> Operations:
    """Our own kernels if they are there and take this model's heads."""
    if kernels is None or any(layer.head_dim % 32 for layer in parts.layers):
        return TorchOperations()
    return NativeOperations(kernels)


def make_layer(
    parts: LayerParts,
    call: AttentionCall,
    operations: Operations,
    *,
    has_rotation: bool,
    memory: WeightMemory | None = None,
) -> LeanLayer:
    """Packs a layer's weights: a copy of them, while the original is still there. memory: for the
    copy, if it is to serve."""
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
        query_key_value=_merge(operations, memory, parts.query, parts.key, parts.value),
        head_norm=_head_norm(parts, num_heads, num_kv_heads),
        output=_merge(operations, memory, parts.output),
        feed_forward_norm=make_norm(parts.feed_forward_norm),
        gated=_gated(operations, memory, parts),
        down=_merge(operations, memory, parts.down),
        operations=operations,
    )


def make_decoder(
    parts: DecoderParts,
    layers: Sequence[LeanLayer],
    operations: Operations,
    num_positions: int,
    memory: WeightMemory,
) -> LeanDecoder:
    """Packs the head too; `layers` are made already, in the same memory. num_positions: that the
    model can compute."""
    embedding = parts.embedding.weight.detach()
    return LeanDecoder(
        embedding=embedding,
        rotary=RotaryTable(parts.rotary, num_positions, embedding, operations),
        layers=layers,
        norm=make_norm(parts.norm),
        head=_merge(operations, memory, parts.head),
        vocabulary_rows=parts.head.out_features,
        operations=operations,
    )


def native_layer(layer: LeanLayer, hidden: int) -> NativeLayer | None:
    """The layer as one call, if all of it is in our kernels."""
    products = (layer.query_key_value, layer.output, layer.gated, layer.down)
    if not all(isinstance(product, NativeProjection) for product in products):
        return None
    if layer.head_norm is not None and not layer.has_rotation:
        return None
    kernels = layer.operations.kernels
    return None if kernels is None else NativeLayer(layer, hidden, kernels)


def _merge(operations: Operations, memory: WeightMemory | None, *linears: nn.Linear) -> Projection:
    """One product for layers that read the same rows; outputs side by side."""
    weight, bias = _merged(*linears)
    kernels = operations.kernels
    if kernels is not None and can_arrange(weight, kernels):
        return NativeProjection(weight, bias, kernels, memory=memory)
    return make_projection(weight, bias)


def _gated(operations: Operations, memory: WeightMemory | None, parts: LayerParts) -> Projection:
    """rows -> activation(gate) * up, by one product."""
    weight, bias = _merged(parts.gate, parts.up)
    activation = plain_activation(parts.activation)
    kernels = operations.kernels
    if kernels is not None and activation is F.silu and can_arrange(weight, kernels, is_gate=True):
        return NativeProjection(weight, bias, kernels, is_gate=True, memory=memory)
    product = make_projection(weight, bias)
    return lambda rows: operations.gate(product(rows), activation)


def _merged(*linears: nn.Linear) -> tuple[Tensor, Tensor | None]:
    weights = [linear.weight.detach() for linear in linears]
    weight = weights[0] if len(weights) == 1 else torch.cat(weights)
    if all(linear.bias is None for linear in linears):
        return weight, None
    biases = [
        weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        for linear in linears
    ]
    return weight, torch.cat(biases)


def _head_norm(parts: LayerParts, num_heads: int, num_kv_heads: int) -> NormWeight | None:
    if parts.query_norm is None or parts.key_norm is None:
        return None
    weights = [
        norm.get_parameter("weight").detach().to(torch.float32).expand(count, -1)
        for norm, count in ((parts.query_norm, num_heads), (parts.key_norm, num_kv_heads))
    ]
    return NormWeight(torch.cat(weights), _epsilon(parts.query_norm))


def _epsilon(module: nn.Module) -> float:
    epsilon = norm_epsilon(module)
    if epsilon is None:
        raise ValueError(f"{type(module).__name__} is no RMSNorm")
    return epsilon
