"""Tiny draft modules, and a driver that runs one as its docstring says an engine should."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from paceline.model.draft_head import DraftModule, DraftModuleConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VOCABULARY, HIDDEN, OUTPUTS = 40, 16, 12


def tiny_module(
    seed: int = 0, *, features: tuple[int, ...] = (0, 2, -1), layers: int = 1
) -> DraftModule:
    """Random float64 weights, so that comparisons can be strict."""
    torch.manual_seed(seed)
    config = DraftModuleConfig(
        hidden_size=HIDDEN,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=4,
        num_output_ids=OUTPUTS,
        feature_layers=features,
        num_layers=layers,
    )
    return DraftModule(config, torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64)).double()


def embedding_of(model: PreTrainedModel) -> Tensor:
    """The input embedding of a target."""
    embedding: Any = model.get_input_embeddings()
    weight: Tensor = embedding.weight
    return weight


@dataclass
class CachedAttention:
    """Attention over one growing K/V cache a layer, one sequence."""

    keys: dict[int, Tensor] = field(default_factory=dict)
    values: dict[int, Tensor] = field(default_factory=dict)
    length: int = 0

    def truncate(self, length: int) -> None:
        self.length = length
        self.keys = {layer: rows[:length] for layer, rows in self.keys.items()}
        self.values = {layer: rows[:length] for layer, rows in self.values.items()}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        empty = key[:0]
        keys = torch.cat((self.keys.get(layer, empty), key))
        values = torch.cat((self.values.get(layer, empty), value))
        self.keys[layer], self.values[layer] = keys, values
        before, groups = len(keys) - len(query), query.shape[1] // key.shape[1]
        output = torch.empty_like(query)
        for row in range(len(query)):
            for head in range(query.shape[1]):
                seen = slice(0, before + row + 1)
                scores = keys[seen, head // groups] @ query[row, head] * query.shape[-1] ** -0.5
                output[row, head] = scores.softmax(0) @ values[seen, head // groups]
        return output


@dataclass
class Driver:
    """Drives a module over one sequence: true rows, then drafted rows, then back."""

    module: DraftModule
    attention: CachedAttention = field(default_factory=CachedAttention)
    num_true: int = 0

    def extend(self, ids: Tensor, features: Tensor) -> Tensor:
        """Compute the true rows up to the end of ``ids [n]``, given features of all positions
        before; returns the last hidden row."""
        self.attention.truncate(self.num_true)
        positions = torch.arange(self.num_true, len(ids))
        inputs: Tensor = self.module.embed(ids[positions])
        if self.module.has_features:
            known = torch.cat((torch.zeros_like(features[:1]), features))
            inputs = inputs + self.module.condition(known[positions])
        hidden: Tensor = self.module(inputs, positions, self.attention)
        self.num_true = len(ids)
        return hidden[-1]

    def draft(self, hidden: Tensor, token: Tensor, position: int) -> Tensor:
        """One drafted row."""
        inputs = self.module.embed(token[None])
        if self.module.has_features:
            inputs = inputs + self.module.recur(hidden[None])
        row: Tensor = self.module(inputs, torch.tensor([position]), self.attention)[0]
        return row
