"""The hybrid likelihood loss, fused with the output layer.

For a row with target distribution ``p`` and draft distribution ``q`` the chance that a token drawn
from ``q`` is accepted is ``alpha = sum_x min(p(x), q(x))``. The loss of a row is

    lambda * KL(p || q) + (1 - lambda) * (1 - alpha) + greedy_weight * CE(argmax p, q)

with ``lambda = exp(-eta * mean alpha)``, taken as a constant ("LK losses", arXiv 2602.23881): a
divergence that learns from anything while acceptance is low, and acceptance itself once it is not.
``p`` is the target's distribution over its whole vocabulary, seen on the draft's ids only, so what
the trimmed vocabulary can't reach counts as lost.

Logits over thousands of ids are the largest tensors of training by far. So they are made in
chunks, and each chunk's gradients are computed at once in closed form and folded into the gradients
of the hidden rows and of the output weight; nothing of size rows x ids outlives its chunk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_ROWS = 256


@dataclass(frozen=True, slots=True)
class TargetRows:
    """What the target said at ``N`` positions.

    ``probabilities [N, D]``: of the draft's ids, under the target's whole vocabulary, so a row sums
    to at most 1; ``greedy [N]``: the target's argmax as an index into the draft's ids, -1 where
    they lack it.
    """

    probabilities: Tensor
    greedy: Tensor

    def select(self, rows: Tensor | slice) -> TargetRows:
        """These rows alone."""
        return TargetRows(self.probabilities[rows], self.greedy[rows])


def target_probabilities(hidden: Tensor, weight: Tensor, log_normaliser: Tensor) -> Tensor:
    """``[N, D]`` from what is stored of the target.

    ``hidden [N, H]``: its states after the final norm; ``weight [D, H]``: its output rows for the
    draft's ids; ``log_normaliser [N]``: log-sum-exp over its *whole* vocabulary, float32. The
    result has the dtype of ``hidden``.
    """
    chunks = [
        (rows @ weight.T).float().sub_(normaliser[:, None]).exp_().to(hidden.dtype)
        for rows, normaliser in zip(
            torch.split(hidden, CHUNK_ROWS),
            torch.split(log_normaliser, CHUNK_ROWS),
            strict=True,
        )
    ]
    return torch.cat(chunks)


@dataclass(frozen=True, slots=True)
class LossWeights:
    """``eta`` steers from divergence to acceptance; ``greedy`` weighs the cross-entropy on the
    target's argmax, which is what traffic at temperature 0 needs."""

    eta: float = 3.0
    greedy: float = 0.1


@dataclass(frozen=True, slots=True)
class LossParts:
    """``loss`` (a scalar that carries gradients), and, without gradients, ``acceptance [N]``
    (alpha of every row) and ``greedy_match [N]`` (1 where both argmaxes agree)."""

    loss: Tensor
    acceptance: Tensor
    greedy_match: Tensor


class _FusedOutputLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        target: TargetRows,
        mix: float,
        greedy_weight: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        working = torch.bfloat16 if hidden.dtype != torch.float64 else torch.float64
        weight_low = weight.to(working)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight)
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        acceptance = torch.empty(len(hidden), device=hidden.device)
        match = torch.empty(len(hidden), device=hidden.device)
        for start in range(0, len(hidden), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            low = hidden[rows].to(working)
            losses, gradient, acceptance[rows], match[rows] = _rows_loss(
                low @ weight_low.T, target.select(rows), mix, greedy_weight
            )
            total += losses.sum() / len(hidden)
            gradient = gradient.div_(len(hidden)).to(working)
            grad_hidden[rows] = (gradient @ weight_low).to(hidden.dtype)
            grad_weight += gradient.T @ low
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(acceptance, match)
        return total, acceptance, match

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden * gradients[0], grad_weight * gradients[0], None, None, None


def _rows_loss(
    draft_logits: Tensor, target: TargetRows, mix: float, greedy_weight: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Per-row loss, its gradient by the draft's logits, acceptance and greedy agreement."""
    log_q = torch.log_softmax(draft_logits.float(), dim=-1)
    p = target.probabilities.float()
    q = log_q.exp()
    present = target.greedy >= 0
    column = target.greedy.clamp_min(0)[:, None]
    match = (log_q.argmax(-1) == target.greedy).to(torch.float32)
    acceptance = torch.minimum(p, q).sum(-1)
    covered = p.sum(-1)
    # KL up to the entropy of p, which does not depend on the draft.
    divergence = -(p * log_q).sum(-1)
    greedy_loss = -log_q.gather(1, column)[:, 0] * present
    losses = mix * divergence + (1 - mix) * (1 - acceptance) + greedy_weight * greedy_loss
    # By the logits: d KL = q * sum(p) - p; d alpha = q * (1[q < p] - sum_k q_k 1[q_k < p_k]);
    # d CE = q - onehot. All share the factor q, so it is applied once.
    below = q < p
    below_mass = (q * below).sum(-1)
    row_factor = mix * covered + (1 - mix) * below_mass + greedy_weight * present
    gradient = (row_factor[:, None] - (1 - mix) * below).mul_(q).sub_(p, alpha=mix)
    gradient.scatter_add_(1, column, (-greedy_weight * present.to(q.dtype))[:, None])
    return losses, gradient, acceptance, match


def output_loss(
    hidden: Tensor,
    weight: Tensor,
    target: TargetRows,
    weights: LossWeights,
    mean_acceptance: float,
) -> LossParts:
    """The loss of ``hidden [N, H]`` (after the head's output norm) under output ``weight [D, H]``.

    Rows are averaged. ``mean_acceptance`` is a running mean of alpha at this depth and sets lambda.
    """
    mix = math.exp(-weights.eta * mean_acceptance)
    loss, acceptance, match = _FusedOutputLoss.apply(  # type: ignore[no-untyped-call]
        hidden, weight, target, mix, weights.greedy
    )
    return LossParts(loss, acceptance, match)
