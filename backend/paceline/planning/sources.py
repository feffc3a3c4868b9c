"""Where a shape comes from: a folder, a `config.json`, plain numbers, or a known name."""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.errors import ConfigError, UnsupportedModelError
from paceline.planning.acceptance import DraftKind
from paceline.planning.known_models import KNOWN_MODELS, find_known_model
from paceline.planning.shape import ModelShape, one_layer_head

_UNGATED = frozenset({"gpt_neox", "phi", "starcoder2", "falcon", "opt"})
_QKV_BIAS = frozenset({"qwen2", "qwen2_moe", "starcoder2"})
_QK_NORM = frozenset({"qwen3", "qwen3_moe", "gemma3_text"})
_ALL_SLIDING = frozenset({"mistral", "mixtral", "starcoder2"})
_HEAD_VOCABULARY = 32000


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A shape, and the number format that its checkpoint says its weights have."""

    shape: ModelShape
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class DraftSource:
    """What drafts. `shape` is None for an n-gram drafter, which has no weights."""

    kind: DraftKind
    name: str
    shape: ModelShape | None
    precision: str | None = None


# ------------------------------------------------------------------ a model


def load_model(text: str, *, field: str = "target") -> ModelSource:
    """The model that `text` describes.

    Args:
        text: a folder with a `config.json`, such a file, a known name, or plain numbers
            (`params=7e9,layers=32,hidden=4096,heads=32,kv_heads=8,vocab=128256`).
        field: how to call the option in errors.

    Raises:
        ConfigError: nothing of that kind, or numbers are missing.
        UnsupportedModelError: a model that this planner cannot describe truthfully.
    """
    if "=" in text:
        return ModelSource(shape_from_numbers(text, field=field))
    path = Path(text).expanduser()
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ConfigError(f"{field}: the folder {text} has no config.json", field=field)
    if path.is_file():
        return _load_config(path, field)
    known = find_known_model(text)
    if known is not None:
        return ModelSource(known)
    close = difflib.get_close_matches(text.lower(), KNOWN_MODELS, n=3, cutoff=0.5)
    hint = f" Did you mean {', '.join(close)}?" if close else ""
    raise ConfigError(
        f"{field}: {text!r} is no folder, no config.json and no known model.{hint} Plain numbers "
        "work too: params=7e9,layers=32,hidden=4096,heads=32,kv_heads=8,vocab=32000. "
        f"Known: {', '.join(KNOWN_MODELS)}",
        field=field,
    )


def load_draft(text: str, target: ModelShape) -> DraftSource:
    """What `text` says should draft for `target`.

    `ngram`; `head` or `head:16000` for a one-layer head with that vocabulary; or anything that
    `load_model` takes, with `:vocab=16000` after it for a trimmed output vocabulary; or a draft
    folder made for the target.
    """
    name, _, option = text.partition(":")
    key = name.strip().lower()
    if key == "ngram":
        return DraftSource(DraftKind.NGRAM, "n-gram lookup", None)
    if key == "head":
        vocabulary = _whole_number(option, "draft") if option else _HEAD_VOCABULARY
        shape = one_layer_head(target, min(vocabulary, target.vocab_size))
        return DraftSource(DraftKind.HEAD, shape.name, shape)
    head = _draft_folder(text, target)
    if head is not None:
        return head
    model, separator, rows = text.partition(":vocab=")
    source = load_model(model, field="draft")
    shape = source.shape
    if separator:
        vocabulary = _whole_number(rows, "draft")
        if not 1 <= vocabulary <= shape.vocab_size:
            raise ConfigError(
                f"draft: a trimmed vocabulary must hold 1 to {shape.vocab_size} tokens, "
                f"got {vocabulary}",
                field="draft",
            )
        label = f"{shape.name} ({vocabulary} tokens)"
        shape = replace(shape, output_vocab_size=vocabulary, name=label)
    return DraftSource(DraftKind.MODEL, shape.name, shape, source.precision)


def _draft_folder(text: str, target: ModelShape) -> DraftSource | None:
    """A folder that `paceline distill` made, None if it is something else."""
    path = Path(text).expanduser() / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if not str(content.get("format", "")).startswith("paceline-draft"):
            return None
        module = content["module"]
        rows = int(module["num_output_ids"])
        shape = replace(
            one_layer_head(target, min(rows, target.vocab_size)),
            name=f"{content['kind']} {path.parent.name} ({rows} tokens)",
            num_layers=int(module["num_layers"]),
            hidden_size=int(module["hidden_size"]),
            num_heads=int(module["num_attention_heads"]),
            num_kv_heads=int(module["num_key_value_heads"]),
            head_dim=int(module["head_dim"]),
            intermediate_size=int(module["intermediate_size"]),
            fusion_params=len(module["feature_layers"]) * int(module["hidden_size"]) ** 2,
        )
    except (OSError, ValueError, AttributeError):
        return None
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"draft: {path} is not the description of a draft: {error!r}", field="draft"
        ) from error
    return DraftSource(DraftKind.HEAD, shape.name, shape)


# ------------------------------------------------------------------ plain numbers


def shape_from_numbers(text: str, *, field: str = "target") -> ModelShape:
    """A shape from `key=value` pairs; `params` or `intermediate` says how wide a layer is."""
    known = {
        *("name", "params", "layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate"),
        *("vocab", "tied", "experts", "experts_per_token"),
    }
    values: dict[str, str] = {}
    for part in text.split(","):
        key, separator, value = part.partition("=")
        key = key.strip().lower()
        if not separator or key not in known:
            raise ConfigError(
                f"{field}: {part.strip()!r} is not one of {', '.join(sorted(known))} with a value",
                field=field,
            )
        values[key] = value.strip()

    def number(key: str, default: int | None = None) -> int:
        if key in values:
            return _whole_number(values[key], f"{field}: {key}")
        if default is None:
            raise ConfigError(f"{field}: plain numbers need {key}=", field=field)
        return default

    hidden, heads = number("hidden"), number("heads")
    shape = ModelShape(
        name=values.get("name", f"{field} from numbers"),
        num_layers=number("layers"),
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=number("kv_heads", heads),
        head_dim=number("head_dim", max(1, hidden // max(heads, 1))),
        intermediate_size=number("intermediate", 0),
        vocab_size=number("vocab"),
        tied_embeddings=values.get("tied", "no").lower() in {"1", "yes", "true"},
        num_experts=number("experts", 0),
        experts_per_token=number("experts_per_token", 0),
    )
    if shape.intermediate_size:
        return shape
    rest = number("params") - shape.total_params
    width = rest / (3 * shape.hidden_size * shape.num_layers * max(1, shape.num_experts))
    if width < 1:
        raise ConfigError(
            f"{field}: params={values['params']} is less than attention and embeddings need "
            f"({shape.total_params:,})",
            field=field,
        )
    return replace(shape, intermediate_size=round(width))


def _whole_number(text: str, field: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value < 0 or value != int(value):
        raise ConfigError(f"{field}: {text!r} is not a whole number", field=field)
    return int(value)


# ------------------------------------------------------------------ config.json


def _load_config(path: Path, field: str) -> ModelSource:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{field}: cannot read {path}: {error}", field=field) from error
    if not isinstance(config, dict):
        raise ConfigError(f"{field}: {path} does not hold a JSON object", field=field)
    name = path.parent.name if path.name == "config.json" else path.stem
    return ModelSource(shape_from_config(config, name or "model", field=field), _stored_as(config))


def shape_from_config(config: dict[str, Any], name: str, *, field: str = "target") -> ModelShape:
    """A shape from the content of a hub-style `config.json`.

    Raises:
        UnsupportedModelError: latent attention or layers that are not attention: their cache
            and cost follow other laws than the ones used here.
    """
    inner = config.get("text_config")
    if isinstance(inner, dict):
        config = {**config, **inner}
    model_type = str(config.get("model_type", ""))
    layer_types = [str(kind) for kind in config.get("layer_types") or ()]
    foreign = sorted(set(layer_types) - {"full_attention", "sliding_attention"})
    if config.get("kv_lora_rank") or foreign:
        what = foreign[0] if foreign else "multi-head latent attention"
        raise UnsupportedModelError(
            f"{field}: {name} uses {what}, which this planner does not model", field=field
        )
    wanted = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")
    missing = [key for key in wanted if not isinstance(config.get(key), int)]
    if not isinstance(config.get("intermediate_size", config.get("moe_intermediate_size")), int):
        missing.append("intermediate_size")
    if missing:
        raise ConfigError(
            f"{field}: the config of {name} lacks {', '.join(missing)}; give plain numbers "
            "instead (params=...,layers=...,hidden=...,heads=...,vocab=...)",
            field=field,
        )

    def number(*keys: str, default: int = 0) -> int:
        for key in keys:
            value = config.get(key)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        return default

    layers, heads = number("num_hidden_layers"), number("num_attention_heads")
    experts = number("num_local_experts", "num_experts", "n_routed_experts")
    expert_size = number("moe_intermediate_size", "intermediate_size")
    width = expert_size if experts else number("intermediate_size")
    dense_layers = number("first_k_dense_replace") if experts else 0
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=number("hidden_size"),
        num_heads=heads,
        num_kv_heads=number("num_key_value_heads", default=heads),
        head_dim=number("head_dim", default=number("hidden_size") // heads),
        intermediate_size=width,
        vocab_size=number("vocab_size"),
        tied_embeddings=bool(config.get("tie_word_embeddings", model_type.startswith("gemma"))),
        gated_mlp=model_type not in _UNGATED,
        qkv_bias=model_type in _QKV_BIAS or bool(config.get("attention_bias")),
        qk_norm=model_type in _QK_NORM,
        num_experts=experts,
        experts_per_token=number("num_experts_per_tok", "num_experts_per_token"),
        shared_expert_size=number(
            "shared_expert_intermediate_size", default=number("n_shared_experts") * expert_size
        ),
        num_dense_layers=dense_layers,
        dense_intermediate_size=number("intermediate_size") if dense_layers else 0,
        sliding_window=number("sliding_window"),
        num_sliding_layers=_sliding_layers(config, model_type, layer_types, layers),
    )


def _sliding_layers(
    config: dict[str, Any], model_type: str, layer_types: list[str], layers: int
) -> int:
    """Layers that see a window only. Older configs do not list them and mean all or none."""
    if not config.get("sliding_window"):
        return 0
    if layer_types:
        return layer_types.count("sliding_attention")
    if config.get("use_sliding_window") is False:
        return 0
    pattern = config.get("sliding_window_pattern")
    if isinstance(pattern, int) and pattern > 1:  # one full layer in each `pattern`
        return layers - layers // pattern
    if model_type == "gemma2":
        return layers // 2
    return layers if model_type in _ALL_SLIDING else 0


def _stored_as(config: dict[str, Any]) -> str | None:
    """The weights' number format according to the checkpoint, if it says and we know it."""
    quantization = config.get("quantization_config")
    if not isinstance(quantization, dict):
        return None
    method = str(quantization.get("quant_method", ""))
    bits = quantization.get("bits", quantization.get("w_bit"))
    if method in {"fp8", "fbgemm_fp8"}:
        return "fp8"
    if method in {"awq", "gptq"}:
        return {4: "int4", 8: "int8"}.get(bits) if isinstance(bits, int) else None
    return None
