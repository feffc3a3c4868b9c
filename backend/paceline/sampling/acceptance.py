"""Verification of drafted tokens: which to accept, and what to emit next.

Two pure stages over packed rows. `acceptance_law` turns distributions into the law of a round: the
threshold of each drafted position and, for any number of accepted tokens, the row that the next
token is drawn from. `draw` turns that law and uniforms into an outcome. Nothing here has randomness
of its own, so the exact law can be tested by running `draw` on every cell of the uniforms.

Token rule (Leviathan et al., arXiv 2211.17192, Algorithm 1; Chen et al., arXiv 2302.01318): accept
x with probability min(1, target(x) / draft(x)); at the first rejection draw from
norm(max(0, target - draft)); after a full acceptance draw from the target's next row. The output
follows the target's law exactly, whatever the draft.

R target rows are packed by sequence: row `first_rows[b] + i` is the target's distribution for the
token after the first i drafted ones, i = 0 .. num_drafted[b].
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

_GROUP = 256


class NextSource(IntEnum):
    """Where the token after the accepted run came from."""

    PLAIN = 0
    RESIDUAL = 1
    BONUS = 2


@dataclass(frozen=True, slots=True)
class Drafted:
    """What the drafter proposed for B sequences, padded to G.

    draft_ids: int64 [B, G], ids of the target's vocabulary; anything beyond num_drafted.
    num_drafted: int64 [B], 0 to G.
    rows: float32 [P, Vd] or None: the distributions that tokens were sampled from, the very tensor.
    row_index: int64 [B, G], which of `rows` a token was sampled from; -1 where the draft was
        deterministic (greedy, n-gram), which is a one-hot distribution.
    vocab_ids: int64 [Vd] or None: target id of each column of `rows`; None means the first Vd ids.
        The draft has probability zero outside them.
    """

    draft_ids: Tensor
    num_drafted: Tensor
    rows: Tensor | None
    row_index: Tensor
    vocab_ids: Tensor | None = None


@dataclass(frozen=True, slots=True)
class AcceptanceLaw:
    """The law of one round. accept_probs: float64 [B, G]; 0 beyond num_drafted."""

    accept_probs: Tensor
    target_probs: Tensor
    first_rows: Tensor
    drafted: Drafted

    def final_rows(self, num_accepted: Tensor) -> Tensor:
        """Unnormalised law of the token after num_accepted [B] accepted ones: float32 [B, V].

        The residual where a drafted token follows, else the target's own row. A residual without
        mass (target and draft equal up to rounding) falls back to the target's row.
        """
        drafted = self.drafted
        rows = self.target_probs[self.first_rows + num_accepted]
        if drafted.draft_ids.shape[1] == 0:
            return rows
        is_residual = num_accepted < drafted.num_drafted
        depth = num_accepted.clamp_max(drafted.draft_ids.shape[1] - 1)[:, None]
        rejected = drafted.draft_ids.gather(1, depth)
        row_index = drafted.row_index.gather(1, depth)[:, 0]
        residual = rows.clone()
        one_hot = (is_residual & (row_index < 0))[:, None]
        kept = torch.where(one_hot, 0.0, residual.gather(1, rejected))
        residual.scatter_(1, rejected, kept)
        if drafted.rows is not None:
            has_row = is_residual & (row_index >= 0)
            draft = drafted.rows[row_index.clamp_min(0)]
            draft = torch.where(has_row[:, None], draft, 0.0)
            if drafted.vocab_ids is None:
                residual[:, : draft.shape[1]] -= draft
            else:
                residual.index_add_(1, drafted.vocab_ids, draft, alpha=-1)
            residual.clamp_min_(0)
        has_mass = residual.sum(-1, keepdim=True) > 0
        return torch.where(is_residual[:, None] & has_mass, residual, rows)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Outcome of a round for B sequences: int64 [B] each; `source` holds `NextSource`."""

    num_accepted: Tensor
    next_token: Tensor
    source: Tensor


def acceptance_law(target_probs: Tensor, first_rows: Tensor, drafted: Drafted) -> AcceptanceLaw:
    """Thresholds by the token rule.

    Args:
        target_probs: float32 [R, V], warped; see the module's text for the packing.
        first_rows: int64 [B].
        drafted: the proposal that the target scored.
    """
    num_sequences, depth = drafted.draft_ids.shape
    device = target_probs.device
    if depth == 0:
        empty = torch.zeros(num_sequences, 0, dtype=torch.float64, device=device)
        return AcceptanceLaw(empty, target_probs, first_rows, drafted)
    steps = torch.arange(depth, device=device)
    is_drafted = steps < drafted.num_drafted[:, None]
    rows = torch.where(is_drafted, first_rows[:, None] + steps, 0)
    ids = torch.where(is_drafted, drafted.draft_ids, 0)
    target = target_probs[rows.flatten(), ids.flatten()].view_as(ids).to(torch.float64)
    draft = torch.ones_like(target)
    if drafted.rows is not None:
        has_row = is_drafted & (drafted.row_index >= 0)
        columns = _columns(ids, drafted)
        sampled = drafted.rows[drafted.row_index.clamp_min(0).flatten(), columns.flatten()]
        draft = torch.where(has_row, sampled.view_as(ids).to(torch.float64), draft)
    # A draft of probability zero cannot have been sampled; refusing it keeps the division safe.
    ratio = torch.where(draft > 0, target / draft, 0.0)
    accept = torch.where(is_drafted, ratio.clamp(0.0, 1.0), 0.0)
    return AcceptanceLaw(accept, target_probs, first_rows, drafted)


def draw(law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor) -> Acceptance:
    """The outcome for given uniforms in [0, 1), float64: accept [B, G], residual and bonus [B].

    Strict comparison: a uniform of exactly 0 never accepts a token of probability zero.
    """
    drafted = law.drafted
    is_accepted = accept < law.accept_probs
    num_accepted = is_accepted.to(torch.int64).cumprod(1).sum(1)
    is_full = num_accepted == drafted.num_drafted
    uniform = torch.where(is_full, bonus, residual)
    next_token = inverse_cdf(law.final_rows(num_accepted), uniform)
    source = torch.where(is_full, int(NextSource.BONUS), int(NextSource.RESIDUAL))
    source = torch.where(drafted.num_drafted == 0, int(NextSource.PLAIN), source)
    return Acceptance(num_accepted, next_token, source)


def inverse_cdf(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw an index from each row of unnormalised weights.

    Args:
        weights: [N, V], not negative, each row with some mass.
        uniforms: float64 [N] in [0, 1).

    Returns:
        int64 [N]: the first index whose cumulative weight exceeds uniform * total, in float64;
        never an index of weight zero.
    """
    num_rows, width = weights.shape
    padding = -width % _GROUP
    if padding:
        weights = torch.nn.functional.pad(weights, (0, padding))
    grouped = weights.view(num_rows, -1, _GROUP)
    # Two levels: sums of groups first, so that only one group of each row is accumulated.
    group_sums = grouped.sum(-1, dtype=torch.float64)
    group_cdf = group_sums.cumsum(-1)
    level = uniforms * group_cdf[:, -1]
    group = _first_above(group_cdf, group_sums, level)
    before = (group_cdf - group_sums).gather(1, group[:, None])[:, 0]
    inside = grouped[torch.arange(num_rows, device=weights.device), group].to(torch.float64)
    offset = _first_above(inside.cumsum(-1), inside, level - before)
    return group * _GROUP + offset


def _first_above(cdf: Tensor, mass: Tensor, level: Tensor) -> Tensor:
    """First index with cdf > level and mass > 0; the last one with mass if rounding hides it."""
    hit = (cdf > level[:, None]) & (mass > 0)
    width = mass.shape[-1]
    ids = torch.arange(width, device=mass.device)
    first = torch.where(hit, ids, width).amin(-1)
    last = torch.where(mass > 0, ids, 0).amax(-1)
    return torch.minimum(first, last)


def _columns(ids: Tensor, drafted: Drafted) -> Tensor:
    """Column in the draft's rows of each drafted id (each is one of its ids by construction)."""
    if drafted.vocab_ids is None:
        return ids
    return torch.searchsorted(drafted.vocab_ids, ids).clamp_max(len(drafted.vocab_ids) - 1)
