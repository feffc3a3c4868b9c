"""Packed weights lie side by side, each a copy of its own."""

from __future__ import annotations

import torch

from paceline.model.fast import weight_memory
from paceline.model.fast.weight_memory import WeightMemory


def test_weights_are_copied_side_by_side() -> None:
    memory = WeightMemory()
    first, second = (torch.randn(3, size).bfloat16() for size in (5, 64))
    kept = [memory.keep(weight.t()) for weight in (first, second)]
    assert torch.equal(kept[0], first.t())
    assert torch.equal(kept[1], second.t())
    assert all(each.is_contiguous() and each.data_ptr() % 64 == 0 for each in kept)
    assert kept[1].data_ptr() - kept[0].data_ptr() == 64  # 30 bytes, then the next cache line
    first.zero_()
    assert kept[0].any()


def test_what_is_longer_than_a_chunk_has_one_of_its_own() -> None:
    memory = WeightMemory()
    small = memory.keep(torch.ones(4))
    large = memory.keep(torch.ones(weight_memory._CHUNK_BYTES // 4 + 1))
    after = memory.keep(torch.full((4,), 3.0))
    assert float(small.sum()) == 4.0
    assert bool((large == 1.0).all())
    assert float(after.sum()) == 12.0


def test_nothing_is_kept_of_nothing() -> None:
    assert WeightMemory().keep(torch.empty(0, 4)).shape == (0, 4)
