"""Masking rows in one pass of our own, and the same with torch's operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.core.native_library import build_library
from paceline.sampling import grammar_masks
from paceline.sampling.constraints import AllowedTokens
from paceline.sampling.grammar_masks import masked


def _drawn(num_rows: int, width: int, seed: int) -> tuple[torch.Tensor, AllowedTokens]:
    """Random logits, and masks for some of the rows; one mask is full and one is empty."""
    dice = np.random.default_rng(seed)
    logits = torch.from_numpy(dice.normal(size=(num_rows, width)).astype(np.float32))
    rows = dice.permutation(num_rows)[: dice.integers(1, num_rows + 1)]
    bits = dice.integers(-(2**31), 2**31, size=(len(rows), -(-width // 32)), dtype=np.int64)
    bits[0] = -1
    bits[-1] = 0
    return logits, AllowedTokens(rows.astype(np.int64), bits.astype(np.int32))


def _expected(logits: torch.Tensor, allowed: AllowedTokens, ids: list[int]) -> torch.Tensor:
    """Token by token."""
    expected = logits.to(torch.float32, copy=True)
    for row, bits in zip(allowed.rows, allowed.bits.view(np.uint32), strict=True):
        for column, token in enumerate(ids):
            word = int(bits[token // 32]) if token // 32 < len(bits) else 0
            if not word >> token % 32 & 1:
                expected[row, column] = float("-inf")
    return expected


@pytest.mark.parametrize("is_native", [True, False], ids=["native", "torch"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@settings(max_examples=40, deadline=None)
@given(num_rows=st.integers(1, 5), width=st.integers(1, 140), seed=st.integers(0, 999))
def test_each_token_is_masked_as_its_bit_says(
    is_native: bool, dtype: torch.dtype, num_rows: int, width: int, seed: int
) -> None:
    logits, allowed = _drawn(num_rows, width, seed)
    # Columns of a wider tensor: rows need not follow each other at once.
    padded = torch.nn.functional.pad(logits.to(dtype), (0, 7))[:, :width]
    with pytest.MonkeyPatch.context() as patch:
        if not is_native:
            patch.setattr(grammar_masks, "_library", lambda: None)
        elif grammar_masks._library() is None:
            pytest.skip("no C++ compiler")
        made = masked(padded, allowed)
        assert made.dtype is torch.float32
        assert torch.equal(made, _expected(padded, allowed, list(range(width))))
        # Some of the tokens only, as a draft with fewer of them has, and one beyond all bits.
        dice = np.random.default_rng(seed)
        ids = sorted({*dice.integers(0, width, size=9).tolist(), width + 500})
        some = logits.to(dtype)[:, : min(width, len(ids))]
        ids = ids[: some.shape[1]]
        made = masked(some, allowed, torch.tensor(ids))
        assert torch.equal(made, _expected(some, allowed, ids))
        # Fewer bits than tokens: what has none is not allowed.
        short = AllowedTokens(allowed.rows, allowed.bits[:, : (width // 2) // 32 + 1])
        made = masked(padded, short)
        assert torch.equal(made, _expected(padded, short, list(range(width))))


def test_the_library_is_built_where_there_is_a_compiler() -> None:
    assert (grammar_masks._library() is None) == (build_library(grammar_masks._SOURCE) is None)
