"""Tiny models and tokenizers on disk, made in milliseconds, with the parts that matter real."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, LlamaConfig

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from transformers import PreTrainedConfig

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEXTS = (
    "user assistant system the quick brown fox jumps over the lazy dog",
    "to be or not to be, that is the question of the hour",
    "print(value) for value in range(10) if value % 2 == 0",
)


def byte_level_tokenizer(
    texts: Sequence[str] = _TEXTS,
    *,
    control: Sequence[str] = CONTROL,
    added: Sequence[AddedToken] = (),
    vocabulary_size: int = 320,
) -> Tokenizer:
    """A byte-level BPE tokenizer: any text can be encoded, characters may split."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(control),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(texts), trainer)
    tokenizer.add_tokens(list(added))
    return tokenizer


def sentencepiece_like_tokenizer() -> Tokenizer:
    """BPE as Llama 2's: a space before the first word, spaces as U+2581, bytes as fallback, and a
    begin token before every text."""
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)],
        show_progress=False,
    )
    tokenizer.train_from_iterator(list(_TEXTS), trainer)
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return tokenizer


def write_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    chat_template: str | None = CHATML,
    eos_token: str = "<|im_end|>",
    **config: Any,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    written = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos_token, **config}
    if chat_template is not None:
        written["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return folder


def llama_config(**changes: Any) -> LlamaConfig:
    values: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "eos_token_id": 2,
    }
    return LlamaConfig(**(values | changes))


def write_model(folder: Path, config: PreTrainedConfig, *, seed: int = 0) -> Path:
    """Random weights for a configuration, saved as safetensors."""
    torch.manual_seed(seed)
    build: Any = AutoModelForCausalLM.from_config
    build(config).save_pretrained(folder)
    return folder
