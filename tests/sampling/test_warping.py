"""Warping against the reference, on small rows and on rows long enough for candidate search."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.core.request import SamplingParams
from paceline.sampling import native
from paceline.sampling.candidates import candidates
from paceline.sampling.logprobs import row_logprobs
from paceline.sampling.warping import WarpParameters, argmax_lowest, warp
from tests.reference import warped

CPU = torch.device("cpu")
PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.3),
    SamplingParams(temperature=3.0),
    SamplingParams(top_k=1),
    SamplingParams(top_k=40),
    SamplingParams(top_k=10**6),
    SamplingParams(top_p=0.5),
    SamplingParams(top_p=0.999),
    SamplingParams(min_p=0.02),
    SamplingParams(min_p=1.0),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    SamplingParams(temperature=5.0, top_p=0.95),
    SamplingParams(temperature=1e-35, top_p=0.9),
]


def rows(kind: str, width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    logits = torch.randn(6, width, generator=generator) * 3
    if kind == "tied":
        # As the logits of a bfloat16 model: many equal values, at every cut.
        return logits.to(torch.bfloat16)
    if kind == "masked":
        logits[torch.rand(6, width, generator=generator) < 0.7] = float("-inf")
        logits[:, 1] = 0.5
    return logits


@pytest.mark.parametrize("params", PARAMS, ids=str)
@pytest.mark.parametrize("kind", ["smooth", "tied", "masked"])
@pytest.mark.parametrize("width", [7, 300, 20011])
def test_rows_follow_the_reference(params: SamplingParams, kind: str, width: int) -> None:
    logits = rows(kind, width)
    made = warp(logits, WarpParameters.of([params] * len(logits), CPU)).dense(width)
    for row, law in zip(logits.double().numpy(), made.double().numpy(), strict=True):
        expected = warped(row, params.temperature, params.top_k, params.top_p, params.min_p)
        assert np.abs(law - expected).sum() < 3e-5
        assert law.sum() == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [1, 7, 255, 256, 257, 1003])
def test_the_highest_logit_and_where_it_is(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    logits = torch.randn(40, width, generator=generator).to(dtype)
    logits[0], logits[1] = float("-inf"), 2.0
    logits[2, -1] = 9.0
    logits[3, width // 2 :] = 9.0
    logits[4, 0] = float("inf")
    found = native.highest_of(logits)
    if found is None:
        pytest.skip("no compiler")
    places, peaks = found
    assert torch.equal(peaks, logits.amax(-1).float())
    first = [row.tolist().index(peak) for row, peak in zip(logits, peaks.tolist(), strict=True)]
    assert places.tolist() == first
    assert argmax_lowest(logits).tolist() == first
    for broken in {0, width // 2, width - 1}:
        spoilt = logits.clone()
        spoilt[:, broken] = float("nan")
        found = native.highest_of(spoilt)
        assert found is not None
        assert found[1].isnan().all()
        assert ((found[0] >= 0) & (found[0] < width)).all()


@pytest.mark.parametrize(
    "mixed",
    [
        [SamplingParams(temperature=t) for t in (0.2, 0.7, 1.0, 1.3, 2.0, 4.0)],
        [PARAMS[index] for index in (4, 3, 10, 5, 4, 10)],
        [PARAMS[index] for index in (6, 7, 8, 11, 12, 9)],
    ],
    ids=["whole", "by rank", "by likelihood"],
)
def test_a_row_does_not_depend_on_the_rows_beside_it(mixed: list[SamplingParams]) -> None:
    """Different parameters of one kind side by side, alone and together, bit for bit."""
    logits = rows("tied", 20011)
    together = warp(logits, WarpParameters.of(mixed, CPU)).dense(20011)
    for index, params in enumerate(mixed):
        alone = warp(logits[index : index + 1], WarpParameters.of([params], CPU)).dense(20011)
        assert torch.equal(alone[0], together[index])


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_without_a_compiler(params: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's operations give the same law as our own passes."""
    logits = rows("tied", 20011)
    parameters = WarpParameters.of([params] * len(logits), CPU)
    ours = warp(logits, parameters).dense(20011)
    monkeypatch.setattr(native, "_library", lambda: None)
    theirs = warp(logits, parameters).dense(20011)
    assert (ours - theirs).abs().sum(-1).max() < 3e-5


@pytest.mark.parametrize("count", [1, 5, 96, 1000, 30000])
@pytest.mark.parametrize("kind", ["smooth", "tied", "masked"])
def test_candidates_are_exactly_what_is_above_the_bound(count: int, kind: str) -> None:
    logits = rows(kind, 20011)
    found = candidates(logits, count)
    for row, listed, number, bound in zip(
        logits.float(), found.ids, found.num_listed.tolist(), found.bound, strict=True
    ):
        expected = (row > bound).nonzero()[:, 0]
        assert torch.equal(listed[:number], expected)
        if kind == "smooth":
            assert number >= min(count, len(row))


@pytest.mark.parametrize("has_compiler", [True, False])
def test_the_highest_logit_of_lowest_id_wins(
    has_compiler: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_compiler:
        monkeypatch.setattr(native, "_library", lambda: None)
    wide = rows("tied", 20011)
    first = [int((row == row.max()).nonzero()[0]) for row in wide]
    assert argmax_lowest(wide).tolist() == first
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [-5.0, -7.0, -5.0]])
    assert argmax_lowest(logits).tolist() == [1, 0, 0]
    assert argmax_lowest(logits.to(torch.bfloat16)).tolist() == [1, 0, 0]


@pytest.mark.parametrize("width", [7, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probabilities_are_those_before_warping(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(4, width, generator=generator) * 4).to(dtype)
    tokens = torch.tensor([0, 3, 5, 6])
    made = row_logprobs(logits, tokens, 5)
    expected = torch.log_softmax(logits.double(), -1)
    assert made.chosen.tolist() == pytest.approx(
        expected.gather(1, tokens[:, None])[:, 0].tolist(), abs=1e-4
    )
    best = expected.topk(5, -1)
    assert torch.allclose(made.top.double(), best.values, atol=1e-4)
    assert torch.allclose(expected.gather(1, made.top_ids), best.values)
    assert row_logprobs(logits, tokens, 0).top_ids.shape == (4, 0)
