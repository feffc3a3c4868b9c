"""Sharing out memory: numbers that can be checked by hand."""

from __future__ import annotations

import dataclasses
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from paceline.core.config import Device, Dtype, EngineConfig
from paceline.core.errors import ConfigError
from paceline.core.request import DrafterKind
from paceline.model.memory_plan import Footprint, plan_memory, render_plan, show_bytes

CONFIG = EngineConfig(
    device=Device.CPU,
    dtype=Dtype.BFLOAT16,
    drafter=DrafterKind.AUTO,
    num_speculative_tokens=4,
    max_model_len=1000,
    max_sequences=2,
    token_budget=256,
    block_size=16,
    max_queued=8,
    threads=2,
    fast_path=True,
)
TARGET = Footprint(
    weight_bytes=10_000_000,
    kv_bytes_per_token=1000,
    vocabulary_rows=100,
    hidden_size=64,
    intermediate_size=128,
    num_bytes=2,
)
DRAFT = dataclasses.replace(TARGET, weight_bytes=1_000_000, kv_bytes_per_token=250)


def test_the_numbers_by_hand() -> None:
    plan = plan_memory(TARGET, DRAFT, CONFIG, available_bytes=10**9, kv_memory=2_000_000)
    # Largest step: 2 sequences x (4 drafted + 1) rows of 100 logits, 2 bytes each and 20 more while
    # warped; 256 rows of 8 x 64 + 3 x 128 activations of 2 bytes. The draft keeps 8 rows of float32
    # probabilities, warps 2 rows at a time, and has activations of its own.
    activations = 256 * (8 * 64 + 3 * 128) * 2
    assert plan.share_without_draft.buffer_bytes == 10 * 100 * 22 + activations
    assert plan.share.buffer_bytes == (
        10 * 100 * 22 + activations + 8 * 100 * 4 + 2 * 100 * 22 + activations
    )
    assert plan.share.weight_bytes == 11_000_000
    assert plan.share.kv_bytes_per_token == 1250
    assert plan.num_blocks == plan.share.num_blocks == 2_000_000 // (16 * 1250) == 100
    assert plan.share.num_tokens == 1600
    assert plan.share.num_sessions(100) == 100 // 7
    assert plan.share_without_draft.num_blocks == 2_000_000 // (16 * 1000) == 125


def test_copies_for_speed_are_weights_too() -> None:
    target = dataclasses.replace(TARGET, copy_bytes=400_000)
    draft = dataclasses.replace(DRAFT, copy_bytes=50_000)
    plan = plan_memory(target, draft, CONFIG, available_bytes=10**9, kv_memory=2_000_000)
    assert (plan.share.weight_bytes, plan.share.copy_bytes) == (11_450_000, 450_000)
    assert plan.share_without_draft.weight_bytes == 10_400_000
    text = _rendered(render_plan(plan, target_name="big", draft_name="small"))
    assert "of these, copies for speed" in text
    assert show_bytes(450_000) in text
    plain = plan_memory(TARGET, DRAFT, CONFIG, available_bytes=10**9, kv_memory=2_000_000)
    assert "copies" not in _rendered(render_plan(plain, target_name="a", draft_name="b"))


def test_automatic_memory_on_a_cpu() -> None:
    small = plan_memory(TARGET, None, CONFIG, available_bytes=15_000_000, kv_memory=None)
    left = 15_000_000 - 10_000_000 - small.share.buffer_bytes
    assert small.share.kv_bytes == left // 4
    useful = plan_memory(TARGET, None, CONFIG, available_bytes=10**9, kv_memory=None)
    assert useful.share.kv_bytes == 2 * 63 * 16 * 1000
    many = dataclasses.replace(CONFIG, max_sequences=4000)
    capped = plan_memory(TARGET, None, many, available_bytes=10**11, kv_memory=None)
    assert capped.share.kv_bytes == 2 << 30


def test_automatic_memory_on_cuda_takes_what_is_left() -> None:
    cuda = dataclasses.replace(CONFIG, device=Device.CUDA)
    plan = plan_memory(TARGET, None, cuda, available_bytes=10**9, kv_memory=None)
    assert plan.share.kv_bytes == pytest.approx(
        0.9 * 10**9 - 10_000_000 - plan.share.buffer_bytes, abs=1
    )


@pytest.mark.parametrize(
    ("available_bytes", "kv_memory", "words"),
    [
        (9_000_000, None, "9.5 MiB of weights"),
        (9_000_000, 1_000_000, "976.6 KiB of K/V"),
        (20_000_000, 15_000_000, "are free"),
        (10**9, 31_999, "two blocks, 31.2 KiB"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(
    available_bytes: int, kv_memory: int | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        plan_memory(TARGET, None, CONFIG, available_bytes=available_bytes, kv_memory=kv_memory)
    assert caught.value.field == "kv_memory"


@given(
    available=st.integers(0, 10**10),
    kv_memory=st.none() | st.integers(1, 10**9),
    with_draft=st.booleans(),
    device=st.sampled_from([Device.CPU, Device.CUDA]),
)
def test_a_plan_never_takes_more_than_there_is(
    available: int, kv_memory: int | None, with_draft: bool, device: Device
) -> None:
    config = dataclasses.replace(CONFIG, device=device)
    draft = DRAFT if with_draft else None
    try:
        plan = plan_memory(TARGET, draft, config, available_bytes=available, kv_memory=kv_memory)
    except ConfigError:
        return
    share = plan.share
    assert share.weight_bytes + share.buffer_bytes + share.kv_bytes <= available
    assert share.num_tokens * share.kv_bytes_per_token <= share.kv_bytes
    assert share.num_blocks >= 2
    assert plan.share_without_draft.num_blocks >= share.num_blocks


def test_the_table_shows_the_plan() -> None:
    plan = plan_memory(TARGET, DRAFT, CONFIG, available_bytes=10**9, kv_memory=2_000_000)
    text = _rendered(render_plan(plan, target_name="big", draft_name="small"))
    for words in ("big + small", "big alone", "1,600", "2,000", "sessions of 1,000 tokens"):
        assert words in text
    alone = _rendered(render_plan(plan, target_name="big", draft_name=None))
    assert "alone" not in alone


def _rendered(table: object) -> str:
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def test_sizes_for_people() -> None:
    shown = [show_bytes(count) for count in (0, 1023, 1536, 5 << 20, 3 << 30, 1 << 41)]
    assert shown == ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB"]
