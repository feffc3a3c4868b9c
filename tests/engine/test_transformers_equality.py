"""Greedy output of the engine equals what transformers gives for the same weights, in float32.

Many requests at once, with different prompts, lengths and arrivals, under everything that moves K/V
about: prefix hits, preemption in a tiny pool, chunked prefill, and each drafter.
"""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.core.config import Dtype
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams
from paceline.engine.assembly import ModelPart, assemble
from paceline.model.attention import ATTENTION_NAME
from paceline.model.default_weights import ensure_default_target
from paceline.model.loading import load_target
from paceline.model.runner import ModelRunner
from paceline.model.tokenizer import TextCodec
from tests.reference_decoding import compare_greedy
from tests.tiny_models import Outputs, run_to_end, tiny_engine, tiny_llama

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.engine.engine import Engine

GREEDY = SamplingParams(temperature=0)


def serve_all(
    engine: Engine, prompts: list[tuple[int, ...]], generator: random.Random, longest: int
) -> tuple[dict[str, Request], Outputs]:
    """Submit with random lengths and joins, and step to the end."""
    requests: dict[str, Request] = {}
    outputs = Outputs()
    for index, prompt in enumerate(prompts):
        request = Request(f"r{index}", prompt, generator.randrange(longest // 4, longest), GREEDY)
        requests[request.request_id] = request
        engine.submit(request)
        for _ in range(generator.randrange(3)):
            outputs.add(engine.step().events)
    return requests, run_to_end(engine, outputs)


def assert_equal(
    reference: PreTrainedModel, requests: dict[str, Request], outputs: Outputs
) -> tuple[int, int]:
    """Every answer is the reference's, up to ties; returns tokens and ties in all."""
    num_tokens = num_ties = 0
    for request_id, request in requests.items():
        assert outputs.finished[request_id].error is None
        tokens = outputs.tokens[request_id]
        assert len(tokens) == request.max_new_tokens
        comparison = compare_greedy(reference, request.prompt_ids, tokens)
        assert comparison.wrong == (), request_id
        num_tokens += comparison.num_tokens
        num_ties += comparison.num_ties
    assert num_ties * 500 <= num_tokens, f"{num_ties} ties in {num_tokens} tokens"
    return num_tokens, num_ties


SITUATIONS: dict[str, dict[str, Any]] = {
    "model drafter": {"drafter": DrafterKind.MODEL},
    "n-gram": {"drafter": DrafterKind.NGRAM},
    "auto": {"drafter": DrafterKind.AUTO},
    "no drafter": {"drafter": DrafterKind.NONE},
    "tiny pool": {"num_blocks": 48, "drafter": DrafterKind.MODEL},
    "tiny budget": {"token_budget": 16, "drafter": DrafterKind.MODEL},
    "large blocks": {"block_size": 32, "num_blocks": 40},
}


@pytest.mark.parametrize("situation", SITUATIONS)
def test_tiny_llama(situation: str) -> None:
    target, draft = tiny_llama(0), tiny_llama(1)
    reference = copy.deepcopy(target)
    engine = tiny_engine(target, draft, **SITUATIONS[situation])
    generator = random.Random(situation)
    shared = [tuple(generator.randrange(64) for _ in range(40)) for _ in range(2)]
    prompts = [
        generator.choice(shared)[: generator.randrange(1, 40)]
        + tuple(generator.randrange(64) for _ in range(generator.randrange(1, 9)))
        for _ in range(16)
    ]
    requests, outputs = serve_all(engine, prompts, generator, 48)
    assert_equal(reference, requests, outputs)
    summaries = [finish.summary for finish in outputs.finished.values()]
    if situation == "tiny pool":
        assert any(o > 0 for o in [f.usage.num_cached for f in outputs.finished.values()])
    if situation in ("model drafter", "n-gram", "auto"):
        assert sum(summary.num_drafted for summary in summaries) > 50


SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
ARCHITECTURES: dict[str, Any] = {
    "mistral, sliding window": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=7)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "gemma3, mixed windows": lambda: Gemma3ForCausalLM(
        Gemma3TextConfig(**SIZES, sliding_window=6, query_pre_attn_scalar=8)
    ),
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64,
            n_embd=32,
            n_layer=3,
            n_head=4,
            n_positions=256,
            initializer_range=0.3,
            bos_token_id=None,
            eos_token_id=None,
        )
    ),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(name: str) -> None:
    torch.manual_seed(0)
    target = ARCHITECTURES[name]()
    target.train(mode=False)
    if name == "gpt2":
        target.config.num_key_value_heads = target.config.n_head
    reference = copy.deepcopy(target)
    reference.set_attn_implementation("eager")
    engine = tiny_engine(target, drafter=DrafterKind.NGRAM, token_budget=32)
    generator = random.Random(name)
    prompts = [
        tuple(generator.randrange(64) for _ in range(generator.randrange(1, 40))) for _ in range(10)
    ]
    requests, outputs = serve_all(engine, prompts, generator, 40)
    assert_equal(reference, requests, outputs)


def smollm2_part(model: PreTrainedModel, num_blocks: int, block_size: int) -> ModelPart:
    config = model.config
    shape = KVShape(((config.num_key_value_heads, 64),) * config.num_hidden_layers, model.dtype)
    kv = KVTensors(shape, num_blocks, block_size, model.device)
    return ModelPart(ModelRunner(model, kv.layers), config.max_position_embeddings, kv.scrub)


TOPICS = ["tides", "a heap", "bread", "gravity", "chess", "a sonnet", "TCP", "volcanoes"]


@pytest.mark.slow
@pytest.mark.weights
@pytest.mark.timeout(900)
@pytest.mark.parametrize("situation", ["model", "ngram", "tiny pool", "tiny budget"])
def test_smollm2_with_32_requests(situation: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ensure_default_target()
    codec = TextCodec.load(folder)
    target = load_target(str(folder), dtype=Dtype.FLOAT32)
    reference = load_target(str(folder), dtype=Dtype.FLOAT32, attn_implementation="sdpa")
    num_blocks = 90 if situation == "tiny pool" else 600
    parts = [smollm2_part(target, num_blocks, 16) for _ in range(2)]
    assert target.config._attn_implementation == ATTENTION_NAME
    engine = assemble(
        target=parts[0],
        draft=parts[1],
        drafter=DrafterKind.NGRAM if situation == "ngram" else DrafterKind.MODEL,
        limits=EngineLimits(2048, num_blocks, 16, 32, 100, codec.vocabulary_size),
        text_stream=codec.detokenizer,
        token_budget=48 if situation == "tiny budget" else 256,
        num_speculative_tokens=4,
    )
    generator = random.Random(situation)
    prompts = []
    for index in range(32):
        topic = TOPICS[index % len(TOPICS)]
        text = f"Tell me about {topic}. " * generator.randrange(1, 5)
        chat = (
            f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{text}"
            "<|im_end|>\n<|im_start|>assistant\n"
        )
        prompts.append(tuple(codec.encode(chat, allow_special=True)))
    requests, outputs = serve_all(engine, prompts, generator, 40)
    num_tokens, num_ties = assert_equal(reference, requests, outputs)
    finishes = outputs.finished.values()
    cached = sum(finish.usage.num_cached for finish in finishes)
    accepted = sum(finish.summary.num_accepted for finish in finishes)
    with capsys.disabled():
        print(  # noqa: T201 - the figure is part of what this test shows
            f"\n{situation}: {num_tokens} tokens, {num_ties} ties, {cached} prompt tokens from the "
            f"prefix cache, {accepted} drafted tokens accepted"
        )
    assert cached > 0
    assert accepted > 0
