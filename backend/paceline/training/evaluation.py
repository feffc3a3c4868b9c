"""What a draft is worth, measured on answers of the target that it was not trained on.

Acceptance at depth ``d`` is measured on the draft's own roll-outs: features of the true prefix,
then the draft's own hidden states, and only over drafts whose earlier tokens were accepted. No
target pass is needed for that. Where the held-out answer was sampled from the target at
temperature 1, its tokens ``x ~ p`` weighted by ``min(1, q(x) / p(x))`` are distributed as the
accepted tokens of a draft, so with these weights multiplied along the answer

    survival(d) = E[ prod_{j < d} min(1, q_j(x_j) / p_j(x_j)) * alpha_d ],
    alpha = sum_x min(p(x), q(x))

is the chance that the first ``d`` drafted tokens are all accepted by the token rule. On greedy
answers the weights are indicators of agreement. Acceptance at depth ``d`` is
``survival(d) / survival(d - 1)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paceline.training.unroll import unroll

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paceline.model.draft_head import DraftModule
    from paceline.training.batches import Batch, BatchSource

DEPTHS = 4
_SEQUENCES_PER_BATCH = 4


@dataclass(frozen=True, slots=True)
class Acceptance:
    """``survival[d - 1]``: the chance that a draft of depth ``d`` is accepted whole, over
    ``num_positions`` starting positions."""

    survival: tuple[float, ...]
    num_positions: int

    @property
    def by_depth(self) -> tuple[float, ...]:
        """The chance of acceptance at each depth, given that everything before was accepted."""
        before = (1.0, *self.survival[:-1])
        return tuple(
            (now / earlier if earlier > 0 else 0.0)
            for now, earlier in zip(self.survival, before, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``sampled``: temperature 1; ``greedy``: temperature 0; either is None without held-out
    answers of that kind. ``mean_acceptance``: alpha at depth 1 over all held-out answer positions.
    ``coverage``: mean probability that the target gives to the draft's ids."""

    sampled: Acceptance | None
    greedy: Acceptance | None
    mean_acceptance: float
    coverage: float


class _Sums:
    """Sums of survival and of positions for one kind of answer."""

    def __init__(self, depths: int) -> None:
        self.survival = torch.zeros(depths, dtype=torch.float64)
        self.positions = torch.zeros(depths, dtype=torch.float64)

    def result(self) -> Acceptance | None:
        if self.positions[0] == 0:
            return None
        survival = (self.survival / self.positions.clamp_min(1)).tolist()
        return Acceptance(tuple(survival), int(self.positions[0]))


@torch.no_grad()
def evaluate(
    module: DraftModule,
    source: BatchSource,
    references: Sequence[tuple[int, int]],
    depths: int = DEPTHS,
) -> Evaluation:
    """Measure ``module`` on the sequences ``references`` of ``source``."""
    sampled, greedy = _Sums(depths), _Sums(depths)
    alpha = covered = positions = 0.0
    for start in range(0, len(references), _SEQUENCES_PER_BATCH):
        batch = source.pack(references[start : start + _SEQUENCES_PER_BATCH])
        target = batch.target.probabilities.float()
        rows = [
            _depth_rows(module.logits(hidden).float().softmax(-1), target, batch, source)
            for hidden in unroll(module, batch.rows, depths)
        ]
        temperatures = torch.repeat_interleave(
            torch.tensor(batch.temperatures), torch.tensor(batch.rows.lengths)
        ).to(target.device)
        _accumulate(sampled, batch, temperatures == 1, [(r.alpha, r.weight) for r in rows])
        _accumulate(greedy, batch, temperatures == 0, [(r.match, r.match) for r in rows])
        alpha += float(rows[0].alpha[batch.answer].sum())
        covered += float(target[batch.answer].sum())
        positions += float(batch.answer.sum())
    count = max(positions, 1.0)
    return Evaluation(sampled.result(), greedy.result(), alpha / count, covered / count)


@dataclass(frozen=True, slots=True)
class _DepthRows:
    alpha: Tensor
    match: Tensor
    weight: Tensor


def _depth_rows(draft: Tensor, target: Tensor, batch: Batch, source: BatchSource) -> _DepthRows:
    columns = source.columns(batch.next_ids)
    index = columns.clamp_min(0)[:, None]
    ratio = draft.gather(1, index)[:, 0] / target.gather(1, index)[:, 0].clamp_min(1e-20)
    return _DepthRows(
        alpha=torch.minimum(draft, target).sum(-1),
        match=(draft.argmax(-1) == batch.target.greedy).float(),
        weight=torch.where(columns >= 0, ratio.clamp_max(1.0), 0.0),
    )


def _accumulate(
    sums: _Sums, batch: Batch, chosen: Tensor, rows: Sequence[tuple[Tensor, Tensor]]
) -> None:
    """Add every chain of drafts that starts at a chosen answer row; depth ``d`` of the chain from
    row ``i`` is row ``i + d - 1``."""
    count = len(batch.answer)
    device = batch.answer.device
    lengths = torch.tensor(batch.rows.lengths, device=device)
    ends = torch.repeat_interleave(lengths.cumsum(0), lengths)
    start = torch.arange(count, device=device)
    survival = torch.ones(count, device=device)
    for depth, (value, weight) in enumerate(rows):
        row = (start + depth).clamp_max(count - 1)
        counted = (start + depth < ends) & batch.answer & chosen
        sums.survival[depth] += (survival * value[row])[counted].sum().cpu()
        sums.positions[depth] += counted.sum().cpu()
        survival = survival * weight[row]
