"""What a model needs, found out before its weights are read, and refused where we lack it.

The check is an experiment: the model is built without memory (torch's meta device) and run once
with our attention, which notes what every layer asks for. A feature that never reaches our
attention, or asks for more than it does, would change the output silently; so anything unexpected
is an `UnsupportedModelError` with the reason.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from paceline.core.config import Dtype
from paceline.core.errors import ModelError, UnsupportedModelError
from paceline.model.attention import ATTENTION_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

    from paceline.model.source import ModelSource

_KNOWN_LAYER_TYPES = {"full_attention", "sliding_attention"}
# Positions are rotated by the longest length in the batch, so one long sequence changes others.
_LENGTH_DEPENDENT_ROPE = {"dynamic", "longrope"}
_CLOSED_ATTENTION = "its code does not take attention from outside (no attention interface)"
_TORCH_DTYPES = {
    torch.float32: Dtype.FLOAT32,
    torch.bfloat16: Dtype.BFLOAT16,
    torch.float16: Dtype.FLOAT16,
}


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A model that we can serve, known from its configuration alone.

    architecture: transformers' class. num_parameters: stored once each, tied ones once.
    kv_layers: per layer the number of K/V heads and their width. vocabulary_rows: rows of the
    output (tokens and padding). embedding_rows: ids it can be fed. max_model_len: positions that it
    computes correctly. dtype: what the weights are stored in. hidden_size, intermediate_size: for
    the size of a step's activations. is_head_tied: the output head is the embedding's matrix.
    """

    source: ModelSource
    architecture: str
    num_parameters: int
    kv_layers: tuple[tuple[int, int], ...]
    vocabulary_rows: int
    embedding_rows: int
    max_model_len: int
    dtype: Dtype
    hidden_size: int
    intermediate_size: int
    is_head_tied: bool


def describe_model(source: ModelSource, *, setting: str = "target") -> ModelDescription:
    """Reads a model's configuration and tries the model without its weights.

    setting: what the user called it, for messages. Raises UnsupportedModelError with the reason,
    ModelError when the configuration cannot be read.
    """
    config = _read_config(source, setting)

    def refuse(reason: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{setting} {source.name} ({config.model_type}) is not supported: {reason}",
            field=setting,
        )

    text = config.get_text_config()
    reason = _config_reason(config, text, source.gguf_file is not None)
    if reason is not None:
        raise refuse(reason)
    try:
        with torch.device("meta"):
            build: Callable[..., PreTrainedModel] = AutoModelForCausalLM.from_config
            model = build(
                _without_dynamic_rope(config),
                attn_implementation=ATTENTION_NAME,
                dtype=torch.bfloat16,  # experts' kernels take nothing else on the meta device
            )
    except Exception as error:
        # Models with a table of their own attention classes look our name up in it.
        is_closed = isinstance(error, KeyError) and error.args == (ATTENTION_NAME,)
        raise refuse(_CLOSED_ATTENTION if is_closed else _first_line(error)) from error
    model.train(False)
    reason = _class_reason(model)
    if reason is not None:
        raise refuse(reason)
    probe = _Probe()
    try:
        vocabulary_rows = _try_forward(model, probe)
    except UnsupportedModelError as error:
        raise refuse(str(error)) from error
    except Exception as error:
        raise refuse(
            f"a forward pass over packed sequences fails ({_first_line(error)})"
        ) from error
    reason = _layer_reason(text, probe)
    if reason is not None:
        raise refuse(reason)
    return ModelDescription(
        source=source,
        architecture=type(model).__name__,
        num_parameters=sum(parameter.numel() for parameter in model.parameters()),
        kv_layers=tuple(layer.kv_shape for layer in probe.layers),
        vocabulary_rows=vocabulary_rows,
        embedding_rows=_embedding_rows(model),
        max_model_len=_max_model_len(text),
        dtype=_stored_dtype(config.dtype or text.dtype),
        hidden_size=int(text.hidden_size),
        intermediate_size=int(getattr(text, "intermediate_size", None) or 4 * text.hidden_size),
        is_head_tied=_is_head_tied(model),
    )


def _is_head_tied(model: PreTrainedModel) -> bool:
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    embedding = model.get_input_embeddings()
    return head is not None and getattr(head, "weight", None) is embedding.weight


@dataclass(frozen=True, slots=True)
class _Layer:
    kv_shape: tuple[int, int]
    sliding_window: int | None


@dataclass(slots=True)
class _Probe:
    """An attention context that computes nothing and notes what is asked of it."""

    layers: list[_Layer] = field(default_factory=list)

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        if layer != len(self.layers):
            raise UnsupportedModelError(
                f"layer {layer} asks for attention where layer {len(self.layers)} is due"
            )
        if key.shape != value.shape:
            raise UnsupportedModelError("keys and values differ in width (latent attention)")
        if query.shape[1] % key.shape[1] or query.shape[2] != key.shape[2]:
            raise UnsupportedModelError("query heads are no multiple of K/V heads")
        self.layers.append(_Layer((key.shape[1], key.shape[2]), sliding_window))
        return torch.empty_like(query)


def _read_config(source: ModelSource, setting: str) -> PreTrainedConfig:
    options: dict[str, Any] = {} if source.gguf_file is None else {"gguf_file": source.gguf_file}
    try:
        config: PreTrainedConfig = AutoConfig.from_pretrained(str(source.folder), **options)
    except Exception as error:
        raise ModelError(
            f"{setting} {source.name} has no configuration that can be read: {_first_line(error)}",
            field=setting,
        ) from error
    return config


def _config_reason(config: PreTrainedConfig, text: PreTrainedConfig, is_gguf: bool) -> str | None:
    if config.is_encoder_decoder:
        return "it is an encoder-decoder; a decoder-only causal LM is needed"
    if getattr(config, "quantization_config", None) is not None and not is_gguf:
        return "its weights are quantised; give the unquantised folder or a GGUF file"
    for name in ("attn_logit_softcapping", "attention_logit_cap"):
        if getattr(text, name, None):
            return f"its attention caps its logits ({name}), which would be left out"
    if getattr(text, "num_kv_shared_layers", 0):
        return "its layers share K/V memory (num_kv_shared_layers)"
    if getattr(text, "use_bidirectional_attention", False):
        return "its attention sees later tokens (use_bidirectional_attention)"
    unknown = set(getattr(text, "layer_types", None) or ()) - _KNOWN_LAYER_TYPES
    if unknown:
        return (
            f"it has layers of type {', '.join(sorted(unknown))}, and only full and sliding "
            "attention can be rolled back"
        )
    return None


def _class_reason(model: PreTrainedModel) -> str | None:
    if not model._supports_attention_backend:
        return _CLOSED_ATTENTION
    if getattr(model, "_is_stateful", False):
        return "it keeps recurrent state, which cannot be rolled back"
    if any(
        hasattr(module, "layer_idx") and getattr(module, "is_causal", True) is False
        for module in model.modules()
    ):
        return "its attention sees later tokens; a causal LM is needed"
    return None


def _layer_reason(text: PreTrainedConfig, probe: _Probe) -> str | None:
    if len(probe.layers) != text.num_hidden_layers:
        return (
            f"{text.num_hidden_layers - len(probe.layers)} of its {text.num_hidden_layers} layers "
            "are something else than attention"
        )
    types = getattr(text, "layer_types", None) or ["full_attention"] * len(probe.layers)
    for index, (layer, kind) in enumerate(zip(probe.layers, types, strict=True)):
        if kind == "sliding_attention" and layer.sliding_window is None:
            return f"layer {index} has a sliding window that its attention is not told"
    return None


@torch.inference_mode()
def _try_forward(model: PreTrainedModel, probe: _Probe) -> int:
    """One packed pass over two sequences of one and two tokens; returns the logits' width."""
    ids = torch.zeros(1, 3, dtype=torch.int64, device="meta")
    rows = torch.zeros(2, dtype=torch.int64, device="meta")
    output = model(
        input_ids=ids,
        position_ids=ids,
        use_cache=False,
        logits_to_keep=rows,
        attention_context=probe,
    )
    if tuple(output.logits.shape[:2]) != (1, 2):
        raise UnsupportedModelError("it cannot compute the logits of chosen rows only")
    return int(output.logits.shape[-1])


def _stored_dtype(dtype: object) -> Dtype:
    for known, ours in _TORCH_DTYPES.items():
        if dtype in (known, str(ours)):
            return ours
    return Dtype.BFLOAT16


def _embedding_rows(model: PreTrainedModel) -> int:
    weight: Tensor = model.get_input_embeddings().weight  # type: ignore[assignment]
    return weight.shape[0]


def _max_model_len(text: PreTrainedConfig) -> int:
    """Positions up to which every token is computed as in a batch of its own."""
    positions = int(getattr(text, "max_position_embeddings", 0) or 2048)
    for rope in _rope_parameters(text):
        if rope.get("rope_type") in _LENGTH_DEPENDENT_ROPE:
            original = rope.get("original_max_position_embeddings") or getattr(
                text, "original_max_position_embeddings", None
            )
            positions = min(positions, int(original or positions))
    return positions


def _rope_parameters(text: PreTrainedConfig) -> list[dict[str, Any]]:
    """The rotary settings: one dictionary, or one for each type of layer."""
    parameters = getattr(text, "rope_parameters", None) or {}
    if "rope_type" in parameters:
        return [parameters]
    return [entry for entry in parameters.values() if isinstance(entry, dict)]


def _without_dynamic_rope(config: PreTrainedConfig) -> PreTrainedConfig:
    """For trying only: dynamic frequencies look at the values of positions, which the meta device
    does not have. They change neither sizes nor what attention is asked for."""
    copied = copy.deepcopy(config)
    for rope in _rope_parameters(copied.get_text_config()):
        if rope.get("rope_type") == "dynamic":
            rope["rope_type"] = "default"
    return copied


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
