"""The default target with a draft made of its own first layers, behind real engines."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING

import torch

from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind
from paceline.engine.assembly import ModelPart, assemble
from paceline.model.chat import ChatMessage
from paceline.model.default_weights import ensure_default_target
from paceline.model.fixed_rows import FixedRowsRunner
from paceline.model.loading import load_target
from paceline.model.tokenizer import TextCodec
from tests.tiny_models import model_part

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.core.config import Dtype
    from paceline.engine.engine import Engine

NUM_BLOCKS, BLOCK_SIZE = 512, 16
DRAFT_LAYERS = 26

TOPICS = (
    "photosynthesis", "the water cycle", "bicycles", "bread", "the moon", "volcanoes", "chess",
    "trains", "music", "the sea", "coffee", "computers", "glass", "honey bees", "maps", "ice",
    "sleep", "paper", "salt", "time zones", "clouds", "gravity", "wood", "rivers", "friendship",
)  # fmt: skip


@cache
def codec() -> TextCodec:
    return TextCodec.load(ensure_default_target())


def prompts() -> list[tuple[int, ...]]:
    """50 chat prompts: questions, and texts to copy, where n-grams have something to find."""
    texts = [f"What is interesting about {topic}?" for topic in TOPICS]
    texts += [f"Repeat five times, with numbers: I like {topic} a lot." for topic in TOPICS]
    return [tuple(codec().encode_chat([ChatMessage("user", text)]).ids) for text in texts]


@cache
def target(dtype: Dtype) -> PreTrainedModel:
    return load_target(str(ensure_default_target()), dtype=dtype)


@cache
def first_layers(dtype: Dtype) -> PreTrainedModel:
    """A draft that shares the target's weights and leaves its last layers out."""
    model = copy.copy(target(dtype))
    model._modules = dict(model._modules)
    body = copy.copy(model.model)
    body._modules = dict(body._modules)
    body.layers = torch.nn.ModuleList(list(body.layers)[:DRAFT_LAYERS])
    body.config = model.config = copy.deepcopy(model.config)
    model.config.num_hidden_layers = DRAFT_LAYERS
    model.model = body
    return model


def smollm2_engine(
    dtype: Dtype, drafter: DrafterKind, num_speculative_tokens: int, *, fixed_rows: bool = False
) -> Engine:
    part = model_part(target(dtype), NUM_BLOCKS + 1, BLOCK_SIZE)
    if fixed_rows:
        runner = FixedRowsRunner(part.runner, num_rows=16, scratch_block=NUM_BLOCKS)
        part = ModelPart(runner, part.max_model_len, part.scrub)
    draft = None
    if drafter is DrafterKind.MODEL:
        draft = model_part(first_layers(dtype), NUM_BLOCKS, BLOCK_SIZE)
    return assemble(
        target=part,
        draft=draft,
        drafter=drafter,
        limits=EngineLimits(2048, NUM_BLOCKS, BLOCK_SIZE, 32, 1000, codec().vocabulary_size),
        text_stream=codec().detokenizer,
        token_budget=512,
        num_speculative_tokens=num_speculative_tokens,
    )
