"""Verification of drafted tokens: which to accept, and what to emit next.

Two pure stages. `acceptance_law` turns distributions into the law of a round: the threshold of each
drafted position and, for any number of accepted tokens, what the next token is drawn from. `draw`
turns that law and uniforms into an outcome; `settle` runs both. Nothing here has randomness of its
own, so the exact law can be tested by running `draw` on every cell of the uniforms.

Write P_i and Q_i for the target's and the draft's distribution at position i, x_i for the drafted
token, and K for the number of drafted ones. All rules leave the target's law untouched:

* Token rule (Leviathan et al., arXiv 2211.17192, Algorithm 1; Chen et al., arXiv 2302.01318):
  accept x_i while u_i < P_i(x_i) / Q_i(x_i); then draw from norm(max(0, P - Q)) of the first
  rejected position, or from P_{K+1} after a full acceptance.
* Block rule (Sun et al., arXiv 2403.10444, Algorithm 2): with the chain c_0 = 1,
  c_i = min(1, c_{i-1} P_i(x_i) / Q_i(x_i)) and the excess Z_i = sum max(0, c_i P_{i+1} - Q_{i+1}),
  a position passes with probability Z_i / (Z_i + 1 - c_i), the last one with c_K. The *last* one
  that passes ends the accepted run, whatever failed before it; then draw from
  norm(max(0, c_i P_{i+1} - Q_{i+1})). Never accepts less than the token rule in expectation.
* Greedy rows and deterministic drafts are one-hot distributions under the token rule, where the
  block rule has nothing to gain.
* Sampled verification, for seeded requests: every row has the target's own sample, a function of
  (seed, position); accept while it equals the draft, then emit it. The text is that of plain
  decoding by construction.

Target rows are packed by sequence: row `first_rows[b] + i` is the target's distribution for the
token after the first i drafted ones, i = 0 .. num_drafted[b]. In code below, position i counts from
0, so that its drafted token meets row i.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from paceline.sampling.draws import draw_tokens
from paceline.sampling.native import match_rounds, settle_rounds
from paceline.sampling.rows import Rows, row_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Int64s = npt.NDArray[np.int64]
    Bools = npt.NDArray[np.bool_]
    Doubles = npt.NDArray[np.float64]

# Rows of a whole vocabulary whose excess is computed at a time: the temporaries stay in the cache.
_CHUNK = 4


class AcceptRule(IntEnum):
    """How a sequence's drafted tokens are verified; see the module's text."""

    TOKEN = 0
    BLOCK = 1
    SAMPLED = 2
    GREEDY = 3


class NextSource(IntEnum):
    """Where the token after the accepted run came from."""

    PLAIN = 0
    RESIDUAL = 1
    BONUS = 2


@dataclass(frozen=True, slots=True)
class Drafted:
    """What was drafted for B sequences, padded to G, and where the target's rows are.

    draft_ids: int64 [B, G], ids of the target's vocabulary; anything beyond num_drafted.
    num_drafted: numpy int64 [B], 0 to G.
    first_rows: numpy int64 [B]; see the module's text.
    rows: float32 [P, Vd] or None: the distributions that tokens were sampled from, the very tensor.
    row_index: numpy int64 [B, G], which of `rows` a token was sampled from; -1 where the draft was
        deterministic (greedy, n-gram), which is a one-hot distribution.
    vocab_ids: int64 [Vd] or None: target id of each column of `rows`, rising; None means the first
        Vd ids. The draft has probability zero outside them.
    """

    draft_ids: Tensor
    num_drafted: Int64s
    first_rows: Int64s
    rows: Tensor | None
    row_index: Int64s
    vocab_ids: Tensor | None = None

    @property
    def depth(self) -> int:
        return int(self.draft_ids.shape[1])

    @property
    def is_drafted(self) -> Bools:
        """bool [B, G]: positions that hold a drafted token."""
        return np.arange(self.depth) < self.num_drafted[:, None]

    def tensor(self, values: Int64s | Bools) -> Tensor:
        """Host values on the device of the drafted ids."""
        return torch.from_numpy(np.ascontiguousarray(values)).to(self.draft_ids.device)


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Outcome of a round for B sequences.

    num_accepted, next_token, source: int64 [B]; `source` holds `NextSource`.
    num_examined, num_passed: int64 [B], the positions tested up to the first failure, and those
        among them that passed. Under the block rule the token rule is applied to the same uniforms,
        so that passed / examined estimates the same thing under every rule.
    survival: float64 [B, G], estimates of the probability that at least i + 1 tokens are accepted:
        the running product of the thresholds, under the block rule the chain. Their sum over
        positions has the expected number of accepted tokens as its expectation.
    next_prob: float64 [B], the probability of next_token on the target's row.
    """

    num_accepted: Tensor
    next_token: Tensor
    source: Tensor
    num_examined: Tensor
    num_passed: Tensor
    survival: Tensor
    next_prob: Tensor


@dataclass(frozen=True, slots=True)
class AcceptanceLaw:
    """The law of one round.

    accept_probs: float64 [B, G], the threshold of each position; 0 beyond num_drafted.
    token_probs: float64 [B, G], those of the token rule.
    chain: float64 [B, G + 1], c_i under the block rule, 1 under the token rule.
    is_block: bool [B].
    """

    accept_probs: Tensor
    token_probs: Tensor
    chain: Tensor
    is_block: Tensor
    target: Rows
    drafted: Drafted

    def final_rows(self, num_accepted: Tensor) -> Rows:
        """What the token after num_accepted [B] accepted ones is drawn from; unnormalised, [B, C].

        The residual where a drafted token follows, else the target's own row. A residual without
        mass (target and draft equal up to rounding) falls back to the target's row.
        """
        drafted = self.drafted
        rows = self.target.take(drafted.tensor(drafted.first_rows) + num_accepted)
        if drafted.depth == 0:
            return rows
        is_residual = num_accepted < drafted.tensor(drafted.num_drafted)
        place = num_accepted.clamp_max(drafted.depth - 1)[:, None]
        row_index = drafted.tensor(drafted.row_index).gather(1, place)[:, 0]
        scale = self.chain.gather(1, num_accepted[:, None])[:, 0] / rows.totals
        residual = rows.weights * scale.to(torch.float32)[:, None]
        # A deterministic draft had all its probability on the rejected token.
        rejected = drafted.draft_ids.gather(1, place)
        is_one_hot = (row_index < 0)[:, None]
        if rows.ids is None:
            kept = torch.where(is_one_hot, 0.0, residual.gather(1, rejected))
            residual.scatter_(1, rejected, kept)
        else:
            residual = torch.where(is_one_hot & (rows.ids == rejected), 0.0, residual)
        residual = _subtract_draft(residual, rows.ids, row_index, drafted).clamp_min_(0)
        has_mass = (residual > 0).any(-1)
        use = (is_residual & has_mass)[:, None]
        weights = torch.where(use, residual, rows.weights)
        return Rows(weights, rows.totals, rows.ids)


def acceptance_law(target: Rows, drafted: Drafted, is_block: Bools) -> AcceptanceLaw:
    """Thresholds of the token rule and, where is_block, of the block rule.

    Args:
        target: the warped rows, packed as the module's text says.
        drafted: what they verify.
        is_block: numpy bool [B]; all drafted tokens of such a sequence have rows.
    """
    num_sequences, depth = drafted.num_drafted.shape[0], drafted.depth
    device = target.weights.device
    blocks = drafted.tensor(is_block)
    chain = torch.ones(num_sequences, depth + 1, dtype=torch.float64, device=device)
    if depth == 0:
        none = chain[:, :0]
        return AcceptanceLaw(none, none, chain, blocks, target, drafted)
    is_drafted = drafted.tensor(drafted.is_drafted)
    ratio = torch.where(is_drafted, _ratios(target, drafted), 0.0)
    token_probs = ratio.clamp_max(1.0)
    if not is_block.any():
        return AcceptanceLaw(token_probs, token_probs, chain, blocks, target, drafted)
    # c_i = min(1, c_{i-1} r_i) unrolled: the walk of log r_i, pulled back whenever it exceeds 0.
    walk = ratio.log().cumsum(1)
    clamped = (walk - walk.cummax(1).values.clamp_min(0)).exp()
    chain[:, 1:] = torch.where(blocks[:, None], clamped, 1.0)
    accept_probs = torch.where(blocks[:, None], chain[:, 1:], token_probs)
    accept_probs = torch.where(is_drafted, accept_probs, 0.0)
    # Positions with a drafted one behind them.
    owner, place = np.nonzero(is_block[:, None] & drafted.is_drafted[:, 1:])
    if len(owner):
        at = drafted.tensor(owner), drafted.tensor(place)
        value = chain[at[0], at[1] + 1]
        excess = _excess(
            target,
            drafted.tensor(drafted.first_rows[owner] + place + 1),
            value,
            drafted,
            drafted.tensor(drafted.row_index[owner, place + 1]),
        )
        whole = excess + (1 - value)
        # 0 / 0: the chain is at 1 and the draft is right about the next row; pass.
        accept_probs[at] = torch.where(whole > 0, excess / whole, 1.0)
    return AcceptanceLaw(accept_probs, token_probs, chain, blocks, target, drafted)


def draw(law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor) -> Acceptance:
    """The outcome for given uniforms in [0, 1), float64: accept [B, G], residual and bonus [B].

    Strict comparison: a uniform of exactly 0 never accepts a token of probability zero.
    """
    drafted = law.drafted
    passes = accept < law.accept_probs
    passes_token = accept < law.token_probs
    num_passed = _leading(passes_token)
    steps = torch.arange(1, drafted.depth + 1, device=accept.device)
    # A column of zeros stands for "none", where nothing was drafted too.
    last = torch.nn.functional.pad(passes * steps, (1, 0)).amax(1)
    num_accepted = torch.where(law.is_block, last, num_passed)
    is_full = num_accepted == drafted.tensor(drafted.num_drafted)
    next_token = draw_tokens(law.final_rows(num_accepted), torch.where(is_full, bonus, residual))
    survival = torch.where(law.is_block[:, None], law.chain[:, 1:], law.token_probs.cumprod(1))
    rows = drafted.tensor(drafted.first_rows) + num_accepted
    next_prob = law.target.probability(rows, next_token)
    outcome = _fields(num_accepted, next_token, num_passed, survival, drafted)
    return Acceptance(*(*outcome, next_prob))


def settle(
    target: Rows,
    drafted: Drafted,
    is_block: Bools,
    accept: Doubles,
    residual: Doubles,
    bonus: Doubles,
) -> Acceptance:
    """`draw` of the `acceptance_law` of these arguments, for uniforms of the host; on a CPU in one
    pass where our own library serves."""
    settled = settle_rounds(target, drafted, is_block, accept, residual, bonus)
    if settled is None:
        device = target.weights.device
        noise = (torch.from_numpy(part).to(device) for part in (accept, residual, bonus))
        return draw(acceptance_law(target, drafted, is_block), *noise)
    return Acceptance(*settled)


def match_greedy(highest: Sequence[int], draft: Sequence[int]) -> tuple[int, int]:
    """How many drafted tokens are the highest of their rows, up to the first that is not, and the
    token that follows them. highest: of a sequence's rows, one more than there are drafted tokens.
    """
    num_accepted = 0
    while num_accepted < len(draft) and draft[num_accepted] == highest[num_accepted]:
        num_accepted += 1
    return num_accepted, highest[num_accepted]


def matching_acceptance(samples: Tensor, drafted: Drafted, target: Rows | None) -> Acceptance:
    """The outcome where each target row has one token of its own: accept while the draft is it.

    samples: int64 [R]; the highest token of a greedy row, the sample of a seeded one.
    target: what they were sampled from; None for greedy rows, which are one-hot.
    """
    matched = match_rounds(samples, drafted)
    if matched is None:
        matched = _match(samples, drafted)
    num_accepted, next_token = matched[:2]
    if target is None:
        next_prob = torch.ones_like(next_token, dtype=torch.float64)
    else:
        last = drafted.tensor(drafted.first_rows) + num_accepted
        next_prob = target.probability(last, next_token)
    return Acceptance(*(*matched, next_prob))


def _match(samples: Tensor, drafted: Drafted) -> tuple[Tensor, ...]:
    """As `native.match_rounds`."""
    depth = drafted.depth
    is_drafted = drafted.is_drafted
    rows = np.where(is_drafted, drafted.first_rows[:, None] + np.arange(depth), 0)
    matches = drafted.tensor(is_drafted) & (samples[drafted.tensor(rows)] == drafted.draft_ids)
    num_accepted = _leading(matches)
    next_token = samples[drafted.tensor(drafted.first_rows) + num_accepted]
    survival = matches.to(torch.float64).cumprod(1)
    return _fields(num_accepted, next_token, num_accepted, survival, drafted)


def _fields(
    num_accepted: Tensor,
    next_token: Tensor,
    num_passed: Tensor,
    survival: Tensor,
    drafted: Drafted,
) -> tuple[Tensor, ...]:
    """Those of an `Acceptance` in their order, but for the last one."""
    num_drafted = drafted.tensor(drafted.num_drafted)
    source = torch.where(
        num_accepted == num_drafted, int(NextSource.BONUS), int(NextSource.RESIDUAL)
    )
    source = torch.where(num_drafted == 0, int(NextSource.PLAIN), source)
    num_examined = torch.minimum(num_passed + 1, num_drafted)
    return num_accepted, next_token, source, num_examined, num_passed, survival


def _leading(passes: Tensor) -> Tensor:
    """Length of the leading run of True in each row: int64 [B]."""
    return passes.to(torch.int64).cumprod(1).sum(1)


def _ratios(target: Rows, drafted: Drafted) -> Tensor:
    """P_i(x_i) / Q_i(x_i): float64 [B, G], anything beyond num_drafted."""
    shape = drafted.draft_ids.shape
    is_drafted = drafted.is_drafted
    rows = np.where(is_drafted, drafted.first_rows[:, None] + np.arange(shape[1]), 0)
    ids = torch.where(drafted.tensor(is_drafted), drafted.draft_ids, 0)
    wanted = target.probability(drafted.tensor(rows).flatten(), ids.flatten()).view(shape)
    if drafted.rows is None:
        return wanted
    row_index = drafted.tensor(drafted.row_index)
    columns, _ = _columns(ids, drafted)
    sampled = drafted.rows[row_index.clamp_min(0), columns].to(torch.float64)
    draft = torch.where(row_index >= 0, sampled, 1.0)
    # A draft of probability zero cannot have been sampled; refusing it keeps the division safe.
    return torch.where(draft > 0, wanted / draft, 0.0)


def _excess(
    target: Rows, rows: Tensor, scale: Tensor, drafted: Drafted, row_index: Tensor
) -> Tensor:
    """Z: the sum over all tokens of max(0, scale * P - Q), float64 [N].

    rows: int64 [N] into target. scale: float64 [N]. row_index: int64 [N] into the draft's rows.
    """
    assert drafted.rows is not None
    factor = (scale / target.totals[rows]).to(torch.float32)
    if target.ids is not None:
        scaled = target.weights[rows] * factor[:, None]
        return row_sums(_subtract_draft(scaled, target.ids[rows], row_index, drafted).relu_())
    vocab_ids = drafted.vocab_ids
    width, draft_width = target.weights.shape[1], drafted.rows.shape[1]
    buffer = target.weights.new_empty(_CHUNK, width)
    draft_buffer = target.weights.new_empty(_CHUNK, draft_width)
    sums = []
    for part in torch.split(torch.arange(len(rows), device=rows.device), _CHUNK):
        scaled, draft = buffer[: len(part)], draft_buffer[: len(part)]
        torch.index_select(target.weights, 0, rows[part], out=scaled)
        torch.index_select(drafted.rows, 0, row_index[part], out=draft)
        scaled.mul_(factor[part, None])
        if vocab_ids is None:
            scaled[:, :draft_width].sub_(draft)
        else:
            scaled.index_add_(1, vocab_ids, draft, alpha=-1)
        sums.append(row_sums(scaled.relu_()))
    return torch.cat(sums)


def _subtract_draft(
    scaled: Tensor, ids: Tensor | None, row_index: Tensor, drafted: Drafted
) -> Tensor:
    """scaled [N, C] minus the draft's row of each (none where row_index [N] is -1)."""
    if drafted.rows is None:
        return scaled
    if ids is None:
        draft = drafted.rows[row_index.clamp_min(0)]
        draft = torch.where((row_index >= 0)[:, None], draft, 0.0)
        if drafted.vocab_ids is None:
            scaled[:, : draft.shape[1]] -= draft
            return scaled
        return scaled.index_add_(1, drafted.vocab_ids, draft, alpha=-1)
    columns, is_known = _columns(ids, drafted)
    draft = drafted.rows[row_index.clamp_min(0)[:, None], columns]
    is_known &= (row_index >= 0)[:, None]
    return scaled - torch.where(is_known, draft, 0.0)


def _columns(ids: Tensor, drafted: Drafted) -> tuple[Tensor, Tensor]:
    """Column in the draft's rows of each id, and whether it has one; any shape."""
    assert drafted.rows is not None
    last = drafted.rows.shape[1] - 1
    if drafted.vocab_ids is None:
        return ids.clamp_max(last), ids <= last
    columns = torch.searchsorted(drafted.vocab_ids, ids).clamp_max(last)
    return columns, drafted.vocab_ids[columns] == ids
