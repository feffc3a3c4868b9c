"""Puts equivalents in place of what a loaded model's standard parts compute.

Two ways, the better one first. A model of the Llama family as a whole becomes a `LeanDecoder`. Any
other model keeps transformers' code, and its plain Linear and RMSNorm modules are replaced one by
one. Either way every part is proven on random input before the first weight is moved, and a weight
is let go as soon as its packed copy exists, so memory holds the model once.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from paceline.model.fast.equality import (
    Trace,
    check_layer,
    check_module,
    check_wiring,
    probe_batches,
    trace,
)
from paceline.model.fast.lean import (
    LeanDecoder,
    LeanLayer,
    make_decoder,
    make_layer,
    make_norm,
    make_operations,
)
from paceline.model.fast.projection import can_prepack
from paceline.model.fast.recognise import DecoderParts, LayerParts, NotRecognisedError, find_decoder
from paceline.model.fast.replacement import replace_modules
from paceline.model.fast.weight_memory import WeightMemory
from paceline.model.native import load_kernels

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.model.fast.lean import AttentionCall
    from paceline.model.fast.operations import Operations

_SEED = 20250


@dataclass(frozen=True, slots=True)
class FastPath:
    """What `speed_up` did.

    decoder: runs the whole model; None when the model itself still does. replaced: what was
    replaced, a line each, for the log. kept: why the rest, or all, was left as it was.
    """

    decoder: LeanDecoder | None
    replaced: tuple[str, ...]
    kept: str | None


@torch.inference_mode()
def speed_up(model: PreTrainedModel) -> FastPath:
    """Replace what can be proven equal.

    The model must be loaded with `ATTENTION_NAME`, in evaluation mode. Afterwards it is either
    unchanged in what it computes, or (with a decoder) its layers have moved into the decoder and
    calling it raises RuntimeError. float32 models are left alone: their results stay bit for bit
    those of transformers.
    """
    if model.dtype is torch.float32:
        return FastPath(None, (), "float32 is computed as transformers does, bit for bit")
    if not can_prepack(model.get_input_embeddings().weight):  # type: ignore[arg-type]
        return FastPath(None, (), f"{model.dtype} on {model.device} has no prepacked products")
    try:
        parts = find_decoder(model)
        operations = make_operations(parts, load_kernels())
        calls, rotations = _prove(model, parts, operations)
    except NotRecognisedError as error:
        replaced = replace_modules(model)
        return FastPath(None, replaced, f"the rest is not of the Llama family: {error}")
    memory = WeightMemory()
    layers = []
    for part, has_rotation in zip(parts.layers, rotations, strict=True):
        call = calls[part.index]
        layers.append(make_layer(part, call, operations, has_rotation=has_rotation, memory=memory))
        _let_go(part.layer)
    positions = (
        getattr(model.config.get_text_config(), "max_position_embeddings", None) or sys.maxsize
    )
    decoder = make_decoder(parts, layers, operations, positions, memory)
    is_tied = parts.head.weight is parts.embedding.weight
    if not is_tied:
        _let_go(parts.head)
    parts.base.layers = nn.ModuleList([_Moved()])
    return FastPath(decoder, _lines(parts, layers, is_tied), None)


def _prove(
    model: PreTrainedModel, parts: DecoderParts, operations: Operations
) -> tuple[dict[int, AttentionCall], list[bool]]:
    """Raises NotRecognisedError unless every part has its equivalent and there is nothing else.

    Returns what each layer asks of attention and whether it rotates.
    """
    generator = torch.Generator().manual_seed(_SEED)
    try:
        batches = probe_batches(parts.embedding.num_embeddings, generator)
        traces, calls = trace(model, parts, batches)
    except (RuntimeError, TypeError, ValueError) as error:
        raise NotRecognisedError(f"it cannot be traced: {error}") from error
    for seen in traces:
        if len(seen.inputs) != len(parts.layers):
            raise NotRecognisedError("its layers do not run once each")
        check_wiring(seen)
    rotations = [_prove_layer(part, calls[part.index], operations, traces) for part in parts.layers]
    rows = traces[0].norm_input
    norm = make_norm(parts.norm)
    if rows is None or not check_module(
        parts.norm, lambda rows: operations.norm(rows, norm), rows[0]
    ):
        raise NotRecognisedError("its final norm is no RMSNorm")
    return calls, rotations


def _prove_layer(
    parts: LayerParts, call: AttentionCall, operations: Operations, traces: list[Trace]
) -> bool:
    """Whether the layer rotates; some models leave positions out of some layers."""
    cos, _ = traces[0].arguments[parts.index].get("position_embeddings", (None, None))
    if not isinstance(cos, Tensor) or cos.shape[-1] != parts.head_dim:
        raise NotRecognisedError(f"layer {parts.index} has no rotary embedding of its whole heads")
    for has_rotation in (True, False):
        try:
            check_layer(parts, call, operations, traces, has_rotation=has_rotation)
        except NotRecognisedError:
            if not has_rotation:
                raise
        else:
            break
    return has_rotation


def _let_go(module: nn.Module) -> None:
    """Free a module's weights: they live in a packed copy now."""
    for parameter in module.parameters():
        parameter.data = parameter.data.new_empty(0)


class _Moved(nn.Module):
    """Stands where layers were, so that nobody gets answers from a model without them."""

    def forward(self, *args: object, **kwargs: object) -> None:
        raise RuntimeError("this model's layers have moved into a LeanDecoder")


def _lines(parts: DecoderParts, layers: list[LeanLayer], is_tied: bool) -> tuple[str, ...]:
    count = len(layers)
    lines = [
        f"{count} decoder layers: one lean function each",
        f"{count} x q_proj, k_proj, v_proj: one prepacked product",
        f"{count} x gate_proj, up_proj: one prepacked product",
        f"{2 * count} x o_proj, down_proj: prepacked",
        f"{2 * count + 1} x RMSNorm: fused",
    ]
    if layers and layers[0].head_norm is not None:
        lines.append(f"{count} x q_norm, k_norm: one fused norm")
    rotated = sum(layer.has_rotation for layer in layers)
    lines.append(f"{rotated} x rotary embedding: queries and keys together")
    size = parts.head.out_features * parts.head.in_features * 2 >> 20
    tied = f" ({size} MiB beside the embedding it is tied to)" if is_tied else ""
    lines.append(f"lm_head: prepacked{tied}")
    return tuple(lines)
