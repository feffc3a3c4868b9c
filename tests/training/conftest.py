"""A tiny target on disk, with tokenizer and chat template."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from transformers import AutoModelForCausalLM

from paceline.model.source import find_source
from paceline.model.support import describe_model
from paceline.model.tokenizer import TextCodec
from tests.model.tiny import byte_level_tokenizer, llama_config, write_model, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from paceline.model.support import ModelDescription


@dataclass(frozen=True)
class TinyTarget:
    folder: Path
    codec: TextCodec
    description: ModelDescription

    def load(self, attention: str = "sdpa") -> PreTrainedModel:
        loader: Any = AutoModelForCausalLM.from_pretrained
        model: PreTrainedModel = loader(self.folder, attn_implementation=attention)
        model.requires_grad_(False)
        return model


@pytest.fixture(scope="session")
def tiny_target(tmp_path_factory: pytest.TempPathFactory) -> TinyTarget:
    folder = tmp_path_factory.mktemp("tiny-target")
    tokenizer = byte_level_tokenizer()
    size = tokenizer.get_vocab_size()
    # Weights large enough that the next token is far from uniform, so there is something to learn.
    config = llama_config(
        vocab_size=size,
        num_hidden_layers=3,
        initializer_range=0.25,
        max_position_embeddings=512,
        tie_word_embeddings=True,
    )
    write_model(folder, config, seed=3)
    write_tokenizer(folder, tokenizer)
    source = find_source(str(folder))
    return TinyTarget(folder, TextCodec.load(folder), describe_model(source))
