"""The target's side of a step: one packed forward pass, and what it decides about the drafts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.model.batch import Segment, pack
from paceline.sampling.acceptance import (
    Acceptance,
    Drafted,
    acceptance_law,
    draw,
    greedy_acceptance,
)
from paceline.sampling.randomness import Purpose, uniforms
from paceline.sampling.warping import WarpParameters, argmax_lowest, warp

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.drafters.interface import Proposal
    from paceline.engine.plan import PlanEntry
    from paceline.engine.runner import Runner


@dataclass(frozen=True, slots=True)
class Scores:
    """The target's view of a step. Rows of logits are packed by sampled entry, in plan order.

    logits: [R, V]. sampled: entries that get a new token, with their drafted ids. first_rows: where
    each one's rows begin. features: [T, F] of all packed tokens; first_tokens[i] is where entry i
    of the plan begins in them.
    """

    logits: Tensor
    sampled: tuple[int, ...]
    first_rows: tuple[int, ...]
    first_tokens: tuple[int, ...]
    num_tokens: int
    features: Tensor | None


class Verifier:
    """Scores known and drafted tokens with the target and draws what follows."""

    def __init__(self, runner: Runner, *, block_size: int, vocabulary_size: int) -> None:
        """vocabulary_size: real token ids; columns beyond it are padding and never drawn."""
        self._runner = runner
        self._block_size = block_size
        self._vocabulary_size = vocabulary_size

    def score(self, entries: Many[PlanEntry], draft_ids: Many[Many[int]]) -> Scores:
        """One forward pass over prefill chunks, decodes and verifications together."""
        segments, sampled, first_rows, first_tokens = [], [], [], []
        num_rows = num_tokens = 0
        for index, (entry, drafted) in enumerate(zip(entries, draft_ids, strict=True)):
            sequence = entry.sequence
            start = sequence.num_computed
            tokens = sequence.token_ids[start : start + entry.num_target_tokens]
            tokens.extend(drafted)
            num_logits = 0
            if entry.completes and sequence.request.max_new_tokens > 0:
                num_logits = 1 + len(drafted)
                sampled.append(index)
                first_rows.append(num_rows)
            segments.append(Segment(tokens, start, sequence.block_table, num_logits))
            first_tokens.append(num_tokens)
            num_rows += num_logits
            num_tokens += len(tokens)
        output = self._runner.forward(pack(segments, self._block_size))
        return Scores(
            output.logits[:, : self._vocabulary_size],
            tuple(sampled),
            tuple(first_rows),
            tuple(first_tokens),
            num_tokens,
            output.features,
        )

    @torch.inference_mode()
    def accept(
        self, entries: Many[PlanEntry], proposal: Proposal, scores: Scores
    ) -> tuple[Acceptance, Tensor]:
        """The outcome for each sampled entry, and whether all of its rows were usable: bool [B]."""
        device = scores.logits.device
        sequences = [entries[index].sequence for index in scores.sampled]
        drafts = [proposal.draft_ids[index] for index in scores.sampled]
        lengths = [len(draft) for draft in drafts]
        depth = max(lengths)
        padded = [list(draft) + [0] * (depth - len(draft)) for draft in drafts]
        index = [
            list(proposal.row_index[i]) + [-1] * (depth - len(proposal.row_index[i]))
            for i in scores.sampled
        ]
        drafted = Drafted(
            draft_ids=_int_tensor(padded, depth, device),
            num_drafted=torch.tensor(lengths, dtype=torch.int64, device=device),
            rows=proposal.rows,
            row_index=_int_tensor(index, depth, device),
            vocab_ids=proposal.vocab_ids,
        )
        first_rows = torch.tensor(scores.first_rows, dtype=torch.int64, device=device)
        owner = torch.repeat_interleave(drafted.num_drafted + 1)
        finite = torch.isfinite(scores.logits.amax(-1))
        num_broken = torch.zeros(len(lengths), dtype=torch.int64, device=device)
        num_broken.index_add_(0, owner, (~finite).to(torch.int64))
        is_usable = num_broken == 0
        logits = torch.where(finite[:, None], scores.logits, 0)
        params = [sequence.request.sampling for sequence in sequences]
        if all(p.is_greedy for p in params):
            return greedy_acceptance(argmax_lowest(logits), first_rows, drafted), is_usable
        parameters = WarpParameters.of(params, device)
        law = acceptance_law(warp(logits, parameters.take(owner)), first_rows, drafted)
        seeds = np.array([sequence.seed for sequence in sequences], dtype=np.uint64)
        starts = np.array([sequence.num_tokens for sequence in sequences])
        rounds = np.array([sequence.round for sequence in sequences])
        # The token after n accepted ones has its own position, so its noise is keyed by that of the
        # round's first token: one residual and one bonus draw a round, whatever n turns out to be.
        columns = (
            uniforms(
                seeds[:, None], starts[:, None] + np.arange(depth), rounds[:, None], Purpose.ACCEPT
            ),
            uniforms(seeds, starts, rounds, Purpose.RESIDUAL),
            uniforms(seeds, starts, rounds, Purpose.BONUS),
        )
        accept, residual, bonus = (torch.from_numpy(noise).to(device) for noise in columns)
        return draw(law, accept, residual, bonus), is_usable


def _int_tensor(rows: list[list[int]], width: int, device: torch.device) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=device).view(len(rows), width)
