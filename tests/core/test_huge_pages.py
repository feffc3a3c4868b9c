"""Memory in huge pages: zeros, aligned, and returned with the last reference."""

from __future__ import annotations

import ctypes
import gc
import weakref

import pytest
import torch

from paceline.core.huge_pages import HUGE_PAGE, zeroed_memory


def _address(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@pytest.mark.parametrize("num_bytes", [HUGE_PAGE, HUGE_PAGE + 1, 3 * HUGE_PAGE])
def test_memory_is_zero_writable_and_begins_at_a_huge_page(num_bytes: int) -> None:
    memory = zeroed_memory(num_bytes)
    assert len(memory) == num_bytes
    assert _address(memory) % HUGE_PAGE == 0
    assert not any(memory[:64])
    assert not any(memory[-64:])
    memory[num_bytes - 1] = 7
    assert memory[num_bytes - 1] == 7


@pytest.mark.parametrize("num_bytes", [0, 1, HUGE_PAGE - 1])
def test_less_than_a_page_is_memory_like_any_other(num_bytes: int) -> None:
    memory = zeroed_memory(num_bytes)
    assert len(memory) == num_bytes
    assert not any(memory)


def test_a_tensor_over_it_keeps_it_and_lets_it_go() -> None:
    memory = zeroed_memory(HUGE_PAGE)
    gone = weakref.ref(memory.obj)
    tensor = torch.frombuffer(memory, dtype=torch.float32)
    del memory
    gc.collect()
    tensor[-1] = 2.0
    assert float(tensor.sum()) == 2.0
    assert gone() is not None
    del tensor
    gc.collect()
    assert gone() is None
