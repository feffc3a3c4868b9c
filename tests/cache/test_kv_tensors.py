"""The K/V memory: layout, zeros, and there before it is needed."""

from __future__ import annotations

import resource
import sys

import psutil
import pytest
import torch

from paceline.cache.kv_tensors import KVShape, KVTensors

CPU = torch.device("cpu")


@pytest.mark.parametrize("width", [4, 64])
def test_layers_are_zero_and_heads_follow_one_another(width: int) -> None:
    shape = KVShape(((3, width), (2, width)), torch.bfloat16)
    memory = KVTensors(shape, 512, 16, CPU)
    assert [tuple(layer.shape) for layer in memory.layers] == [
        (2, 512, 16, 3, width),
        (2, 512, 16, 2, width),
    ]
    for layer in memory.layers:
        assert not layer.any()
        assert layer.stride()[-1] == 1
        assert layer[0, :, :, 0].is_contiguous()
    memory.layers[0][:, 3] = 1.0
    memory.layers[0][:, 4] = 1.0
    memory.scrub([3])
    assert not memory.layers[0][:, 3].any()
    assert bool(memory.layers[0][:, 4].all())


def test_no_blocks_take_no_memory() -> None:
    memory = KVTensors(KVShape(((3, 64),), torch.float32), 0, 16, CPU)
    assert tuple(memory.layers[0].shape) == (2, 0, 16, 3, 64)


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults as Linux does")
def test_it_is_there_before_a_step_needs_it() -> None:
    """Else the first steps would wait for the system, and others would take the memory first."""
    before = psutil.Process().memory_info().rss
    memory = KVTensors(KVShape(((4, 64),), torch.bfloat16), 4096, 16, CPU)
    num_bytes = 2 * 4096 * 16 * 4 * 64 * 2
    assert psutil.Process().memory_info().rss - before > 0.9 * num_bytes
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    memory.layers[0][:, ::64] = 1.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults < 100
