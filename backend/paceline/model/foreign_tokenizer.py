"""Tokenizers that come as something else than `tokenizer.json`, read through transformers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer, pre_tokenizers

from paceline.core.errors import ModelError, UnsupportedModelError

if TYPE_CHECKING:
    from pathlib import Path

# GGUF names the way its vocabulary splits text (`tokenizer.ggml.pre`). transformers builds the
# splits of these; it leaves others at GPT-2's without a word, which gives other tokens.
_GPT2_SPLIT = {None, "default", "gpt-2", "gpt2"}
# Digits apart, then GPT-2's split.
_DIGITS_SPLIT = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}


@dataclass(frozen=True, slots=True)
class ForeignTokenizer:
    tokenizer: Tokenizer
    chat_template: str | None
    variables: dict[str, str]
    eos_token_ids: frozenset[int]


def load_foreign_tokenizer(folder: Path, gguf_file: str | None) -> ForeignTokenizer:
    """Builds the tokenizer of a GGUF file, or of a folder with an older format.

    Raises ModelError when there is none, UnsupportedModelError when a GGUF file splits text in a
    way that cannot be rebuilt exactly.
    """
    from transformers import AutoTokenizer

    options: dict[str, Any] = {} if gguf_file is None else {"gguf_file": gguf_file}
    where = folder if gguf_file is None else folder / gguf_file
    try:
        loaded = AutoTokenizer.from_pretrained(str(folder), **options)
        backend: Tokenizer = loaded.backend_tokenizer
    except Exception as error:
        reason = str(error).strip().splitlines()
        raise ModelError(
            f"{where} has no tokenizer that can be read: {reason[0] if reason else error!r}"
        ) from error
    tokenizer: Tokenizer = Tokenizer.from_str(backend.to_str())
    if gguf_file is not None:
        _set_split(tokenizer, folder / gguf_file)
    template = loaded.chat_template
    variables = {
        name: str(value)
        for name, value in loaded.special_tokens_map.items()
        if isinstance(value, str)
    }
    eos = loaded.eos_token_id
    return ForeignTokenizer(
        tokenizer,
        template if isinstance(template, str) else None,
        variables,
        frozenset([eos] if gguf_file is not None and isinstance(eos, int) else []),
    )


def _set_split(tokenizer: Tokenizer, path: Path) -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS
    from transformers.integrations.gguf.reader import read_gguf_metadata

    fields, _ = read_gguf_metadata(str(path), ())
    if fields["tokenizer.ggml.model"] != "gpt2":
        return
    split = fields.get("tokenizer.ggml.pre")
    if split in GGUF_PRE_TOKENIZER_SPLITS or split in _GPT2_SPLIT:
        return
    if split not in _DIGITS_SPLIT:
        raise UnsupportedModelError(
            f"{path} splits text as {split!r}, which cannot be rebuilt exactly from a GGUF file; "
            "give the model's own folder with its tokenizer.json instead",
            field="target",
        )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
