"""Shapes of well-known models, from their public `config.json` files.

Parameter counts computed from these match the published ones to the last parameter, which the
tests check. Names are lower case; `find_known_model` forgives case, a hub's owner prefix and
suffixes such as -instruct.
"""

from __future__ import annotations

from paceline.planning.shape import ModelShape


def _llama(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    intermediate: int,
    vocab: int,
    *,
    tied: bool = False,
    head_dim: int | None = None,
    qkv_bias: bool = False,
    qk_norm: bool = False,
) -> ModelShape:
    return ModelShape(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim or hidden // heads,
        intermediate_size=intermediate,
        vocab_size=vocab,
        tied_embeddings=tied,
        qkv_bias=qkv_bias,
        qk_norm=qk_norm,
    )


def _qwen2(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    inter: int,
    vocab: int,
    tied: bool,
) -> ModelShape:
    return _llama(name, layers, hidden, heads, kv_heads, inter, vocab, tied=tied, qkv_bias=True)


def _qwen3(
    name: str, layers: int, hidden: int, heads: int, kv_heads: int, inter: int, tied: bool
) -> ModelShape:
    return _llama(
        name, layers, hidden, heads, kv_heads, inter, 151936, tied=tied, head_dim=128, qk_norm=True
    )


def _experts(base: ModelShape, *, experts: int, chosen: int, expert_size: int) -> ModelShape:
    return ModelShape(
        name=base.name,
        num_layers=base.num_layers,
        hidden_size=base.hidden_size,
        num_heads=base.num_heads,
        num_kv_heads=base.num_kv_heads,
        head_dim=base.head_dim,
        intermediate_size=expert_size,
        vocab_size=base.vocab_size,
        tied_embeddings=base.tied_embeddings,
        qk_norm=base.qk_norm,
        num_experts=experts,
        experts_per_token=chosen,
    )


# name, layers, hidden, heads, K/V heads, intermediate, vocabulary
KNOWN_MODELS = {
    shape.name: shape
    for shape in (
        _llama("llama-3.1-8b", 32, 4096, 32, 8, 14336, 128256),
        _llama("llama-3.1-70b", 80, 8192, 64, 8, 28672, 128256),
        _llama("llama-3.1-405b", 126, 16384, 128, 8, 53248, 128256),
        _llama("llama-3.2-1b", 16, 2048, 32, 8, 8192, 128256, tied=True),
        _llama("llama-3.2-3b", 28, 3072, 24, 8, 8192, 128256, tied=True),
        _llama("mistral-7b", 32, 4096, 32, 8, 14336, 32768),
        _llama("smollm2-135m", 30, 576, 9, 3, 1536, 49152, tied=True),
        _llama("smollm2-360m", 32, 960, 15, 5, 2560, 49152, tied=True),
        _llama("smollm2-1.7b", 24, 2048, 32, 32, 8192, 49152, tied=True),
        _qwen2("qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, True),
        _qwen2("qwen2.5-1.5b", 28, 1536, 12, 2, 8960, 151936, True),
        _qwen2("qwen2.5-3b", 36, 2048, 16, 2, 11008, 151936, True),
        _qwen2("qwen2.5-7b", 28, 3584, 28, 4, 18944, 152064, False),
        _qwen2("qwen2.5-14b", 48, 5120, 40, 8, 13824, 152064, False),
        _qwen2("qwen2.5-32b", 64, 5120, 40, 8, 27648, 152064, False),
        _qwen2("qwen2.5-72b", 80, 8192, 64, 8, 29568, 152064, False),
        _qwen3("qwen3-0.6b", 28, 1024, 16, 8, 3072, True),
        _qwen3("qwen3-1.7b", 28, 2048, 16, 8, 6144, True),
        _qwen3("qwen3-4b", 36, 2560, 32, 8, 9728, True),
        _qwen3("qwen3-8b", 36, 4096, 32, 8, 12288, False),
        _qwen3("qwen3-14b", 40, 5120, 40, 8, 17408, False),
        _qwen3("qwen3-32b", 64, 5120, 64, 8, 25600, False),
        _experts(
            _qwen3("qwen3-30b-a3b", 48, 2048, 32, 4, 6144, False),
            experts=128,
            chosen=8,
            expert_size=768,
        ),
        _experts(
            _llama("mixtral-8x7b", 32, 4096, 32, 8, 14336, 32000),
            experts=8,
            chosen=2,
            expert_size=14336,
        ),
        _experts(
            _llama("mixtral-8x22b", 56, 6144, 48, 8, 16384, 32768),
            experts=8,
            chosen=2,
            expert_size=16384,
        ),
    )
}
_ALIASES = {
    "llama-3-8b": "llama-3.1-8b",
    "llama-3-70b": "llama-3.1-70b",
    "llama-3.3-70b": "llama-3.1-70b",
    "meta-llama-3-8b": "llama-3.1-8b",
    "meta-llama-3-70b": "llama-3.1-70b",
    "meta-llama-3.1-8b": "llama-3.1-8b",
    "meta-llama-3.1-70b": "llama-3.1-70b",
    "meta-llama-3.1-405b": "llama-3.1-405b",
}
_SUFFIXES = ("-instruct", "-base", "-chat", "-hf", "-v0.1", "-v0.2", "-v0.3")


def find_known_model(name: str) -> ModelShape | None:
    """The shape of that name, or None."""
    key = name.strip().lower().rsplit("/", 1)[-1].replace("_", "-").replace(" ", "-")
    trimmed = True
    while trimmed:
        trimmed = False
        for suffix in _SUFFIXES:
            if key.endswith(suffix):
                key, trimmed = key.removesuffix(suffix), True
    return KNOWN_MODELS.get(_ALIASES.get(key, key))
