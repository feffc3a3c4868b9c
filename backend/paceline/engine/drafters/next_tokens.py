"""Sampling of drafted tokens, for every drafter that has distributions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.sampling.constraints import RowEdits
from paceline.sampling.edits import apply_edits
from paceline.sampling.verification import DraftedTokens, NoiseKeys, draft_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.sequence import Sequence


def next_tokens(
    logits: Tensor,
    tokens_of_peaks: Tensor,
    sequences: Many[Sequence],
    drafted: Many[Many[int]],
    vocabulary_size: int,
    vocab_ids: Tensor | None = None,
) -> DraftedTokens:
    """One more token for the draft of each sequence, edited and warped as the target's rows are.

    Args:
        logits: [N, V], one finite row for each sequence.
        tokens_of_peaks: int64 [N], the lowest index of the highest logit of each row.
        drafted: ids of the target's vocabulary that each draft already has.
        vocabulary_size: of the target.
        vocab_ids: int64 [V], the target's id of each column, rising; None where they are equal.
    """
    edits = [
        (row, sequence.constraint.fork(ids, first=len(ids)))
        for row, (sequence, ids) in enumerate(zip(sequences, drafted, strict=True))
        if sequence.constraint is not None
    ]
    if edits:
        edited = apply_edits(logits, RowEdits.join(edits), vocab_ids)
        # What the target may say can be outside a draft's vocabulary; any draft is as good then.
        is_empty = edited.amax(-1, keepdim=True) == float("-inf")
        logits = torch.where(is_empty, logits.to(torch.float32), edited)
    positions = [
        sequence.num_tokens + len(ids) for sequence, ids in zip(sequences, drafted, strict=True)
    ]
    keys = NoiseKeys(
        seeds=np.array([sequence.seed for sequence in sequences], dtype=np.uint64),
        positions=np.array(positions, dtype=np.int64),
        rounds=np.array([sequence.round for sequence in sequences], dtype=np.int64),
    )
    params = [sequence.request.sampling for sequence in sequences]
    highest = None if edits else tokens_of_peaks
    return draft_tokens(logits, params, keys, vocabulary_size, vocab_ids, highest)
