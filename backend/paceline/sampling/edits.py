"""Applying `RowEdits` to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from paceline.sampling.grammar_masks import masked

if TYPE_CHECKING:
    from paceline.sampling.constraints import Entries, RowEdits


def apply_edits(logits: Tensor, edits: RowEdits, vocab_ids: Tensor | None = None) -> Tensor:
    """The edited logits in float32; a copy.

    Args:
        logits: [R, V], any float type.
        edits: rows count from 0 to R - 1.
        vocab_ids: int64 [V], the token of each column, rising; None where column c is token c.
    """
    has_entries = any(len(part.rows) for part in (edits.repeated, edits.added, edits.forbidden))
    # A grammar alone, which is the usual case, needs one pass over the rows.
    if has_entries or not len(edits.allowed.rows):
        logits = _with_entries(logits, edits, vocab_ids)
    return masked(logits, edits.allowed, vocab_ids) if len(edits.allowed.rows) else logits


def _with_entries(logits: Tensor, edits: RowEdits, vocab_ids: Tensor | None) -> Tensor:
    edited = logits.to(torch.float32, copy=True)
    if len(edits.repeated.rows):
        rows, columns, values = _columns(edits.repeated, edited, vocab_ids)
        found = edited[rows, columns]
        edited[rows, columns] = torch.where(found > 0, found / values, found * values)
    if len(edits.added.rows):
        rows, columns, values = _columns(edits.added, edited, vocab_ids)
        edited.index_put_((rows, columns), values, accumulate=True)
    if len(edits.forbidden.rows):
        rows, columns, _ = _columns(edits.forbidden, edited, vocab_ids)
        edited[rows, columns] = float("-inf")
    return edited


def _columns(
    entries: Entries, logits: Tensor, vocab_ids: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, columns and values of the entries that have a column."""
    device = logits.device
    rows, ids, values = (
        torch.from_numpy(part).to(device)
        for part in (entries.rows, entries.token_ids, entries.values)
    )
    if vocab_ids is None:
        return rows, ids, values
    columns = torch.searchsorted(vocab_ids, ids).clamp_max(len(vocab_ids) - 1)
    is_known = vocab_ids[columns] == ids
    return rows[is_known], columns[is_known], values[is_known]
