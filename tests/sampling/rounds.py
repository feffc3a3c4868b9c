"""The exact law of one round, by running the real `draw` on every cell of the uniforms.

A round's uniforms are accept_0 .. accept_{K-1} and one for the last draw. Its outcome is constant
on cells: accept_i can only matter through the thresholds of the law, the last uniform through the
cumulative weights of the row that is drawn from. So one point of each cell, weighted by the cell's
volume, gives the law without sampling error.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.sampling.acceptance import (
    Acceptance,
    AcceptanceLaw,
    Drafted,
    acceptance_law,
    draw,
    settle,
)
from paceline.sampling.rows import Rows

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from torch import Tensor

    from tests.reference import Law, RowOf

    Lengths = Callable[[tuple[int, ...]], bool]
    MakeRows = Callable[[list[tuple[int, ...]]], Rows]
    Draw = Callable[[AcceptanceLaw, Tensor, Tensor, Tensor], Acceptance]


@dataclass
class RoundCase:
    """A pair of models over a small vocabulary, and how a round drafts from them.

    target_of, draft_of: law of the next token after a prefix, float64 [V]. stops: whether drafting
    ends after these drafted tokens (a function of what was drafted, as with an end token). one_hot:
    drafts are the draft law's highest token and have no rows. trimmed: ids that the draft has.
    make_rows: the target's rows for prefixes; by default from target_of. declared_of: what the rows
    of the draft say, by default draft_of; drops: whether a sampled token is thrown away, by itself.
    Both are for faults.
    """

    vocabulary_size: int
    depth: int
    target_of: RowOf
    draft_of: RowOf
    is_block: bool
    stops: Lengths = field(default=lambda drafted: False)
    one_hot: bool = False
    trimmed: tuple[int, ...] | None = None
    make_rows: MakeRows | None = None
    declared_of: RowOf | None = None
    drops: Callable[[tuple[int, ...]], bool] = field(default=lambda drafted: False)

    def drafts(self) -> list[tuple[tuple[int, ...], float]]:
        """Every draft that can happen, with its probability."""
        done: list[tuple[tuple[int, ...], float]] = []
        growing: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
        while growing:
            prefix, weight = growing.pop()
            if prefix and self.drops(prefix):
                done.append((prefix[:-1], weight))
                continue
            if len(prefix) == self.depth or self.stops(prefix):
                done.append((prefix, weight))
                continue
            law = self.draft_of(prefix)
            if self.one_hot:
                growing.append(((*prefix, int(law.argmax())), weight))
                continue
            growing += [
                ((*prefix, token), weight * float(law[token]))
                for token in range(self.vocabulary_size)
                if law[token] > 0
            ]
        return done

    def law(self) -> tuple[AcceptanceLaw, list[tuple[tuple[int, ...], float]]]:
        """All drafts as one ragged batch."""
        drafts = self.drafts()
        width = max(len(ids) for ids, _ in drafts)
        prefixes = [ids[:n] for ids, _ in drafts for n in range(len(ids) + 1)]
        lengths = np.array([len(ids) for ids, _ in drafts])
        rows, row_index = self._draft_rows(drafts, width)
        drafted = Drafted(
            draft_ids=torch.tensor(
                [list(ids) + [0] * (width - len(ids)) for ids, _ in drafts], dtype=torch.int64
            ).view(len(drafts), width),
            num_drafted=lengths,
            first_rows=np.cumsum(lengths + 1) - lengths - 1,
            rows=rows,
            row_index=row_index,
            vocab_ids=None if self.trimmed is None else torch.tensor(self.trimmed),
        )
        make_rows = self.make_rows or self._target_rows
        is_block = np.full(len(drafts), self.is_block)
        return acceptance_law(make_rows(prefixes), drafted, is_block), drafts

    def _target_rows(self, prefixes: list[tuple[int, ...]]) -> Rows:
        table = np.array([self.target_of(prefix) for prefix in prefixes])
        return Rows.of(torch.from_numpy(table))

    def _draft_rows(
        self, drafts: list[tuple[tuple[int, ...], float]], width: int
    ) -> tuple[Tensor | None, npt.NDArray[np.int64]]:
        index = np.full((len(drafts), width), -1, dtype=np.int64)
        if self.one_hot and self.declared_of is None:
            return None, index
        kept = list(range(self.vocabulary_size)) if self.trimmed is None else list(self.trimmed)
        table: list[npt.NDArray[np.float64]] = []
        for row, (ids, _) in enumerate(drafts):
            for place in range(len(ids)):
                index[row, place] = len(table)
                table.append((self.declared_of or self.draft_of)(ids[:place])[kept])
        rows = torch.tensor(np.array(table), dtype=torch.float32) if table else None
        return rows, index


def settled(law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor) -> Acceptance:
    """`draw` by the pass that serves on a CPU, which makes the law itself."""
    noise = (part.numpy() for part in (accept, residual, bonus))
    return settle(law.target, law.drafted, law.is_block.numpy(), *noise)


def output_law(case: RoundCase, run: Draw = draw) -> Law:
    """Probability of each output (accepted tokens and the next one) of one round."""
    law, drafts = case.law()
    count, width = law.accept_probs.shape
    edges = np.sort(
        np.concatenate(
            (np.zeros((count, 1)), law.accept_probs.numpy(), np.ones((count, 1))), axis=1
        ),
        axis=1,
    )
    middles = (edges[:, 1:] + edges[:, :-1]) / 2
    volumes = edges[:, 1:] - edges[:, :-1]
    weights = np.array([weight for _, weight in drafts])
    outputs: Law = {}
    for cells in itertools.product(range(width + 1), repeat=width):
        chosen = list(cells)
        accept = torch.from_numpy(middles[:, chosen].copy())
        volume = volumes[:, chosen].prod(axis=1) * weights
        if not volume.any():
            continue
        _add_draws(outputs, law, drafts, run, accept, volume)
    return outputs


def _add_draws(
    outputs: Law,
    law: AcceptanceLaw,
    drafts: list[tuple[tuple[int, ...], float]],
    run: Draw,
    accept: Tensor,
    volume: npt.NDArray[np.float64],
) -> None:
    zeros = torch.zeros(len(drafts), dtype=torch.float64)
    probe = run(law, accept, zeros, zeros)
    # Cells of the last uniform: those of the row that this very `law` draws from.
    final = law.final_rows(probe.num_accepted).weights.to(torch.float64)
    cdf = final.cumsum(1) / final.sum(1, keepdim=True)
    starts = torch.cat((torch.zeros_like(cdf[:, :1]), cdf[:, :-1]), 1)
    for column in range(final.shape[1]):
        width = (cdf - starts)[:, column]
        last = ((cdf + starts) / 2)[:, column].clamp_max(1 - 1e-12)
        made = run(law, accept, last, last)
        for index, (accepted, token) in enumerate(
            zip(made.num_accepted.tolist(), made.next_token.tolist(), strict=True)
        ):
            share = float(volume[index] * width[index])
            if share > 0:
                output = (*drafts[index][0][:accepted], token)
                outputs[output] = outputs.get(output, 0.0) + share


def random_law(
    seed: int, vocabulary_size: int, *, zeros: float = 0.0, spread: float = 1.5
) -> RowOf:
    """A law of the next token that depends on the whole prefix. zeros: how many are impossible."""

    def row_of(prefix: tuple[int, ...]) -> npt.NDArray[np.float64]:
        generator = np.random.default_rng([seed, *(token + 1 for token in prefix), 10**6])
        row = np.exp(generator.normal(size=vocabulary_size) * spread)
        row[generator.random(vocabulary_size) < zeros] = 0.0
        if not row.any():
            row[int(generator.integers(vocabulary_size))] = 1.0
        return np.asarray(row / row.sum())

    return row_of


def restrict(row_of: RowOf, kept: tuple[int, ...]) -> RowOf:
    """The law on some ids alone."""

    def restricted(prefix: tuple[int, ...]) -> npt.NDArray[np.float64]:
        row = np.zeros_like(row_of(prefix))
        row[list(kept)] = row_of(prefix)[list(kept)] + 1e-3
        return np.asarray(row / row.sum())

    return restricted
