"""Passes of one shape: bit for bit the same logits for a token, whatever it is computed with."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.model.attention import ATTENTION_NAME
from paceline.model.batch import Segment, pack
from paceline.model.fixed_rows import FixedRowsRunner, slowdown
from paceline.model.runner import ModelRunner
from tests.tiny_models import tiny_llama

BLOCK_SIZE, NUM_BLOCKS = 4, 64


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def runners(request: pytest.FixtureRequest) -> tuple[ModelRunner, FixedRowsRunner]:
    model = tiny_llama(0).to(request.param)
    model.set_attn_implementation(ATTENTION_NAME)
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    shape = KVShape(((config.num_key_value_heads, width),) * config.num_hidden_layers, model.dtype)
    kv = KVTensors(shape, NUM_BLOCKS + 1, BLOCK_SIZE, model.device)
    plain = ModelRunner(model, kv.layers)
    return plain, FixedRowsRunner(plain, num_rows=8, scratch_block=NUM_BLOCKS)


def tokens(seed: int, count: int) -> list[int]:
    return [int(t) for t in np.random.default_rng(seed).integers(0, 64, count)]


def test_logits_do_not_depend_on_chunks_and_neighbours(
    runners: tuple[ModelRunner, FixedRowsRunner],
) -> None:
    plain, fixed = runners
    ids = tokens(0, 30)
    table, other = list(range(10, 20)), list(range(30, 50))
    alone = fixed.forward(pack([Segment(ids, 0, table, 30)], BLOCK_SIZE)).logits
    pieces = []
    start = 0
    for size in (1, 7, 2, 5, 12, 3):
        neighbours = Segment(tokens(size, 40), 0, other, size)
        mine = Segment(ids[start : start + size], start, table, size)
        order = [neighbours, mine] if size % 2 else [mine, neighbours]
        made = fixed.forward(pack(order, BLOCK_SIZE)).logits
        pieces.append(made[size:] if size % 2 else made[:size])
        start += size
    assert torch.equal(torch.cat(pieces), alone)
    near = plain.forward(pack([Segment(ids, 0, table, 30)], BLOCK_SIZE)).logits
    assert torch.allclose(alone.float(), near.float(), atol=0.2, rtol=0.05)


def test_prompts_without_logits_fill_the_memory(
    runners: tuple[ModelRunner, FixedRowsRunner],
) -> None:
    _, fixed = runners
    ids = tokens(1, 20)
    table = list(range(5))
    whole = fixed.forward(pack([Segment(ids, 0, table, 1)], BLOCK_SIZE)).logits
    other = list(range(5, 10))
    assert fixed.forward(pack([Segment(ids[:19], 0, other, 0)], BLOCK_SIZE)).logits.shape[0] == 0
    last = fixed.forward(pack([Segment(ids[19:], 19, other, 1)], BLOCK_SIZE)).logits
    assert torch.equal(last, whole)


def test_the_price_is_measured(runners: tuple[ModelRunner, FixedRowsRunner]) -> None:
    plain, fixed = runners
    assert slowdown(plain, fixed, scratch_block=NUM_BLOCKS, block_size=BLOCK_SIZE) > 0
