"""Unrolled training rows against a module driven token by token over a cache."""

from __future__ import annotations

import pytest
import torch

from paceline.training.unroll import PackedRows, rows_with_depth, unroll
from tests.training.modules import HIDDEN, VOCABULARY, Driver, tiny_module


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("features", [(0, 2, -1), (-1,), ()])
def test_every_depth_is_what_a_draft_of_that_depth_computes(
    layers: int, features: tuple[int, ...]
) -> None:
    module = tiny_module(1, features=features, layers=layers)
    lengths, depth = (6, 9), 4
    ids = [torch.randint(0, VOCABULARY, (length,)) for length in lengths]
    states = [torch.randn(length, len(features), HIDDEN, dtype=torch.float64) for length in lengths]
    batch = PackedRows(
        token_ids=torch.cat(ids),
        features=torch.cat([torch.cat((torch.zeros_like(s[:1]), s[:-1])) for s in states]),
        positions=torch.cat([torch.arange(length) for length in lengths]),
        lengths=lengths,
    )
    with torch.no_grad():
        unrolled = unroll(module, batch, depth)
        offset = 0
        for sequence, state in zip(ids, states, strict=True):
            driver = Driver(module)
            for committed in range(1, len(sequence) + 1):
                hidden = driver.extend(sequence[:committed], state)
                row = offset + committed - 1
                torch.testing.assert_close(unrolled[0][row], hidden)
                for further in range(1, min(depth, len(sequence) - committed + 1)):
                    position = committed + further - 1
                    hidden = driver.draft(hidden, sequence[position], position)
                    torch.testing.assert_close(unrolled[further][row + further], hidden)
            offset += len(sequence)


def test_rows_with_depth_leaves_out_what_has_no_draft_behind_it() -> None:
    assert rows_with_depth([2, 4], 3).tolist() == [False, False, False, False, True, True]


def test_true_rows_do_not_depend_on_how_they_were_chunked() -> None:
    module = tiny_module(2)
    ids = torch.randint(0, VOCABULARY, (8,))
    features = torch.randn(8, 3, HIDDEN, dtype=torch.float64)
    with torch.no_grad():
        at_once = Driver(module).extend(ids, features)
        chunked = Driver(module)
        for end in (3, 4, 8):
            last = chunked.extend(ids[:end], features)
    torch.testing.assert_close(at_once, last)


def test_folded_tokens_are_the_same_input() -> None:
    module = tiny_module(3)
    ids = torch.randint(0, VOCABULARY, (5,))
    with torch.no_grad():
        before = module.embed(ids)
        module.fold_tokens()
        torch.testing.assert_close(module.embed(ids), before)
    assert set(module.state_dict()) == set(tiny_module(3).state_dict())
