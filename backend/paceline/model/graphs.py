"""CUDA graphs: passes recorded once for each of a few shapes, and played back.

A step of few rows is over on the device before a processor has launched its hundreds of kernels. A
recorded pass is one launch. It has fixed shapes and reads its input where it did when it was
recorded, so a batch is padded to the next shape and copied there: rows of padding are sequences of
their own that write into a scratch block, and the sequences that are then still missing are empty.

Draft steps and verifications alike are passes of few rows; larger ones are not launch-bound and run
as they are.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from paceline.model.attention_cuda import VarlenInputs, query_bounds
from paceline.model.batch import PackedBatch
from paceline.model.runner import ForwardOutput

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from paceline.model.runner import ModelRunner

ROWS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Of recorded passes. Between two neighbours at most half of the rows are padding."""
QUERIES = (1, 8, 32)
"""Most rows of one sequence in a recorded pass: decoding, drafts of a model, long look-ups."""


class Shape(NamedTuple):
    """rows: of the pass, and as many sequences. query: most rows of one of them."""

    rows: int
    query: int


def shape_for(batch: PackedBatch, most_rows: int) -> Shape | None:
    """The smallest recorded shape that holds a batch, None if it is to run as it is.

    most_rows: of recorded passes.
    """
    if batch.fixed_shapes or batch.num_tokens > most_rows or len(batch.logit_rows) == 0:
        return None
    longest = int(batch.query_lengths.max())
    if longest > QUERIES[-1]:
        return None
    rows = ROWS[bisect_left(ROWS, batch.num_tokens)]
    return Shape(rows, QUERIES[bisect_left(QUERIES, longest)]) if rows <= most_rows else None


def pad(batch: PackedBatch, shape: Shape, width: int, scratch_block: int) -> PackedBatch:
    """The batch with `shape.rows` rows and sequences, logits for all rows.

    width: blocks of the longest sequence that there may be. scratch_block: one that no sequence
    ever has.
    """
    missing = shape.rows - batch.num_tokens
    empty = shape.rows - len(batch.query_lengths) - missing
    ones, zeros = np.ones(missing, dtype=np.int32), np.zeros(empty, dtype=np.int32)
    tables = np.full((shape.rows, width), scratch_block, dtype=np.int32)
    tables[: len(batch.block_tables), : batch.block_tables.shape[1]] = batch.block_tables
    size = batch.block_size
    return PackedBatch(
        token_ids=np.pad(batch.token_ids, (0, missing)),
        positions=np.pad(batch.positions, (0, missing)),
        slots=np.concatenate((batch.slots, scratch_block * size + np.arange(missing) % size)),
        query_lengths=np.concatenate((batch.query_lengths, ones, zeros)),
        context_lengths=np.concatenate((batch.context_lengths, ones, zeros)),
        block_tables=tables,
        logit_rows=np.arange(shape.rows),
        block_size=size,
    )


def _nothing(block_size: int) -> PackedBatch:
    """No rows at all, to be padded."""
    longs, ints = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
    tables = np.zeros((0, 1), dtype=np.int32)
    return PackedBatch(longs, longs, longs, ints, ints, tables, longs, block_size)


@dataclass(frozen=True, slots=True)
class StaticInputs:
    """Where a recorded pass reads: two buffers on the device, each filled by one copy from pinned
    memory, and the views of them that the model takes."""

    longs: Tensor
    ints: Tensor
    pinned_longs: Tensor
    pinned_ints: Tensor
    rows: int
    width: int

    @classmethod
    def allocate(cls, rows: int, width: int, device: torch.device) -> StaticInputs:
        """For `rows` rows and sequences, of at most `width` blocks each."""
        sizes = (3 * rows, 2 * rows + 1 + rows * width)
        kinds = (torch.int64, torch.int32)
        pin = device.type == "cuda"
        longs, ints = (
            torch.zeros(size, dtype=kind, device=device)
            for size, kind in zip(sizes, kinds, strict=True)
        )
        pinned = [
            torch.zeros(size, dtype=kind, pin_memory=pin)
            for size, kind in zip(sizes, kinds, strict=True)
        ]
        return cls(longs, ints, pinned[0], pinned[1], rows, width)

    def fill(self, batch: PackedBatch) -> None:
        """A padded batch. The copies before it must be over."""
        self.pinned_longs.numpy()[:] = np.concatenate(
            (batch.token_ids, batch.positions, batch.slots)
        )
        self.pinned_ints.numpy()[:] = np.concatenate(
            (query_bounds(batch), batch.context_lengths, batch.block_tables.ravel())
        )
        self.longs.copy_(self.pinned_longs, non_blocking=True)
        self.ints.copy_(self.pinned_ints, non_blocking=True)

    @property
    def token_ids(self) -> Tensor:
        return self.longs[: self.rows]

    @property
    def positions(self) -> Tensor:
        return self.longs[self.rows : 2 * self.rows]

    def varlen(self, shape: Shape, max_context: int) -> VarlenInputs:
        """For the kernel; the limits are those of the shape, not of a batch."""
        rows = self.rows
        return VarlenInputs(
            slots=self.longs[2 * rows :],
            query_bounds=self.ints[: rows + 1],
            contexts=self.ints[rows + 1 : 2 * rows + 1],
            block_tables=self.ints[2 * rows + 1 :].view(rows, self.width),
            max_query=min(shape.query, rows),
            max_context=max_context,
        )


class Recording(NamedTuple):
    """A recorded pass: `replay` computes `output` anew, in the same memory."""

    replay: Callable[[], None]
    output: ForwardOutput


class CudaRecorder:
    """Records passes as CUDA graphs, all in one memory pool: only one of them runs at a time, and
    what it computed is taken before the next one."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Callable[[], ForwardOutput]) -> Recording:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # In their first calls libraries allocate and choose kernels, which can't be recorded.
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = run()
        return Recording(graph.replay, output)


class GraphRunner:
    """Another runner's passes of few rows, recorded. One thread uses it.

    runner: with a kernel for paged attention. scratch_block: a block of its K/V memory that no
    sequence has. max_model_len: tokens of the longest sequence. most_rows: passes of more rows run
    as they are. record: for tests; by default CUDA graphs.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        scratch_block: int,
        block_size: int,
        max_model_len: int,
        most_rows: int = ROWS[-1],
        record: Callable[[Callable[[], ForwardOutput]], Recording] | None = None,
    ) -> None:
        if not 1 <= most_rows <= ROWS[-1]:
            raise ValueError(f"most_rows is {most_rows}; it must be from 1 to {ROWS[-1]}")
        self._runner = runner
        self._scratch_block = scratch_block
        self._max_model_len = max_model_len
        self._block_size = block_size
        self._width = -(-max_model_len // block_size)
        self._most_rows = most_rows
        self._record = CudaRecorder() if record is None else record
        self._recorded: dict[Shape, tuple[StaticInputs, Recording]] = {}
        self._is_copied: torch.cuda.Event | None = None

    @property
    def device(self) -> torch.device:
        return self._runner.device

    def record_all(self) -> None:
        """Records every shape now, the largest first, so that no request waits for it and smaller
        ones fit into the memory of larger ones."""
        for rows in reversed([rows for rows in ROWS if rows <= self._most_rows]):
            for query in QUERIES:
                if query == 1 or rows > 1:
                    self._recording(Shape(rows, query))

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> ForwardOutput:
        """Compute the batch; its keys and values are in memory afterwards."""
        shape = shape_for(batch, self._most_rows)
        if shape is None or batch.block_tables.shape[1] > self._width:
            return self._runner.forward(batch)
        inputs, recording = self._recording(shape)
        self._fill(inputs, pad(batch, shape, self._width, self._scratch_block))
        recording.replay()
        output = recording.output
        # Copies: the next pass computes in the same memory.
        logits = output.logits[: len(batch.logit_rows)].clone()
        if len(batch.logit_rows) < batch.num_tokens:
            rows = torch.from_numpy(batch.logit_rows).to(output.logits.device)
            logits = output.logits[rows]
        features = output.features
        return ForwardOutput(
            logits, None if features is None else features[: batch.num_tokens].clone()
        )

    def _fill(self, inputs: StaticInputs, batch: PackedBatch) -> None:
        if self._is_copied is not None:
            self._is_copied.synchronize()
        inputs.fill(batch)
        if inputs.longs.device.type == "cuda":
            self._is_copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._is_copied.record()

    def _recording(self, shape: Shape) -> tuple[StaticInputs, Recording]:
        known = self._recorded.get(shape)
        if known is None:
            known = self._recorded[shape] = self._make(shape)
        return known

    @torch.inference_mode()
    def _make(self, shape: Shape) -> tuple[StaticInputs, Recording]:
        inputs = StaticInputs.allocate(shape.rows, self._width, self.device)
        inputs.fill(pad(_nothing(self._block_size), shape, self._width, self._scratch_block))
        logit_rows = torch.arange(shape.rows, device=self.device)
        varlen = inputs.varlen(shape, self._max_model_len)

        def run() -> ForwardOutput:
            return self._runner.forward_from(inputs.token_ids, inputs.positions, logit_rows, varlen)

        return inputs, self._record(run)
