"""The acceptance stage for a mixed batch: from the target's logits to what is emitted.

Sequences that need the same kind of work are handled together: greedy ones never see a
probability, truncated ones only their surviving tokens, and only what is left touches whole rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from paceline.sampling.acceptance import (
    Acceptance,
    AcceptRule,
    Drafted,
    matching_acceptance,
    settle,
)
from paceline.sampling.draws import inverse_cdf, race
from paceline.sampling.native import highest_of
from paceline.sampling.randomness import Purpose, uniforms
from paceline.sampling.rows import Rows
from paceline.sampling.warping import (
    Truncation,
    WarpParameters,
    argmax_lowest,
    truncation_of,
    warp,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from paceline.core.request import SamplingParams

    Int64s = npt.NDArray[np.int64]
    UInt64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class NoiseKeys:
    """Keys of the random numbers of N draws, numpy [N]: see `randomness.uniforms`.

    positions: where in its sequence the first token to be decided will stand.
    """

    seeds: UInt64s
    positions: Int64s
    rounds: Int64s

    def take(self, members: Int64s) -> NoiseKeys:
        return NoiseKeys(self.seeds[members], self.positions[members], self.rounds[members])


def rule_of(params: SamplingParams, has_rows: bool, sampled_rule: AcceptRule) -> AcceptRule:
    """How drafts for a request are verified.

    has_rows: each drafted token has the row that it was sampled from. sampled_rule: TOKEN or BLOCK,
    for unseeded requests with such drafts.
    """
    if params.is_greedy:
        return AcceptRule.GREEDY
    if params.seed is not None:
        return AcceptRule.SAMPLED
    return sampled_rule if has_rows else AcceptRule.TOKEN


def verify(
    logits: Tensor,
    drafted: Drafted,
    params: Sequence[SamplingParams],
    keys: NoiseKeys,
    sampled_rule: AcceptRule = AcceptRule.BLOCK,
) -> tuple[Acceptance, Tensor]:
    """What each sequence accepts and emits, and whether its rows could be used: bool [B].

    Args:
        logits: [R, V], packed as `acceptance` describes; already edited by constraints. A row with
            NaN or infinity, or with nothing but minus infinity, makes its sequence unusable.
        drafted, params, keys: of the B sequences.
        sampled_rule: see `rule_of`.
    """
    found = highest_of(logits)
    places, peaks = (None, logits.amax(-1)) if found is None else found
    is_usable = torch.ones(len(params), dtype=torch.bool, device=logits.device)
    if not all(map(math.isfinite, peaks.tolist())):
        is_finite = torch.isfinite(peaks)
        owner = np.repeat(np.arange(len(params)), drafted.num_drafted + 1)
        is_usable[drafted.tensor(owner)[~is_finite]] = False
        logits = torch.where(is_finite[:, None], logits, 0)
        places, peaks = None, torch.where(is_finite, peaks, 0)
    has_rows = (drafted.row_index >= 0) | ~drafted.is_drafted
    has_rows = has_rows.all(1) & (drafted.num_drafted > 0)
    rules = [rule_of(p, bool(h), sampled_rule) for p, h in zip(params, has_rows, strict=True)]
    # Token and block rule are one law and are handled together.
    laws = [AcceptRule.TOKEN if rule is AcceptRule.BLOCK else rule for rule in rules]
    groups = _group(laws, params)
    is_block = np.array([rule is AcceptRule.BLOCK for rule in rules])
    outcomes = []
    for (kind, _), listed in groups.items():
        members = np.array(listed)
        if len(groups) == 1:
            part, rows, highest, tokens = drafted, logits, peaks, places
        else:
            part, packed = _select(drafted, members)
            at = drafted.tensor(packed)
            rows, highest = logits[at], peaks[at]
            tokens = None if places is None else places[at]
        if kind is AcceptRule.GREEDY:
            tokens = argmax_lowest(rows) if tokens is None else tokens
            outcomes.append(matching_acceptance(tokens, part, None))
            continue
        chosen = [params[index] for index in listed]
        outcomes.append(
            _verify_drawn(kind, rows, highest, part, chosen, keys.take(members), is_block[members])
        )
    return _join(outcomes, [np.array(listed) for listed in groups.values()]), is_usable


def _group(
    rules: Sequence[AcceptRule], params: Sequence[SamplingParams]
) -> dict[tuple[AcceptRule, Truncation], list[int]]:
    """Places of the requests that are handled together."""
    groups: dict[tuple[AcceptRule, Truncation], list[int]] = {}
    for index, (rule, p) in enumerate(zip(rules, params, strict=True)):
        cut = Truncation.NONE if rule is AcceptRule.GREEDY else truncation_of(p)
        groups.setdefault((rule, cut), []).append(index)
    return groups


def _verify_drawn(
    rule: AcceptRule,
    logits: Tensor,
    peaks: Tensor,
    drafted: Drafted,
    params: Sequence[SamplingParams],
    keys: NoiseKeys,
    is_block: npt.NDArray[np.bool_],
) -> Acceptance:
    """`verify` for sampled sequences of one kind: all seeded or none, and cut alike."""
    owner = np.repeat(np.arange(len(params)), drafted.num_drafted + 1)
    parameters = WarpParameters.of([params[index] for index in owner.tolist()], logits.device)
    target = warp(logits, parameters, peaks)
    if rule is AcceptRule.SAMPLED:
        place = np.arange(len(owner)) - drafted.first_rows[owner]
        positions = keys.positions[owner] + place
        samples = race(target, keys.seeds[owner], positions, logits.shape[-1])
        return matching_acceptance(samples, drafted, target)
    return _draw(target, drafted, keys, is_block)


def _draw(
    target: Rows, drafted: Drafted, keys: NoiseKeys, is_block: npt.NDArray[np.bool_]
) -> Acceptance:
    # The token after n accepted ones has its own position, so its noise is keyed by that of the
    # round's first token: one residual and one bonus draw a round, whatever n turns out to be.
    seeds, starts, rounds = keys.seeds, keys.positions, keys.rounds
    steps = np.arange(drafted.depth)
    accept = uniforms(seeds[:, None], starts[:, None] + steps, rounds[:, None], Purpose.ACCEPT)
    last = uniforms(
        seeds[:, None],
        starts[:, None],
        rounds[:, None],
        np.array([Purpose.RESIDUAL, Purpose.BONUS]),
    )
    return settle(target, drafted, is_block, accept, last[:, 0], last[:, 1])


def _join(outcomes: list[Acceptance], members: list[Int64s]) -> Acceptance:
    """One outcome from those of groups of sequences, in the sequences' own order."""
    if len(outcomes) == 1:
        return outcomes[0]
    order = torch.from_numpy(np.argsort(np.concatenate(members)))
    back = order.to(outcomes[0].next_token.device)
    joined = (
        torch.cat([getattr(outcome, field.name) for outcome in outcomes])[back]
        for field in fields(Acceptance)
    )
    return Acceptance(*joined)


def _select(drafted: Drafted, members: Int64s) -> tuple[Drafted, Int64s]:
    """Some of the sequences, their rows packed anew, and where those rows were."""
    counts = drafted.num_drafted[members] + 1
    first_rows = np.cumsum(counts) - counts
    packed = np.arange(counts.sum()) - np.repeat(first_rows, counts)
    packed += np.repeat(drafted.first_rows[members], counts)
    part = Drafted(
        drafted.draft_ids[drafted.tensor(members)],
        drafted.num_drafted[members],
        first_rows,
        drafted.rows,
        drafted.row_index[members],
        drafted.vocab_ids,
    )
    return part, packed


@dataclass(frozen=True, slots=True)
class DraftedTokens:
    """One more drafted token for each of N drafts.

    token_ids: int64 [N]. rows: float32 [N, V], what they were sampled from, or None if none was.
    has_row: numpy bool [N]; False where the token is a function of its row (greedy) or of noise
    that the target's own sample shares (seeded): such a draft counts as deterministic.
    """

    token_ids: Tensor
    rows: Tensor | None
    has_row: npt.NDArray[np.bool_]


def draft_tokens(
    logits: Tensor,
    params: Sequence[SamplingParams],
    keys: NoiseKeys,
    vocabulary_size: int,
    vocab_ids: Tensor | None = None,
    highest: Tensor | None = None,
) -> DraftedTokens:
    """Sample a draft model's next tokens, warped like the target's.

    Args:
        logits: [N, V] of the draft model, edited by constraints; as for `verify`.
        params, keys: of the N sequences; positions are those of the tokens to be drawn.
        vocabulary_size: of the target.
        vocab_ids: int64 [V], the target's id of each column, rising; None where they are equal.
        highest: int64 [N], `argmax_lowest` of the logits, if it is known already.
    """
    num_rows, width = logits.shape
    device = logits.device
    if all(p.is_greedy for p in params):
        tokens = argmax_lowest(logits) if highest is None else highest
        tokens = tokens if vocab_ids is None else vocab_ids.index_select(0, tokens)
        return DraftedTokens(tokens, None, np.zeros(num_rows, dtype=np.bool_))
    groups = _group([rule_of(p, True, AcceptRule.TOKEN) for p in params], params)
    tokens = torch.zeros(num_rows, dtype=torch.int64, device=device)
    probs = None
    has_row = np.zeros(num_rows, dtype=np.bool_)
    for (rule, _), listed in groups.items():
        members = np.array(listed)
        at = torch.from_numpy(members).to(device)
        part = logits if len(groups) == 1 else logits[at]
        if rule is AcceptRule.GREEDY:
            tokens[at] = argmax_lowest(part)
            continue
        rows = warp(part, WarpParameters.of([params[index] for index in listed], device))
        if rule is AcceptRule.SAMPLED:
            named = rows
            if vocab_ids is not None:
                ids = vocab_ids.expand(len(part), -1) if rows.ids is None else vocab_ids[rows.ids]
                named = Rows(rows.weights, rows.totals, ids)
            seeds, positions = keys.seeds[members], keys.positions[members]
            drawn = race(named, seeds, positions, vocabulary_size)
            tokens[at] = drawn if vocab_ids is None else torch.searchsorted(vocab_ids, drawn)
            continue
        has_row[members] = True
        # Sampled from the very numbers that the acceptance ratio will be made of.
        some = rows.dense(width)
        own = keys if len(groups) == 1 else keys.take(members)
        noise = uniforms(own.seeds, own.positions, own.rounds, Purpose.DRAFT)
        drawn = inverse_cdf(some, torch.from_numpy(noise).to(device))
        if len(groups) == 1:
            tokens, probs = drawn, some
            continue
        if probs is None:
            probs = torch.zeros(num_rows, width, dtype=torch.float32, device=device)
        probs[at], tokens[at] = some, drawn
    if vocab_ids is not None:
        tokens = vocab_ids.index_select(0, tokens)
    return DraftedTokens(tokens, probs, has_row)
