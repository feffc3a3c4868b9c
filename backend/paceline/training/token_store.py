"""Token ids of training sequences, in shards on disk.

A shard is a safetensors file written whole under a temporary name and then renamed, so whatever is
there is complete, and a run that stops loses at most the sequences of one unwritten shard.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from safetensors.torch import save_file

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

SHARD_TOKENS = 1 << 16
HELD_OUT_EVERY = 20
"""One sequence in twenty is never trained on."""


@dataclass(frozen=True, slots=True)
class TokenSequence:
    """One prompt with its answer. ``token_ids[num_prompt:]`` were sampled from the target at
    ``temperature``."""

    token_ids: tuple[int, ...]
    num_prompt: int
    temperature: float


@dataclass(frozen=True, slots=True)
class TokenShard:
    """Sequences one after the other.

    ``token_ids [N]`` int32; ``lengths``, ``prompt_lengths``, ``temperatures``: one a sequence;
    ``first``: number of the shard's first sequence over all shards.
    """

    token_ids: Tensor
    lengths: tuple[int, ...]
    prompt_lengths: tuple[int, ...]
    temperatures: tuple[float, ...]
    first: int

    def sequences(self) -> list[Tensor]:
        """Token ids ``[length]`` int64 of each sequence."""
        return list(torch.split(self.token_ids.long(), list(self.lengths)))

    def is_held_out(self, index: int) -> bool:
        """Whether the ``index``-th sequence is for judging alone."""
        return (self.first + index) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1


class TokenStore:
    """The shards of one folder, and sequences on their way into the next.

    ``shard_tokens``: a shard is written once it holds so many.
    """

    def __init__(self, folder: Path, *, shard_tokens: int = SHARD_TOKENS) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._shard_tokens = shard_tokens
        self._pending: list[TokenSequence] = []
        self.num_sequences = 0
        self.num_answer_tokens = 0
        for path in self.paths():
            shard = self.read(path)
            self.num_sequences += len(shard.lengths)
            self.num_answer_tokens += sum(shard.lengths) - sum(shard.prompt_lengths)

    def paths(self) -> list[Path]:
        """Complete shards, oldest first."""
        return sorted(self._folder.glob("tokens-*.safetensors"))

    def add(self, sequence: TokenSequence) -> None:
        """Keep a sequence; writes a shard when enough are pending. One without an answer is left
        out."""
        if len(sequence.token_ids) - sequence.num_prompt < 1 or len(sequence.token_ids) < 3:
            return
        self._pending.append(sequence)
        if sum(len(pending.token_ids) for pending in self._pending) >= self._shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as a shard, however small."""
        if not self._pending:
            return
        pending, self._pending = self._pending, []
        tensors = {
            "token_ids": torch.tensor(
                [token for item in pending for token in item.token_ids], dtype=torch.int32
            ),
            "lengths": torch.tensor([len(item.token_ids) for item in pending]),
            "prompt_lengths": torch.tensor([item.num_prompt for item in pending]),
            "temperatures": torch.tensor([item.temperature for item in pending]),
            "first": torch.tensor(self.num_sequences),
        }
        path = self._folder / f"tokens-{len(self.paths()):05d}.safetensors"
        write_atomically(tensors, path)
        self.num_sequences += len(pending)
        self.num_answer_tokens += sum(len(item.token_ids) - item.num_prompt for item in pending)

    @staticmethod
    def read(path: Path) -> TokenShard:
        """One shard from disk."""
        with safe_open(path, "pt") as file:
            return TokenShard(
                token_ids=file.get_tensor("token_ids"),
                lengths=tuple(file.get_tensor("lengths").tolist()),
                prompt_lengths=tuple(file.get_tensor("prompt_lengths").tolist()),
                temperatures=tuple(file.get_tensor("temperatures").tolist()),
                first=int(file.get_tensor("first")),
            )


def write_atomically(
    tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None
) -> None:
    """A safetensors file that is either whole or not there."""
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata)
    partial.replace(path)
