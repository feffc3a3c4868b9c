"""Training batches: sequences drawn from shards and packed into rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paceline.training.loss import TargetRows, target_probabilities
from paceline.training.target_states import read_states
from paceline.training.token_store import TokenStore
from paceline.training.unroll import PackedRows

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

    from torch import Tensor

    from paceline.training.target_states import TargetStates
    from paceline.training.token_store import TokenShard

PROMPT_PART = 0.4
"""Part of the rows that predict a token of the prompt and are trained on: the same function, other
traffic. Leaving rows out rather than weighing them less saves their share of the output layer,
which is half of all work."""


@dataclass(frozen=True, slots=True)
class Batch:
    """All rows of each sequence, packed; row ``i`` predicts what follows token ``i``.

    ``chosen [C]``: the rows that are judged, ascending; ``target`` is what the target says at
    those. ``answer [N]`` bool: the token that follows is part of the answer. ``next_ids [N]``: the
    token that follows, -1 at the end. ``temperatures``: one a sequence.
    """

    rows: PackedRows
    chosen: Tensor
    target: TargetRows
    answer: Tensor
    next_ids: Tensor
    temperatures: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class _Shard:
    tokens: TokenShard
    states: TargetStates
    starts: tuple[int, ...]


class BatchSource:
    """Sequences of all shards that have both tokens and states.

    ``output_ids [D]``: the draft's ids; ``output_weight [D, H]``: the target's rows for them, on
    the device that batches are wanted on.
    """

    def __init__(
        self,
        feature_layers: Sequence[int],
        output_ids: Tensor,
        output_weight: Tensor,
        vocabulary_size: int,
        rng: random.Random,
    ) -> None:
        device = output_weight.device
        self._device = device
        self._feature_layers = tuple(feature_layers)
        self._output_weight = output_weight
        self._columns = torch.full((vocabulary_size,), -1, dtype=torch.long, device=device)
        self._columns[output_ids] = torch.arange(len(output_ids), device=device)
        self._rng = rng
        self._shards: list[_Shard] = []
        self.training: list[tuple[int, int]] = []
        self.held_out: list[tuple[int, int]] = []
        self._uses: dict[tuple[int, int], int] = {}

    def add(self, tokens: Path, states: Path) -> None:
        """Map one more shard."""
        shard = TokenStore.read(tokens)
        starts = [0]
        for length in shard.lengths:
            starts.append(starts[-1] + length)
        number = len(self._shards)
        self._shards.append(_Shard(shard, read_states(states, self._feature_layers), tuple(starts)))
        for index in range(len(shard.lengths)):
            chosen = self.held_out if shard.is_held_out(index) else self.training
            chosen.append((number, index))

    def sequence(self, reference: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Token ids ``[n]`` and features ``[n, F, H]`` of one sequence."""
        shard, where = self._locate(reference)
        ids = shard.tokens.token_ids[where].long().to(self._device)
        return ids, shard.states.features[where].to(self._device)

    def final_states(self, reference: tuple[int, int]) -> Tensor:
        """The target's states [n, H] after the final norm, where the next token is an answer's."""
        shard, where = self._locate(reference)
        _, index = reference
        first = shard.tokens.prompt_lengths[index] - 1
        return shard.states.final[where][max(0, first) : -1].to(self._device)

    def draw(self, num_sequences: int) -> Batch:
        """A random batch for training that prefers sequences seen less often."""
        least = min(self._uses.get(reference, 0) for reference in self.training)
        chosen: list[tuple[int, int]] = []
        while len(chosen) < num_sequences:
            reference = self._rng.choice(self.training)
            uses = self._uses.get(reference, 0)
            if self._rng.random() < 0.4 ** (uses - least):
                chosen.append(reference)
                self._uses[reference] = uses + 1
        return self.pack(chosen, prompt_part=PROMPT_PART)

    def pack(self, references: Sequence[tuple[int, int]], *, prompt_part: float = 1.0) -> Batch:
        """These sequences as a batch, judged on all answer rows and on a random part of others."""
        ids, features, positions, lengths, finals = [], [], [], [], []
        normalisers, greedy, answer, following, temperatures = [], [], [], [], []
        for reference in references:
            shard, where = self._locate(reference)
            _, index = reference
            tokens = shard.tokens.token_ids[where].long()
            states, count = shard.states, len(tokens)
            known = states.features[where]
            ids.append(tokens)
            features.append(torch.cat((torch.zeros_like(known[:1]), known[:-1])))
            positions.append(torch.arange(count))
            lengths.append(count)
            finals.append(states.final[where])
            normalisers.append(states.log_normaliser[where])
            greedy.append(states.greedy[where])
            follower = torch.arange(1, count + 1)
            first = shard.tokens.prompt_lengths[index]
            answer.append((follower >= first) & (follower < count))
            following.append(torch.cat((tokens[1:], torch.tensor([-1]))))
            temperatures.append(shard.tokens.temperatures[index])
        is_answer = self._gather(answer)
        part = torch.where(is_answer, 1.0, prompt_part)
        judged = (torch.rand(len(part), device=self._device) < part).nonzero()[:, 0]
        probabilities = target_probabilities(
            self._gather(finals)[judged], self._output_weight, self._gather(normalisers)[judged]
        )
        return Batch(
            PackedRows(self._gather(ids), self._gather(features), self._gather(positions), lengths),
            judged,
            TargetRows(probabilities, self._columns[self._gather(greedy)[judged].long()]),
            is_answer,
            self._gather(following),
            tuple(temperatures),
        )

    def columns(self, token_ids: Tensor) -> Tensor:
        """Columns of the draft's output for token ids, -1 where there is none (and for -1)."""
        return torch.where(token_ids >= 0, self._columns[token_ids.clamp_min(0)], -1)

    def _gather(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts).to(self._device)

    def _locate(self, reference: tuple[int, int]) -> tuple[_Shard, slice]:
        number, index = reference
        shard = self._shards[number]
        return shard, slice(shard.starts[index], shard.starts[index + 1])
