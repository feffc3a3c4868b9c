"""Applying `RowEdits` to logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from paceline.sampling.constraints import AllowedTokens, Entries, RowEdits


def apply_edits(logits: Tensor, edits: RowEdits, vocab_ids: Tensor | None = None) -> Tensor:
    """The edited logits in float32; a copy.

    Args:
        logits: [R, V], any float type.
        edits: rows count from 0 to R - 1.
        vocab_ids: int64 [V], the token of each column, rising; None where column c is token c.
    """
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
    if len(edits.allowed.rows):
        at = torch.from_numpy(edits.allowed.rows).to(edited.device)
        is_allowed = _unpacked(edits.allowed, edited.device)
        if vocab_ids is not None:
            is_allowed = is_allowed[:, vocab_ids]
        is_allowed = is_allowed[:, : edited.shape[1]]
        edited[at] = edited[at].masked_fill(~is_allowed, float("-inf"))
    return edited


def _unpacked(allowed: AllowedTokens, device: torch.device) -> Tensor:
    """Bool [N, V], V rounded up to a multiple of 32."""
    octets = torch.from_numpy(allowed.bits.view("uint8")).to(device)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return ((octets[:, :, None] >> shifts) & 1).to(torch.bool).flatten(1)


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
