"""The engine that writes training data: no drafting, no server, sized for a batch of answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind
from paceline.engine.assembly import ModelPart, assemble
from paceline.model.attention import ATTENTION_NAME
from paceline.model.runner import ModelRunner

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.engine.engine import Engine
    from paceline.model.support import ModelDescription
    from paceline.model.tokenizer import TextCodec
    from paceline.training.generate import GenerationOptions

BLOCK_SIZE = 16
_TEMPLATE_TOKENS = 128


def generation_engine(
    model: PreTrainedModel,
    description: ModelDescription,
    codec: TextCodec,
    options: GenerationOptions,
) -> Engine:
    """An engine over ``model``, which is switched to Paceline's attention."""
    longest = min(
        description.max_model_len,
        options.max_prompt_tokens
        + options.max_question_tokens
        + options.max_answer_tokens
        + _TEMPLATE_TOKENS,
    )
    num_blocks = options.concurrency * (longest // BLOCK_SIZE + 2)
    model.set_attn_implementation(ATTENTION_NAME)
    tensors = KVTensors(
        KVShape(description.kv_layers, model.dtype),
        num_blocks,
        BLOCK_SIZE,
        torch.device(model.device),
    )
    part = ModelPart(ModelRunner(model, tensors.layers), description.max_model_len, tensors.scrub)
    return assemble(
        target=part,
        draft=None,
        drafter=DrafterKind.NONE,
        limits=EngineLimits(
            max_model_len=longest,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_sequences=options.concurrency,
            max_waiting=2 * options.concurrency,
            vocabulary_size=min(codec.vocabulary_size, description.vocabulary_rows),
        ),
        text_stream=codec.detokenizer,
        token_budget=max(256, 2 * options.concurrency),
        num_speculative_tokens=0,
    )
