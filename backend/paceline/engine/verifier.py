"""The target's side of a step: one packed forward pass, and what it decides about the drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.engine.decisions import DrawnVerdict, GreedyVerdict
from paceline.model.batch import Segment, pack
from paceline.sampling.acceptance import Acceptance, AcceptRule, Drafted
from paceline.sampling.constraints import RowEdits
from paceline.sampling.edits import apply_edits
from paceline.sampling.logprobs import RowLogprobs, row_logprobs
from paceline.sampling.verification import NoiseKeys, verify
from paceline.sampling.warping import highest

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.decisions import Verdict
    from paceline.engine.drafters.interface import Proposal
    from paceline.engine.plan import PlanEntry
    from paceline.engine.runner import Runner


@dataclass(frozen=True, slots=True)
class Scores:
    """The target's view of a step. Rows of logits are packed by sampled entry, in plan order.

    logits: [R, V]. sampled: entries that get a new token, with their drafted ids. first_rows: where
    each one's rows begin. num_certain: of each one, drafted tokens that need no rows, so that the
    row behind them is its only one. features: [T, F] of all packed tokens; first_tokens[i] is where
    entry i of the plan begins in them.
    """

    logits: Tensor
    sampled: tuple[int, ...]
    first_rows: tuple[int, ...]
    num_certain: tuple[int, ...]
    first_tokens: tuple[int, ...]
    num_tokens: int
    features: Tensor | None


class Verifier:
    """Scores known and drafted tokens with the target and draws what follows."""

    def __init__(
        self,
        runner: Runner,
        *,
        block_size: int,
        vocabulary_size: int,
        sampled_rule: AcceptRule = AcceptRule.BLOCK,
    ) -> None:
        """vocabulary_size: real token ids; columns beyond it are padding and never drawn.
        sampled_rule: TOKEN or BLOCK, for unseeded sampled requests with a model's drafts."""
        self._runner = runner
        self._sampled_rule = sampled_rule
        self._block_size = block_size
        self._vocabulary_size = vocabulary_size

    def score(self, entries: Many[PlanEntry], draft_ids: Many[Many[int]]) -> Scores:
        """One forward pass over prefill chunks, decodes and verifications together."""
        segments, sampled, first_rows, first_tokens, num_certain = [], [], [], [], []
        num_rows = num_tokens = 0
        for index, (entry, drafted) in enumerate(zip(entries, draft_ids, strict=True)):
            sequence = entry.sequence
            start = sequence.num_computed
            tokens = sequence.token_ids[start : start + entry.num_target_tokens]
            tokens.extend(drafted)
            num_logits = 0
            if entry.completes and sequence.request.max_new_tokens > 0:
                certain = len(drafted) if _is_certain(entry) else 0
                num_logits = 1 + len(drafted) - certain
                sampled.append(index)
                first_rows.append(num_rows)
                num_certain.append(certain)
            segments.append(Segment(tokens, start, sequence.block_table, num_logits))
            first_tokens.append(num_tokens)
            num_rows += num_logits
            num_tokens += len(tokens)
        output = self._runner.forward(pack(segments, self._block_size))
        return Scores(
            output.logits[:, : self._vocabulary_size],
            tuple(sampled),
            tuple(first_rows),
            tuple(num_certain),
            tuple(first_tokens),
            num_tokens,
            output.features,
        )

    @torch.inference_mode()
    def accept(self, entries: Many[PlanEntry], proposal: Proposal, scores: Scores) -> Verdict:
        """The outcome for each sampled entry."""
        logits = scores.logits
        sequences = [entries[index].sequence for index in scores.sampled]
        params = [sequence.request.sampling for sequence in sequences]
        certain = scores.num_certain
        edits = [
            (first, sequence.constraint.fork(proposal.draft_ids[index], first=count))
            for first, index, sequence, count in zip(
                scores.first_rows, scores.sampled, sequences, certain, strict=True
            )
            if sequence.constraint is not None
        ]
        if edits:
            logits = apply_edits(logits, RowEdits.join(edits))
        if all(each.is_greedy and each.top_logprobs is None for each in params):
            drafts = tuple(
                () if count else proposal.draft_ids[index]
                for index, count in zip(scores.sampled, certain, strict=True)
            )
            return GreedyVerdict(*highest(logits), drafts, scores.first_rows, certain)
        drafted = _drafted(proposal, scores)
        keys = NoiseKeys(
            seeds=np.array([sequence.seed for sequence in sequences], dtype=np.uint64),
            positions=np.array([s.num_tokens for s in sequences]) + np.array(certain),
            rounds=np.array([sequence.round for sequence in sequences]),
        )
        acceptance, is_usable = verify(logits, drafted, params, keys, self._sampled_rule)
        num_top = tuple(p.top_logprobs for p in params)
        logprobs = _logprobs(scores.logits, num_top, drafted, acceptance)
        num_drafted = tuple(drafted.num_drafted.tolist())
        return DrawnVerdict(acceptance, is_usable, num_drafted, certain, num_top, logprobs)


def _is_certain(entry: PlanEntry) -> bool:
    """Whether what is drafted for it will be accepted whatever the target says: under its grammar
    the target gives each of these tokens probability 1, unless the request rules tokens out, and
    nobody wants to know what the target thought of them."""
    sampling = entry.sequence.request.sampling
    forbids = sampling.banned_token_ids or sampling.min_tokens
    return bool(entry.forced) and not forbids and sampling.top_logprobs is None


def _drafted(proposal: Proposal, scores: Scores) -> Drafted:
    """What is left to verify: nothing of a sequence whose draft is certain."""
    pairs: list[tuple[Many[int], Many[int]]] = [
        ((), ()) if count else (proposal.draft_ids[index], proposal.row_index[index])
        for index, count in zip(scores.sampled, scores.num_certain, strict=True)
    ]
    drafts = [draft for draft, _ in pairs]
    depth = max(len(draft) for draft in drafts)
    padded = [[*draft, *[0] * (depth - len(draft))] for draft in drafts]
    row_index = [[*places, *[-1] * (depth - len(places))] for _, places in pairs]
    shape = (len(drafts), depth)
    device = scores.logits.device
    return Drafted(
        draft_ids=torch.from_numpy(np.array(padded, dtype=np.int64).reshape(shape)).to(device),
        num_drafted=np.array([len(draft) for draft in drafts], dtype=np.int64),
        first_rows=np.array(scores.first_rows, dtype=np.int64),
        rows=proposal.rows,
        row_index=np.array(row_index, dtype=np.int64).reshape(shape),
        vocab_ids=proposal.vocab_ids,
    )


def _logprobs(
    logits: Tensor, num_top: Many[int | None], drafted: Drafted, acceptance: Acceptance
) -> RowLogprobs | None:
    """Those of the emitted tokens of the sequences that asked, packed in their order.

    logits: as the model gave them, before any edit.
    """
    members = np.array([index for index, count in enumerate(num_top) if count is not None])
    if not len(members):
        return None
    at = drafted.tensor(members)
    num_accepted = acceptance.num_accepted[at]
    place = torch.arange(drafted.depth + 1, device=logits.device).expand(len(members), -1)
    # Row i is followed by drafted token i where that was accepted, by the next token where not.
    tokens = torch.nn.functional.pad(drafted.draft_ids, (0, 1))[at]
    tokens = torch.where(place < num_accepted[:, None], tokens, acceptance.next_token[at, None])
    rows = drafted.tensor(drafted.first_rows)[at, None] + place
    is_emitted = place <= num_accepted[:, None]
    top = max(count or 0 for count in num_top)
    return row_logprobs(logits[rows[is_emitted]], tokens[is_emitted], top)
