"""Running a draft head over training sequences, depth by depth.

While drafting, depth 1 sees the target's true features of the prefix, and every further depth sees
the head's own hidden state in place of the features that don't exist yet. Training must see the
same ("training-time test" of EAGLE-3, arXiv 2503.01840). At depth ``d`` every row ``i`` is a row of
a draft that began ``d - 1`` positions earlier: its input is the head's hidden row ``i - 1`` of
depth ``d - 1``, and it attends to the true (depth 1) rows up to ``i - d + 1``, then to the rows
``i - d + 2 .. i`` of depths ``2 .. d``.

All depths of all positions are computed at once; a batch is packed without padding.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.model.draft_head import DraftModule


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of several sequences, one after the other.

    ``token_ids [N]``, ``features [N, F, H]`` of the position *before* each row (zero for row 0,
    which has none and so takes nothing in), ``positions [N]``, ``lengths``: rows of each sequence.
    """

    token_ids: Tensor
    features: Tensor
    positions: Tensor
    lengths: Sequence[int]


@dataclass(slots=True)
class _UnrolledAttention:
    """Attention of one depth after another; keeps each layer's keys and values of all depths."""

    lengths: Sequence[int]
    past: dict[int, tuple[list[Tensor], list[Tensor]]] = field(default_factory=dict)

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = self.past.setdefault(layer, ([], []))
        keys.append(key)
        values.append(value)
        groups = query.shape[1] // key.shape[1]
        outputs = []
        start = 0
        for length in self.lengths:
            rows = slice(start, start + length)
            outputs.append(
                _attend_one(query[rows], [k[rows] for k in keys], [v[rows] for v in values], groups)
            )
            start += length
        return torch.cat(outputs)


def _attend_one(query: Tensor, keys: list[Tensor], values: list[Tensor], groups: int) -> Tensor:
    """One sequence: ``query [n, heads, dim]``; entry ``e`` of ``keys`` is depth ``e + 1``."""
    depth, length = len(keys), len(query)
    heads_first = query.transpose(0, 1).reshape(-1, groups, length, query.shape[-1])
    true_keys, true_values = keys[0].transpose(0, 1), values[0].transpose(0, 1)
    if depth == 1:
        return functional.scaled_dot_product_attention(
            query.transpose(0, 1)[None],
            true_keys[None],
            true_values[None],
            is_causal=True,
            enable_gqa=True,
        )[0].transpose(0, 1)
    scale = query.shape[-1] ** -0.5
    # [kv heads, groups, n, n]: the true rows, up to depth - 1 positions back.
    scores = (heads_first @ true_keys[:, None].transpose(-1, -2)).float() * scale
    index = torch.arange(length, device=query.device)
    visible = index[None, :] <= index[:, None] - (depth - 1)
    scores = scores.masked_fill(~visible, float("-inf"))
    own_scores, own_values = [], []
    for earlier in range(1, depth):
        back = depth - 1 - earlier
        own_key, own_value = _shifted(keys[earlier], back), _shifted(values[earlier], back)
        score = (heads_first * own_key.transpose(0, 1)[:, None]).sum(-1).float() * scale
        # Rows too early for a draft of this depth see nothing but themselves.
        own_scores.append(score if back == 0 else score.masked_fill(index < back, float("-inf")))
        own_values.append(own_value.transpose(0, 1)[:, None])
    weights = torch.cat((scores, torch.stack(own_scores, -1)), dim=-1).softmax(-1).to(query.dtype)
    attended = weights[..., :length] @ true_values[:, None]
    for earlier, own_value in enumerate(own_values):
        attended = attended + weights[..., length + earlier, None] * own_value
    return attended.flatten(0, 1).transpose(0, 1)


def _shifted(rows: Tensor, back: int) -> Tensor:
    """Row ``i - back`` in place of row ``i``; the first ``back`` rows are zero."""
    if back == 0:
        return rows
    return torch.cat((torch.zeros_like(rows[:back]), rows[:-back]))


def unroll(head: DraftModule, batch: PackedRows, depth: int) -> list[Tensor]:
    """Hidden rows ``[N, hidden_size]`` of depths ``1 .. depth``.

    Entry ``d - 1``, row ``i`` predicts the token after row ``i`` as the ``d``-th token of a draft.
    The first ``d - 1`` rows of a sequence have no draft that long before them: leave them out
    (:func:`rows_with_depth`).
    """
    tokens = head.embed(batch.token_ids)
    attention = _UnrolledAttention(batch.lengths)
    if not head.has_features:
        # A decoder's rows are functions of the tokens: every depth is the first.
        return [head(tokens, batch.positions, attention)] * depth
    hidden = head(tokens + head.condition(batch.features), batch.positions, attention)
    states = [hidden]
    for _ in range(1, depth):
        # Row i takes the hidden row i - 1. Across sequence borders this mixes rows that
        # `rows_with_depth` leaves out.
        hidden = head(tokens + head.recur(_shifted(hidden, 1)), batch.positions, attention)
        states.append(hidden)
    return states


def rows_with_depth(
    lengths: Sequence[int], depth: int, device: torch.device | None = None
) -> Tensor:
    """``[N]`` bool: the rows that have a draft of ``depth`` behind them."""
    return torch.cat([torch.arange(length, device=device) >= depth - 1 for length in lengths])
