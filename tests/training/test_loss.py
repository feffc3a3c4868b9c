"""The fused loss against the formula written out, with gradients from autograd."""

from __future__ import annotations

import math

import pytest
import torch

from paceline.training import loss as loss_module
from paceline.training.loss import LossWeights, TargetRows, output_loss, target_probabilities

ROWS, HIDDEN, IDS, VOCABULARY = 11, 6, 9, 14


def _rows(seed: int) -> tuple[torch.Tensor, torch.Tensor, TargetRows]:
    torch.manual_seed(seed)
    hidden = torch.randn(ROWS, HIDDEN, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(IDS, HIDDEN, dtype=torch.float64, requires_grad=True)
    whole = torch.randn(ROWS, VOCABULARY, dtype=torch.float64).mul(2).softmax(-1)
    best = whole.argmax(-1)
    target = TargetRows(whole[:, :IDS], torch.where(best < IDS, best, -1))
    return hidden, weight, target


@pytest.mark.parametrize("mean_acceptance", [0.0, 0.4, 1.0])
def test_equals_the_formula_and_its_gradients(
    mean_acceptance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_ROWS", 4)
    hidden, weight, target = _rows(0)
    assert bool((target.greedy < 0).any()), "some argmax lies outside the draft's ids"
    weights = LossWeights(eta=3.0, greedy=0.2)
    parts = output_loss(hidden, weight, target, weights, mean_acceptance)

    log_q = (hidden @ weight.T).log_softmax(-1)
    alpha = torch.minimum(target.probabilities, log_q.exp()).sum(-1)
    mix = math.exp(-3.0 * mean_acceptance)
    present = target.greedy >= 0
    greedy = -log_q.gather(1, target.greedy.clamp_min(0)[:, None])[:, 0] * present
    divergence = -(target.probabilities * log_q).sum(-1)
    rows = mix * divergence + (1 - mix) * (1 - alpha) + 0.2 * greedy
    expected = rows.mean()

    torch.testing.assert_close(parts.loss.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(parts.acceptance.double(), alpha, rtol=1e-5, atol=1e-6)
    wanted = torch.autograd.grad(expected, (hidden, weight))
    got = torch.autograd.grad(parts.loss, (hidden, weight))
    torch.testing.assert_close(got[0], wanted[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(got[1], wanted[1], rtol=1e-4, atol=1e-6)


def test_mass_outside_the_trimmed_vocabulary_is_lost_acceptance() -> None:
    # The draft equals the target on its ids as well as it can: alpha is the covered mass.
    probabilities = torch.tensor([[0.3, 0.2, 0.1]])
    hidden = torch.log(probabilities / probabilities.sum())
    parts = output_loss(
        hidden, torch.eye(3), TargetRows(probabilities, torch.tensor([0])),
        LossWeights(), 0.5,
    )  # fmt: skip
    torch.testing.assert_close(parts.acceptance, torch.tensor([0.6]), rtol=0, atol=5e-3)
    assert parts.greedy_match.tolist() == [1.0]


def test_probabilities_come_back_from_what_is_stored() -> None:
    torch.manual_seed(2)
    hidden, head = torch.randn(5, HIDDEN), torch.randn(VOCABULARY, HIDDEN)
    logits = hidden @ head.T
    got = target_probabilities(hidden, head[:IDS], logits.logsumexp(-1))
    torch.testing.assert_close(got, logits.softmax(-1)[:, :IDS])
