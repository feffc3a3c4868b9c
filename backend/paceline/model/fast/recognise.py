"""Finds the standard parts of a transformers causal LM by their structure, not by their class.

Structure alone proves nothing: `equality` tests every claim made here before it is used.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedModel

_M = TypeVar("_M", bound=nn.Module)


class NotRecognisedError(Exception):
    """A model is built in another way; the message says which part."""


@dataclass(frozen=True, slots=True)
class LayerParts:
    """A pre-norm decoder layer with a gated feed-forward network.

    query_norm, key_norm: over each head's width; None where the model has none.
    """

    layer: nn.Module
    index: int
    attention_norm: nn.Module
    query: nn.Linear
    key: nn.Linear
    value: nn.Linear
    output: nn.Linear
    query_norm: nn.Module | None
    key_norm: nn.Module | None
    head_dim: int
    feed_forward_norm: nn.Module
    gate: nn.Linear
    up: nn.Linear
    down: nn.Linear
    activation: nn.Module


@dataclass(frozen=True, slots=True)
class DecoderParts:
    """Embedding, layers, final norm and output head, and where they hang in the model."""

    base: nn.Module
    embedding: nn.Embedding
    layers: tuple[LayerParts, ...]
    rotary: nn.Module
    norm: nn.Module
    head: nn.Linear


def find_decoder(model: PreTrainedModel) -> DecoderParts:
    """Raises NotRecognisedError for a model of another structure."""
    base = getattr(model, "base_model", None)
    if not isinstance(base, nn.Module) or base is model:
        raise NotRecognisedError("it has no base model")
    children = {name for name, _ in base.named_children()}
    if children != {"embed_tokens", "layers", "norm", "rotary_emb"}:
        raise NotRecognisedError(f"its base model consists of {_listed(children)}")
    if {name for name, _ in model.named_children()} != {model.base_model_prefix, "lm_head"}:
        raise NotRecognisedError("there is more than a base model and an output head")
    layers = _child(base, "layers")
    shared = Counter(id(p) for _, p in layers.named_parameters(remove_duplicate=False))
    if any(count > 1 for count in shared.values()):
        raise NotRecognisedError("its layers share weights")
    return DecoderParts(
        base=base,
        embedding=_exactly(base, "embed_tokens", nn.Embedding),
        layers=tuple(find_layer(layer, i) for i, layer in enumerate(layers.children())),
        rotary=_child(base, "rotary_emb"),
        norm=_norm(base, "norm"),
        head=_exactly(model, "lm_head", nn.Linear),
    )


def is_rms_norm(module: nn.Module) -> bool:
    """Whether a module looks like an RMSNorm: one weight vector, an epsilon, nothing else."""
    names = [name for name, _ in module.named_parameters()]
    return names == ["weight"] and norm_epsilon(module) is not None and not list(module.children())


def norm_epsilon(module: nn.Module) -> float | None:
    """What a norm adds to the mean square."""
    for name in ("variance_epsilon", "eps"):
        value = getattr(module, name, None)
        if isinstance(value, float):
            return value
    return None


_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}


def find_layer(layer: nn.Module, index: int) -> LayerParts:
    """Raises NotRecognisedError for a layer of another structure."""
    expected = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
    _expect(layer, expected, f"layer {index}")
    attention, feed_forward = _child(layer, "self_attn"), _child(layer, "mlp")
    has_norms = hasattr(attention, "q_norm")
    _expect(attention, _ATTENTION | ({"q_norm", "k_norm"} if has_norms else set()), "attention")
    _expect(feed_forward, {"gate_proj", "up_proj", "down_proj", "act_fn"}, "feed-forward")
    activation = _child(feed_forward, "act_fn")
    if list(activation.parameters()):
        raise NotRecognisedError(f"the activation of layer {index} has weights")
    head_dim = getattr(attention, "head_dim", None)
    if not isinstance(head_dim, int):
        raise NotRecognisedError(f"the attention of layer {index} does not tell its head_dim")
    return LayerParts(
        layer=layer,
        index=index,
        attention_norm=_norm(layer, "input_layernorm"),
        query=_exactly(attention, "q_proj", nn.Linear),
        key=_exactly(attention, "k_proj", nn.Linear),
        value=_exactly(attention, "v_proj", nn.Linear),
        output=_exactly(attention, "o_proj", nn.Linear),
        query_norm=_norm(attention, "q_norm", width=head_dim) if has_norms else None,
        key_norm=_norm(attention, "k_norm", width=head_dim) if has_norms else None,
        head_dim=head_dim,
        feed_forward_norm=_norm(layer, "post_attention_layernorm"),
        gate=_exactly(feed_forward, "gate_proj", nn.Linear),
        up=_exactly(feed_forward, "up_proj", nn.Linear),
        down=_exactly(feed_forward, "down_proj", nn.Linear),
        activation=activation,
    )


def _expect(module: nn.Module, expected: set[str], what: str) -> None:
    found = {name for name, _ in module.named_children()}
    if found != expected or list(module.parameters(recurse=False)):
        raise NotRecognisedError(f"{what} consists of {_listed(found)}")


def _norm(module: nn.Module, name: str, width: int | None = None) -> nn.Module:
    norm = _child(module, name)
    if not is_rms_norm(norm):
        raise NotRecognisedError(f"{name} is no RMSNorm")
    if width is not None and norm.get_parameter("weight").shape != (width,):
        raise NotRecognisedError(f"{name} does not act on single heads")
    return norm


def _child(module: nn.Module, name: str) -> nn.Module:
    child = getattr(module, name)
    if not isinstance(child, nn.Module):
        raise NotRecognisedError(f"{name} is a {type(child).__name__}")
    return child


def _exactly(module: nn.Module, name: str, kind: type[_M]) -> _M:
    """A child of this very class: subclasses of Linear (quantised, adapted, parallel) and of
    Embedding (scaled) compute something else."""
    child = _child(module, name)
    if type(child) is not kind:
        raise NotRecognisedError(f"{name} is a {type(child).__name__}")
    return child


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
