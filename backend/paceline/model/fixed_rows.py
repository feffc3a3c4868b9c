"""Forward passes of one fixed shape, so that a token's logits do not depend on its company.

Kernels choose their way by shape, and another way rounds differently: the last bits of a logit, and
now and then a near tie, depend on how many rows happen to be computed together. Here every pass has
the same number of rows, filled up with padding or split over several passes, and each row is a
query of its own, whose keys are read in the same manner wherever it stands. Prefill needs no fixed
borders then: a row of a prompt is computed like any other.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from paceline.model.batch import PackedBatch
from paceline.model.runner import ForwardOutput

if TYPE_CHECKING:
    from torch import Tensor


class ForwardRunner(Protocol):
    """What is made deterministic; see `ModelRunner`."""

    def forward(self, batch: PackedBatch) -> ForwardOutput: ...


class FixedRowsRunner:
    """Runs another runner in passes of `num_rows` rows.

    num_rows: a multiple of 8, the rows that matrix kernels handle alike; with others the last ones
    are computed in another way than the first. scratch_block: a block of K/V memory that no
    sequence ever has; padding is written there.
    """

    def __init__(self, runner: ForwardRunner, *, num_rows: int, scratch_block: int) -> None:
        if num_rows % 8:
            raise ValueError(f"num_rows is {num_rows}; it must be a multiple of 8")
        self._runner = runner
        self._num_rows = num_rows
        self._scratch_block = scratch_block

    def forward(self, batch: PackedBatch) -> ForwardOutput:
        """Compute the batch; its keys and values are in memory afterwards."""
        owner = np.repeat(np.arange(len(batch.query_lengths)), batch.query_lengths)
        logits: list[Tensor] = []
        features: list[Tensor] = []
        for start in range(0, batch.num_tokens, self._num_rows):
            rows = np.arange(start, min(start + self._num_rows, batch.num_tokens))
            wanted = batch.logit_rows[
                (batch.logit_rows >= start) & (batch.logit_rows < start + self._num_rows)
            ]
            output = self._runner.forward(self._part(batch, rows, owner, len(wanted) > 0))
            if len(wanted):
                kept = torch.from_numpy(wanted - start).to(output.logits.device)
                logits.append(output.logits[kept])
            if output.features is not None:
                features.append(output.features[: len(rows)])
        joined = torch.cat(logits) if logits else output.logits[:0]
        return ForwardOutput(joined, torch.cat(features) if features else None)

    def _part(
        self,
        batch: PackedBatch,
        rows: np.ndarray[tuple[int], np.dtype[np.int64]],
        owner: np.ndarray[tuple[int], np.dtype[np.int64]],
        has_logits: bool,
    ) -> PackedBatch:
        """These rows and padding, each a segment of its own."""
        missing = self._num_rows - len(rows)
        positions = np.pad(batch.positions[rows], (0, missing))
        tables = np.full(
            (self._num_rows, batch.block_tables.shape[1]), self._scratch_block, dtype=np.int32
        )
        tables[: len(rows)] = batch.block_tables[owner[rows]]
        scratch = self._scratch_block * batch.block_size + np.arange(missing) % batch.block_size
        return PackedBatch(
            token_ids=np.pad(batch.token_ids[rows], (0, missing)),
            positions=positions,
            slots=np.concatenate((batch.slots[rows], scratch)),
            query_lengths=np.ones(self._num_rows, dtype=np.int32),
            context_lengths=(positions + 1).astype(np.int32),
            block_tables=tables,
            # The head has a fixed number of rows too; rows of prompts need none of it.
            logit_rows=np.arange(self._num_rows if has_logits else 0),
            block_size=batch.block_size,
            fixed_shapes=True,
        )


def slowdown(
    plain: ForwardRunner, fixed: FixedRowsRunner, *, scratch_block: int, block_size: int
) -> float:
    """How many times as long as otherwise a step of one row takes; measured now, on padding."""
    one = PackedBatch(
        token_ids=np.zeros(1, dtype=np.int64),
        positions=np.zeros(1, dtype=np.int64),
        slots=np.full(1, scratch_block * block_size, dtype=np.int64),
        query_lengths=np.ones(1, dtype=np.int32),
        context_lengths=np.ones(1, dtype=np.int32),
        block_tables=np.full((1, 1), scratch_block, dtype=np.int32),
        logit_rows=np.zeros(1, dtype=np.int64),
        block_size=block_size,
    )
    times: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(6):
        for is_fixed in (True, False):
            started = time.perf_counter()
            # Reading a number back waits for the device.
            (fixed if is_fixed else plain).forward(one).logits[0, 0].item()
            times[is_fixed].append(time.perf_counter() - started)
    return statistics.median(times[True][1:]) / statistics.median(times[False][1:])
