"""What the target computes on training sequences: features and distributions, kept compactly.

A position's distribution over the vocabulary is not stored: the target's state after the final norm
and one number, the log-sum-exp of its logits, give the probability of any id with one row of the
output layer. The final norm is usually one of the features anyway, so a position costs
``len(feature_layers)`` (or one more) rows of the hidden size in 16 bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import safe_open

from paceline.model.features import FINAL_NORM, FeatureTap
from paceline.training.token_store import TokenStore, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

_VOCABULARY_CHUNK = 4096
_ROW_CHUNK = 256


@dataclass(frozen=True, slots=True)
class TargetStates:
    """Of ``N`` positions: ``features [N, F, H]``, ``final [N, H]`` (after the final norm), both in
    the target's dtype; ``log_normaliser [N]`` float32; ``greedy [N]`` int32, the argmax id."""

    features: Tensor
    final: Tensor
    log_normaliser: Tensor
    greedy: Tensor


class TargetEncoder:
    """Runs the target over whole sequences.

    ``model``: loaded with an attention of transformers itself ("sdpa"), not Paceline's paged one.
    ``feature_layers``: as in `FeatureTap`.
    """

    def __init__(self, model: PreTrainedModel, feature_layers: Sequence[int]) -> None:
        self._model = cast("Any", model)
        self.feature_layers = tuple(feature_layers)
        self._tap = FeatureTap(model, (*self.feature_layers, FINAL_NORM))
        self.output_weight: Tensor = self._model.get_output_embeddings().weight
        self.embedding: Tensor = self._model.get_input_embeddings().weight

    @torch.inference_mode()
    def encode(self, sequence: Tensor) -> TargetStates:
        """States of one sequence, token ids ``[length]``."""
        self._tap.begin()
        self._model.base_model(input_ids=sequence.to(self.embedding.device)[None], use_cache=False)
        tapped = self._tap.take()
        assert tapped is not None
        parts = tapped.view(len(tapped), -1, self.embedding.shape[1])
        final = parts[:, -1]
        normaliser, greedy = log_normaliser(final, self.output_weight)
        return TargetStates(parts[:, :-1], final, normaliser, greedy.int())

    def encode_shard(
        self, tokens: Path, destination: Path, checkpoint: Callable[[], None] = lambda: None
    ) -> None:
        """States of a token shard into a file of their own; ``checkpoint`` is called after every
        sequence and may raise to stop."""
        ordered = []
        for sequence in TokenStore.read(tokens).sequences():
            ordered.append(self.encode(sequence))
            checkpoint()
        tensors = {
            "log_normaliser": torch.cat([item.log_normaliser for item in ordered]),
            "greedy": torch.cat([item.greedy for item in ordered]),
            "features": torch.cat([item.features for item in ordered]),
        }
        if FINAL_NORM not in self.feature_layers:
            tensors["final"] = torch.cat([item.final for item in ordered])
        layers = ",".join(map(str, self.feature_layers))
        write_atomically(
            {name: tensor.cpu() for name, tensor in tensors.items()},
            destination,
            {"feature_layers": layers},
        )


def read_states(path: Path, feature_layers: Sequence[int]) -> TargetStates:
    """A shard's states, mapped from the file rather than read.

    Raises ``ValueError`` when they were made for other layers.
    """
    with safe_open(path, "pt") as file:
        layers = ",".join(map(str, feature_layers))
        found = (file.metadata() or {}).get("feature_layers")
        if found != layers:
            raise ValueError(f"{path} holds features of layers {found}, not {layers}")
        features = file.get_tensor("features")
        if FINAL_NORM in feature_layers:
            final = features[:, list(feature_layers).index(FINAL_NORM)]
        else:
            final = file.get_tensor("final")
        return TargetStates(
            features, final, file.get_tensor("log_normaliser"), file.get_tensor("greedy")
        )


def log_normaliser(hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Log-sum-exp (float32) and argmax of ``hidden [N, H] @ weight.T [H, V]``, both ``[N]``.

    In blocks that stay in the processor's caches: with a large vocabulary this takes half the time
    of one product followed by the reductions. Ties go to the lowest id.
    """
    normalisers, winners = [], []
    for rows in torch.split(hidden, _ROW_CHUNK):
        largest, sums, indices = [], [], []
        for block, columns in enumerate(torch.split(weight, _VOCABULARY_CHUNK)):
            logits = (rows @ columns.T).float()
            top = logits.amax(-1)
            position = (logits == top[:, None]).to(torch.int8).argmax(-1)
            largest.append(top)
            sums.append(logits.sub_(top[:, None]).exp_().sum(-1))
            indices.append(position + block * _VOCABULARY_CHUNK)
        tops = torch.stack(largest, 1)
        best, block_of = tops.max(1)
        scaled = torch.stack(sums, 1) * (tops - best[:, None]).exp()
        normalisers.append(best + scaled.sum(1).log())
        winners.append(torch.stack(indices, 1).gather(1, block_of[:, None])[:, 0])
    return torch.cat(normalisers), torch.cat(winners)
