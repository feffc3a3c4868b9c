"""Tiny random models whose attention differs in what matters, and a plain paged kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GemmaConfig,
    GemmaForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor
    from transformers import PreTrainedModel

VOCABULARY_SIZE = 96
NUM_LAYERS = 3
SLIDING_WINDOW = 8

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def _classes(name: str) -> tuple[Any, Any, dict[str, Any]]:
    match name:
        case "llama":
            return LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": False}
        case "llama-biased":
            return LlamaConfig, LlamaForCausalLM, {"attention_bias": True, "mlp_bias": True}
        case "llama-gelu":
            return LlamaConfig, LlamaForCausalLM, {"hidden_act": "gelu"}
        case "llama-narrow":
            return LlamaConfig, LlamaForCausalLM, {"head_dim": 16}
        case "mistral":
            return MistralConfig, MistralForCausalLM, {"sliding_window": SLIDING_WINDOW}
        case "qwen2":
            return Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": True}
        case "qwen3":
            return Qwen3Config, Qwen3ForCausalLM, {}
        case "smollm3":
            return SmolLM3Config, SmolLM3ForCausalLM, {"no_rope_layers": [1, 0, 1]}
        case "gemma":
            return GemmaConfig, GemmaForCausalLM, {}
        case "gemma3":
            types = ["sliding_attention", "sliding_attention", "full_attention"]
            return (
                Gemma3TextConfig,
                Gemma3ForCausalLM,
                {"sliding_window": SLIDING_WINDOW, "layer_types": types},
            )
        case "granite":
            return GraniteConfig, GraniteForCausalLM, {"residual_multiplier": 0.5}
    raise ValueError(name)


def attention_model(name: str, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A random model of bfloat16 weights, computing in `dtype`, with eager attention."""
    torch.manual_seed(7)
    model: PreTrainedModel
    if name == "gpt2":
        config = GPT2Config(
            vocab_size=VOCABULARY_SIZE,
            n_embd=64,
            n_layer=NUM_LAYERS,
            n_head=4,
            n_positions=512,
            initializer_range=0.2,
            bos_token_id=None,
            eos_token_id=None,
        )
        model = GPT2LMHeadModel(config)
    else:
        config_class, model_class, changes = _classes(name)
        model = model_class(config_class(**(_SIZES | changes)))
    _vary_norms(model)
    model.set_attn_implementation("eager")
    model.train(False)
    cast: Callable[[torch.dtype], PreTrainedModel] = model.to  # type: ignore[assignment]
    cast(torch.bfloat16)
    return cast(dtype)


def kv_shape(model: PreTrainedModel) -> tuple[int, int]:
    """K/V heads and their width."""
    config: Any = model.config
    if config.model_type == "gpt2":
        return config.n_head, config.n_embd // config.n_head
    return config.num_key_value_heads, config.head_dim


def kv_layers(model: PreTrainedModel, num_blocks: int, block_size: int) -> list[Tensor]:
    """K/V memory for the model, laid out as `KVTensors` does on a CPU and filled with noise: nobody
    may read what was not written."""
    heads, width = kv_shape(model)
    generator = torch.Generator().manual_seed(3)
    layers = [
        torch.randn(2, heads, num_blocks, block_size, width, generator=generator).to(model.dtype)
        for _ in range(NUM_LAYERS)
    ]
    return [layer.permute(0, 2, 3, 1, 4) for layer in layers]


def _vary_norms(model: PreTrainedModel) -> None:
    """New norms are all ones (or zeros), which would hide a forgotten weight."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * (0.02 if "bias" in name else 0.2))


def plain_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int,
) -> Tensor:
    """What torch.nn.attention.varlen.varlen_attn computes over paged K/V, one head at a time."""
    assert cu_seq_k is None
    assert num_splits == 1
    assert window_size[1] == 0
    assert enable_gqa == (query.shape[1] != key.shape[2])
    output = torch.empty_like(query)
    share = query.shape[1] // key.shape[2]
    bounds = cu_seq_q.tolist()
    assert max_q == max(end - start for start, end in zip(bounds, bounds[1:], strict=False))
    assert max_k == int(seqused_k.max())
    for index, used in enumerate(seqused_k.tolist()):
        start, end = bounds[index], bounds[index + 1]
        rows = block_table[index].long()
        keys, values = key[rows].flatten(0, 1)[:used], value[rows].flatten(0, 1)[:used]
        for row in range(start, end):
            position = used - (end - row)
            first = 0 if window_size[0] < 0 else max(0, position - window_size[0])
            for head in range(query.shape[1]):
                seen = slice(first, position + 1)
                scores = keys[seen, head // share] @ query[row, head] * scale
                output[row, head] = scores.softmax(0) @ values[seen, head // share]
    return output
