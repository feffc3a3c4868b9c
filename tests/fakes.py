"""A model whose every conditional distribution is written down, over K/V memory that can be read.

`TableRunner` keeps token ids where a real model keeps keys and values, and reads the whole prefix
of each row back through the block table before it looks its distribution up. A block that was
shared, rolled back or handed on wrongly therefore changes its output.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.model.runner import ForwardOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy.typing as npt

    from paceline.model.batch import PackedBatch

    Row = npt.NDArray[np.float64]
    Table = Callable[[tuple[int, ...]], Row]

EMPTY = -1


class TableRunner:
    """Logits are the logarithm of `table(prefix)`; the prefix is what its memory holds."""

    def __init__(self, table: Table, num_blocks: int, block_size: int) -> None:
        self._table = table
        self.memory = np.full((num_blocks, block_size), EMPTY, dtype=np.int64)
        self.num_forwards = 0
        self.num_tokens = 0

    def forward(self, batch: PackedBatch) -> ForwardOutput:
        self.num_forwards += 1
        self.num_tokens += batch.num_tokens
        self.memory.reshape(-1)[batch.slots] = batch.token_ids
        owner = np.repeat(np.arange(len(batch.query_lengths)), batch.query_lengths)
        rows = []
        for index in batch.logit_rows.tolist():
            length = int(batch.positions[index]) + 1
            rows.append(self._table(self.prefix(batch.block_tables[owner[index]], length)))
        if not rows:
            return ForwardOutput(torch.zeros(0, len(self._table((0,)))))
        with np.errstate(divide="ignore"):
            logits = np.log(np.stack(rows))
        return ForwardOutput(torch.from_numpy(logits).to(torch.float32))

    def prefix(
        self, block_table: Sequence[int] | npt.NDArray[np.int32], length: int
    ) -> tuple[int, ...]:
        """The tokens at positions 0 to length - 1 of a block table."""
        width = -(-length // self.memory.shape[1])
        tokens = self.memory[np.asarray(block_table[:width], dtype=np.int64)].reshape(-1)[:length]
        return tuple(int(token) for token in tokens)

    def scrub(self, blocks: Sequence[int]) -> None:
        self.memory[list(blocks)] = EMPTY


def random_table(
    seed: int, vocabulary_size: int, *, order: int = 3, sharpness: float = 2.0
) -> Table:
    """Random distributions that depend on the last `order` tokens and on the prefix's length
    modulo 3. sharpness: standard deviation of the logits."""
    rows: dict[tuple[int, ...], Row] = {}

    def table(prefix: tuple[int, ...]) -> Row:
        key = (*prefix[-order:], -len(prefix) % 3)
        if key not in rows:
            digest = hashlib.blake2b(repr((seed, key)).encode(), digest_size=8).digest()
            generator = np.random.default_rng(int.from_bytes(digest, "big"))
            weights = np.exp(generator.normal(0.0, sharpness, vocabulary_size))
            rows[key] = weights / weights.sum()
        return rows[key]

    return table


def mixed_table(first: Table, second: Table, share: float) -> Table:
    """share of the first and the rest of the second: a draft of tunable quality."""

    def table(prefix: tuple[int, ...]) -> Row:
        return share * first(prefix) + (1 - share) * second(prefix)

    return table
