"""Acceptance by depth from sampled answers against exact enumeration."""

from __future__ import annotations

import itertools

import pytest
import torch

from paceline.training.batches import Batch
from paceline.training.evaluation import Acceptance, _accumulate, _Sums
from paceline.training.loss import TargetRows
from paceline.training.unroll import PackedRows


def _batch(lengths: list[int], answer: torch.Tensor) -> Batch:
    count = sum(lengths)
    empty = torch.zeros(count, dtype=torch.long)
    return Batch(
        PackedRows(empty, torch.zeros(count, 1, 1), empty, lengths),
        torch.arange(count),
        TargetRows(torch.zeros(count, 1), empty),
        answer,
        empty,
        (1.0,) * len(lengths),
    )


def test_weighted_answers_give_the_survival_of_the_token_rule() -> None:
    """Every answer of three tokens, as often as the target writes it, against the probability that
    a draft of a given depth is accepted whole, summed over all drafts."""
    torch.manual_seed(0)
    size, depth = 3, 3
    target = {
        prefix: torch.randn(size).mul(1.5).softmax(-1)
        for n in range(depth)
        for prefix in itertools.product(range(size), repeat=n)
    }
    draft = {prefix: torch.randn(size).mul(1.5).softmax(-1) for prefix in target}

    def overlap(prefix: tuple[int, ...]) -> float:
        return float(torch.minimum(target[prefix], draft[prefix]).sum())

    exact = []
    for wanted in range(1, depth + 1):
        total = 0.0
        for drafted in itertools.product(range(size), repeat=wanted):
            chance = 1.0
            for position, token in enumerate(drafted):
                p = float(target[drafted[:position]][token])
                q = float(draft[drafted[:position]][token])
                chance *= q * min(1.0, p / q)
            total += chance
        exact.append(total)

    estimated = [0.0] * depth
    for answer in itertools.product(range(size), repeat=depth):
        prefixes = [answer[:n] for n in range(depth)]
        written = 1.0
        for prefix, token in zip(prefixes, answer, strict=True):
            written *= float(target[prefix][token])
        rows = []
        for position, (prefix, token) in enumerate(zip(prefixes, answer, strict=True)):
            value, weight = torch.zeros(depth), torch.zeros(depth)
            value[position] = overlap(prefix)
            ratio = float(draft[prefix][token] / target[prefix][token])
            weight[position] = min(1.0, ratio)
            rows.append((value, weight))
        sums = _Sums(depth)
        only_first = torch.tensor([True, False, False])
        everywhere = torch.ones(depth, dtype=torch.bool)
        _accumulate(sums, _batch([depth], everywhere), only_first, rows)
        for index in range(depth):
            estimated[index] += written * float(sums.survival[index])
    assert estimated == pytest.approx(exact, abs=1e-6)


def test_chains_end_with_their_sequence_and_start_in_answers() -> None:
    answer = torch.tensor([False, True, True, True, True])
    ones = [(torch.ones(5), torch.ones(5))] * 3
    sums = _Sums(3)
    _accumulate(sums, _batch([3, 2], answer), torch.ones(5, dtype=torch.bool), ones)
    assert sums.positions.tolist() == [4, 2, 0]
    result = sums.result()
    assert result is not None
    assert result.survival == (1.0, 1.0, 0.0)


def test_acceptance_by_depth_is_conditional() -> None:
    acceptance = Acceptance((0.5, 0.2, 0.1), 10)
    assert acceptance.by_depth == pytest.approx((0.5, 0.4, 0.5))
    assert Acceptance((0.0, 0.0), 1).by_depth == (0.0, 0.0)
