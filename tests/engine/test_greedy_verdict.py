"""Greedy entries are decided by comparison alone; the outcome is that of the general way."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from paceline.core.request import SamplingParams
from paceline.engine.decisions import Decision, DrawnVerdict, GreedyVerdict
from paceline.sampling.acceptance import Drafted
from paceline.sampling.verification import NoiseKeys, verify
from paceline.sampling.warping import highest

GREEDY = SamplingParams(temperature=0.0)
Draft = tuple[int, ...]


def _both_ways(
    logits: torch.Tensor, drafts: list[Draft], certain: list[int]
) -> tuple[list[Decision], list[Decision]]:
    counts = np.array([len(draft) for draft in drafts], dtype=np.int64)
    first_rows = np.cumsum(counts + 1) - counts - 1
    depth = int(counts.max())
    padded = [[*draft, *[0] * (depth - len(draft))] for draft in drafts]
    shape = (len(drafts), depth)
    drafted = Drafted(
        torch.tensor(padded, dtype=torch.int64).view(shape),
        counts,
        first_rows,
        None,
        np.full(shape, -1, dtype=np.int64),
    )
    numbers = np.zeros(len(drafts), dtype=np.int64)
    keys = NoiseKeys(numbers.astype(np.uint64), numbers, numbers)
    acceptance, is_usable = verify(logits, drafted, [GREEDY] * len(drafts), keys)
    nobody = (None,) * len(drafts)
    general = DrawnVerdict(acceptance, is_usable, tuple(counts), tuple(certain), nobody, None)
    greedy = GreedyVerdict(*highest(logits), tuple(drafts), tuple(first_rows), tuple(certain))
    return general.read(), greedy.read()


def _case(rng: random.Random) -> tuple[torch.Tensor, list[Draft], list[int]]:
    """Few different logits, so that there are ties, and drafts that are often right."""
    drafts, certain, rows = [], [], []
    for _ in range(rng.randint(1, 6)):
        is_certain = rng.random() < 0.2
        depth = 0 if is_certain else rng.randint(0, 5)
        mine = torch.tensor([[float(rng.randrange(4)) for _ in range(9)] for _ in range(depth + 1)])
        best = mine.argmax(-1).tolist()
        drafts.append(
            tuple(best[i] if rng.random() < 0.8 else rng.randrange(9) for i in range(depth))
        )
        certain.append(rng.randint(1, 3) if is_certain else 0)
        rows.append(mine)
    return torch.cat(rows), drafts, certain


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(40))
def test_comparing_decides_what_verification_does(seed: int, dtype: torch.dtype) -> None:
    logits, drafts, certain = _case(random.Random(seed))
    general, greedy = _both_ways(logits.to(dtype), drafts, certain)
    assert greedy == general


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_row_without_a_usable_peak_spoils_its_sequence_alone(value: float) -> None:
    logits = torch.zeros(5, 4)
    logits[1] = value  # of the first sequence, behind its drafted token
    general, greedy = _both_ways(logits, [(0,), (), (0,)], [0, 0, 0])
    usable = [decision.is_usable for decision in greedy]
    assert usable == [False, True, True]
    assert usable == [decision.is_usable for decision in general]
    assert greedy[1:] == general[1:]
