"""Recorded passes: shapes and padding, and that a padded pass computes what a plain one does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from paceline.core.config import Device, Dtype, Facts, ServeConfig, resolve
from paceline.core.errors import ConfigError
from paceline.model.attention import ATTENTION_NAME
from paceline.model.batch import Segment, pack
from paceline.model.graphs import (
    QUERIES,
    ROWS,
    GraphRunner,
    Recording,
    Shape,
    pad,
    shape_for,
)
from paceline.model.runner import ForwardOutput, ModelRunner
from tests.model.attention_models import attention_model, kv_layers, plain_varlen

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from paceline.model.batch import PackedBatch

BLOCK_SIZE, NUM_BLOCKS = 4, 24
SCRATCH = NUM_BLOCKS - 1
# Prompts, then decodes and verifications side by side, then a pass that wants some logits only.
STEPS = (
    (Segment([3, 5, 8, 2, 9], 0, [4, 9], 1), Segment([7, 1], 0, [2], 2)),
    (Segment([6], 5, [4, 9], 1), Segment([4, 4, 1], 2, [2, 7], 3)),
    (Segment([11, 12, 13], 6, [4, 9, 1], 3), Segment([5], 5, [2, 7], 1)),
    (Segment([1, 2], 9, [4, 9, 1], 1), Segment([8], 6, [2, 7], 1)),
)


def _bounded_varlen(*args: Any, **options: Any) -> Tensor:
    """`plain_varlen`, which wants exact limits, for callers that give upper bounds."""
    query, key, value, bounds, none, max_query, max_context = args
    lengths = bounds.diff()
    assert int(lengths.max()) <= max_query
    assert int(options["seqused_k"].max()) <= max_context
    exact = int(lengths.max()), int(options["seqused_k"].max())
    return plain_varlen(query, key, value, bounds, none, *exact, **options)


def _again(run: Callable[[], ForwardOutput]) -> Recording:
    """What a graph does, by running the pass again into the memory of the first time."""
    output = run()

    def replay() -> None:
        new = run()
        output.logits.copy_(new.logits)
        if output.features is not None and new.features is not None:
            output.features.copy_(new.features)

    return Recording(replay, output)


def _runners(feature_layers: tuple[int, ...] = ()) -> tuple[ModelRunner, GraphRunner]:
    """Two over equal models, each with memory of its own."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        model = attention_model("llama")
        model.set_attn_implementation(ATTENTION_NAME)
        made.append(
            ModelRunner(
                model,
                kv_layers(model, NUM_BLOCKS, BLOCK_SIZE),
                feature_layers=feature_layers,
                kernel=_bounded_varlen,
            )
        )
    graphs = GraphRunner(
        made[1],
        scratch_block=SCRATCH,
        block_size=BLOCK_SIZE,
        max_model_len=20,
        most_rows=16,
        record=_again,
    )
    return made[0], graphs


def _batch(*lengths: int, num_logits: int = 1) -> PackedBatch:
    return pack([Segment([1] * length, 2, range(40), num_logits) for length in lengths], BLOCK_SIZE)


def test_a_batch_gets_the_smallest_shape_that_holds_it() -> None:
    assert shape_for(_batch(1), 512) == Shape(1, 1)
    assert shape_for(_batch(1, 1, 1), 512) == Shape(4, 1)
    assert shape_for(_batch(5, 5, 1), 512) == Shape(16, 8)
    assert shape_for(_batch(17), 512) == Shape(24, 32)
    assert shape_for(_batch(*[1] * 130), 512) == Shape(192, 1)


def test_what_is_not_recorded_runs_as_it_is() -> None:
    assert shape_for(_batch(33), 512) is None, "a prompt"
    assert shape_for(_batch(*[1] * 17), 16) is None, "too many rows"
    assert shape_for(_batch(*[1] * 9), 12) is None, "the next shape is larger than the largest"
    assert shape_for(_batch(1, num_logits=0), 16) is None, "no logits"


@pytest.mark.parametrize("lengths", [(1,), (3, 1), (5, 5, 5), (8, 1, 2, 1, 1, 1)])
def test_padding_is_sequences_of_its_own(lengths: tuple[int, ...]) -> None:
    batch = _batch(*lengths)
    shape = shape_for(batch, 512)
    assert shape is not None
    padded = pad(batch, shape, 40, SCRATCH)
    count, rows = len(lengths), shape.rows
    missing = rows - batch.num_tokens
    assert padded.num_tokens == rows == len(padded.query_lengths) == len(padded.context_lengths)
    assert padded.query_lengths.sum() == rows
    assert padded.block_tables.shape == (rows, 40)
    for name in ("token_ids", "positions", "slots"):
        values = getattr(padded, name)
        assert (values[: batch.num_tokens] == getattr(batch, name)).all()
        assert values.dtype == np.int64
    assert (padded.slots[batch.num_tokens :] // BLOCK_SIZE == SCRATCH).all()
    assert (padded.query_lengths[:count] == batch.query_lengths).all()
    assert (padded.query_lengths[count : count + missing] == 1).all()
    assert (padded.query_lengths[count + missing :] == 0).all()
    assert (padded.context_lengths[count + missing :] == 0).all()
    assert padded.query_lengths.dtype == padded.context_lengths.dtype == np.int32


@pytest.mark.parametrize("feature_layers", [(), (0, -1)])
def test_a_recorded_pass_computes_what_a_plain_one_does(feature_layers: tuple[int, ...]) -> None:
    plain, graphs = _runners(feature_layers)
    kept = []
    for step in STEPS:
        batch = pack(step, BLOCK_SIZE)
        want, got = plain.forward(batch), graphs.forward(batch)
        torch.testing.assert_close(got.logits, want.logits)
        if feature_layers:
            assert want.features is not None
            assert got.features is not None
            torch.testing.assert_close(got.features, want.features)
        kept.append((got.logits, want.logits))
    for got_logits, want_logits in kept:  # no later pass wrote over what was handed out
        torch.testing.assert_close(got_logits, want_logits)


def test_shapes_are_recorded_once() -> None:
    count = 0

    def record(run: Callable[[], ForwardOutput]) -> Recording:
        nonlocal count
        count += 1
        return _again(run)

    plain, _ = _runners()
    graphs = GraphRunner(
        plain,
        scratch_block=SCRATCH,
        block_size=BLOCK_SIZE,
        max_model_len=20,
        most_rows=16,
        record=record,
    )
    graphs.record_all()
    rows = [each for each in ROWS if each <= 16]
    assert count == 1 + (len(rows) - 1) * len(QUERIES)
    for step in STEPS:
        graphs.forward(pack(step, BLOCK_SIZE))
    assert count == 1 + (len(rows) - 1) * len(QUERIES)


def test_longer_sequences_than_were_recorded_run_as_they_are() -> None:
    plain, graphs = _runners()
    prompt = pack([Segment(list(range(20)), 0, [1, 2, 3, 4, 5], 1)], BLOCK_SIZE)
    longer = pack([Segment([7, 8], 20, [1, 2, 3, 4, 5, 6], 2)], BLOCK_SIZE)
    for batch in (prompt, longer):
        torch.testing.assert_close(graphs.forward(batch).logits, plain.forward(batch).logits)


def test_graphs_need_a_cuda_device() -> None:
    facts = Facts(
        has_cuda=True,
        has_fast_bfloat16=True,
        target_dtype=Dtype.BFLOAT16,
        target_max_len=64,
        has_draft_model=False,
        num_cores=2,
    )
    assert resolve(ServeConfig(cuda_graphs=True), facts).cuda_graphs
    with pytest.raises(ConfigError, match="cuda_graphs is on, but the device is cpu") as caught:
        resolve(ServeConfig(cuda_graphs=True, device=Device.CPU), facts)
    assert caught.value.field == "cuda_graphs"


@pytest.mark.parametrize("rows", [0, ROWS[-1] + 1])
def test_more_rows_than_there_are_shapes_for(rows: int) -> None:
    with pytest.raises(ValueError, match="most_rows"):
        GraphRunner(
            _runners()[0],
            scratch_block=SCRATCH,
            block_size=BLOCK_SIZE,
            max_model_len=20,
            most_rows=rows,
            record=_again,
        )


def test_without_a_kernel_there_is_nothing_to_record() -> None:
    model = attention_model("llama")
    runner = ModelRunner(model, kv_layers(model, NUM_BLOCKS, BLOCK_SIZE))
    graphs = GraphRunner(
        runner, scratch_block=SCRATCH, block_size=BLOCK_SIZE, max_model_len=20, record=_again
    )
    with pytest.raises(RuntimeError, match="kernel for paged attention"):
        graphs.forward(_batch(1))


@pytest.mark.gpu
def test_cuda_graphs_compute_what_plain_passes_do() -> None:
    device = torch.device("cuda")
    runners: list[ModelRunner] = []
    for _ in range(2):
        torch.manual_seed(0)
        model = attention_model("llama")
        torch.nn.Module.to(model, device, torch.bfloat16)
        model.set_attn_implementation(ATTENTION_NAME)
        layers = [layer.to(device, torch.bfloat16) for layer in kv_layers(model, NUM_BLOCKS, 16)]
        runners.append(ModelRunner(model, layers))
    graphs = GraphRunner(
        runners[1], scratch_block=SCRATCH, block_size=16, max_model_len=64, most_rows=16
    )
    graphs.record_all()
    for _ in range(2):
        for step in STEPS:
            batch = pack(step, 16)
            want, got = runners[0].forward(batch).logits, graphs.forward(batch).logits
            torch.testing.assert_close(got, want, rtol=3e-2, atol=3e-2)
