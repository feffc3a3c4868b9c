"""Drafts that are accepted while they are the target's own tokens: in one pass, and with torch."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
import torch

from paceline.sampling import native
from paceline.sampling.acceptance import Acceptance, Drafted, NextSource, matching_acceptance


def drafted(ids: list[list[int]], depth: int) -> Drafted:
    """Sequences with these drafts, padded with zeros; their rows lie one after the other."""
    counts = np.array([len(each) for each in ids])
    padded = [[*each, *[0] * (depth - len(each))] for each in ids]
    return Drafted(
        draft_ids=torch.tensor(padded, dtype=torch.int64).view(len(ids), depth),
        num_drafted=counts,
        first_rows=np.cumsum(counts + 1) - counts - 1,
        rows=None,
        row_index=np.full((len(ids), depth), -1),
    )


@pytest.fixture(params=[True, False], ids=["native", "torch"])
def is_native(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    if request.param and native.highest_of(torch.zeros(1, 4)) is None:
        pytest.skip("no compiler")
    if not request.param:
        monkeypatch.setattr(native, "_library", lambda: None)
    return bool(request.param)


@pytest.mark.usefixtures("is_native")
def test_a_round_of_every_kind() -> None:
    rounds = drafted([[], [7, 8], [7, 9, 8], [5]], 3)
    samples = torch.tensor([4, 7, 8, 9, 7, 8, 8, 8, 6, 5])
    outcome = matching_acceptance(samples, rounds, None)
    assert outcome.num_accepted.tolist() == [0, 2, 1, 0]
    assert outcome.next_token.tolist() == [4, 9, 8, 6]
    assert outcome.source.tolist() == [
        NextSource.PLAIN, NextSource.BONUS, NextSource.RESIDUAL, NextSource.RESIDUAL,
    ]  # fmt: skip
    assert outcome.num_examined.tolist() == [0, 2, 2, 1]
    assert outcome.num_passed.tolist() == [0, 2, 1, 0]
    assert outcome.survival.tolist() == [[0, 0, 0], [1, 1, 0], [1, 0, 0], [0, 0, 0]]
    assert outcome.next_prob.tolist() == [1, 1, 1, 1]


@pytest.mark.usefixtures("is_native")
def test_without_any_draft() -> None:
    outcome = matching_acceptance(torch.tensor([4, 9]), drafted([[], []], 0), None)
    assert outcome.next_token.tolist() == [4, 9]
    assert outcome.source.tolist() == [NextSource.PLAIN] * 2
    assert outcome.survival.shape == (2, 0)


def test_both_ways_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    if native.highest_of(torch.zeros(1, 4)) is None:
        pytest.skip("no compiler")
    rng = np.random.default_rng(3)
    for _ in range(200):
        depth = int(rng.integers(0, 5))
        ids = [rng.integers(0, 3, rng.integers(0, depth + 1)).tolist() for _ in range(6)]
        rounds = drafted(ids, depth)
        samples = torch.from_numpy(rng.integers(0, 3, int(rounds.num_drafted.sum()) + 6))
        outcomes: list[Acceptance] = []
        for library in (native._library, lambda: None):
            monkeypatch.setattr(native, "_library", library)
            outcomes.append(matching_acceptance(samples, rounds, None))
            monkeypatch.undo()
        for field in fields(Acceptance):
            first, second = (getattr(outcome, field.name) for outcome in outcomes)
            assert torch.equal(first, second), field.name
