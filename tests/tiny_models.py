"""Tiny random models of real architectures, and engines over them: quick, no weights needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.core.events import FinishEvent, TokenEvent
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind
from paceline.engine.assembly import ModelPart, assemble
from paceline.model.attention import ATTENTION_NAME
from paceline.model.runner import ModelRunner

if TYPE_CHECKING:
    from collections.abc import Iterable

    from transformers import PreTrainedModel

    from paceline.engine.engine import Engine
    from paceline.engine.policy import SpeculationPolicy
    from paceline.sampling.grammar import GrammarCompiler

VOCABULARY_SIZE = 64


class IdText:
    """A text stream for models without a tokenizer: each token is its number and a space."""

    def append(self, token_id: int) -> str:
        return f"{token_id} "

    def flush(self) -> str:
        return ""


def tiny_llama(
    seed: int = 0, *, vocabulary_size: int = VOCABULARY_SIZE, layers: int = 2, spread: float = 0.3
) -> LlamaForCausalLM:
    """A random float32 Llama with grouped-query attention. spread: of its weights; the larger, the
    more peaked its distributions."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary_size,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=spread,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config)
    model.train(mode=False)
    return model


def model_part(model: PreTrainedModel, num_blocks: int, block_size: int) -> ModelPart:
    """The model over K/V memory of its own. It keeps its attention for other users: a copy of the
    configuration's choice is made at each forward pass by transformers itself."""
    config = model.config
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = KVShape(((config.num_key_value_heads, width),) * config.num_hidden_layers, model.dtype)
    kv = KVTensors(shape, num_blocks, block_size, model.device)
    model.set_attn_implementation(ATTENTION_NAME)
    return ModelPart(ModelRunner(model, kv.layers), config.max_position_embeddings, kv.scrub)


def tiny_engine(
    target: PreTrainedModel,
    draft: PreTrainedModel | None = None,
    *,
    drafter: DrafterKind = DrafterKind.AUTO,
    num_speculative_tokens: int = 4,
    num_blocks: int = 256,
    block_size: int = 4,
    max_sequences: int = 16,
    token_budget: int = 128,
    prefix_caching: bool = True,
    policy: SpeculationPolicy | None = None,
    grammars: GrammarCompiler | None = None,
) -> Engine:
    """An engine over tiny models."""
    limits = EngineLimits(
        max_model_len=target.config.max_position_embeddings,
        num_blocks=num_blocks,
        block_size=block_size,
        max_sequences=max_sequences,
        max_waiting=1000,
        vocabulary_size=target.config.vocab_size,
    )
    return assemble(
        target=model_part(target, num_blocks, block_size),
        draft=None if draft is None else model_part(draft, num_blocks, block_size),
        drafter=drafter,
        limits=limits,
        text_stream=lambda prompt_ids: IdText(),
        token_budget=token_budget,
        num_speculative_tokens=num_speculative_tokens,
        prefix_caching=prefix_caching,
        policy=policy,
        grammars=grammars,
    )


class Outputs:
    """Collects events by request: tokens in order, and the one finish event.

    runs: how many tokens each step committed.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, list[int]] = {}
        self.sources: dict[str, list[str]] = {}
        self.text: dict[str, str] = {}
        self.finished: dict[str, FinishEvent] = {}
        self.runs: dict[str, list[int]] = {}

    def add(self, events: Iterable[TokenEvent | FinishEvent]) -> None:
        for event in events:
            key = event.request_id
            assert key not in self.finished, "an event after the finish event"
            self.text[key] = self.text.get(key, "") + event.text
            if isinstance(event, FinishEvent):
                self.finished[key] = event
            else:
                assert event.tokens
                self.runs.setdefault(key, []).append(len(event.tokens))
                self.tokens.setdefault(key, []).extend(t.token_id for t in event.tokens)
                self.sources.setdefault(key, []).extend(t.source for t in event.tokens)


def run_to_end(engine: Engine, outputs: Outputs | None = None, max_steps: int = 5000) -> Outputs:
    """Step until nothing is left to do."""
    outputs = outputs or Outputs()
    for _ in range(max_steps):
        if not engine.has_work:
            return outputs
        outputs.add(engine.step().events)
    raise AssertionError(f"still working after {max_steps} steps")
