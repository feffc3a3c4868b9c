"""What huge pages save: one pass of the target with and without them, side by side.

    python ops/bench/huge_pages.py [--rounds 40] [--target ...]

Two engines in one process, as `paceline serve` makes them. From before the second one is built
until the end the process has huge pages switched off, so that its weights and K/V memory lie in
pages of 4 KiB; those of the first one stay. Their passes take turns, in either order. Linux only.
Writes results/huge_pages.json.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import shlex
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.engines import add_model_options, open_engine  # noqa: E402
from ops.bench.provenance import write_result  # noqa: E402
from paceline.model.batch import Segment, pack  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.engine.engine import Engine
    from paceline.model.batch import PackedBatch

_PR_SET_THP_DISABLE = 41
CASES = ((1, 1, 150), (1, 1, 1000), (1, 4, 150), (4, 1, 150), (4, 2, 150), (16, 1, 150))
"""Sequences, rows of each, tokens before them."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    sessions = max(count for count, _, _ in CASES)
    with contextlib.ExitStack() as stack:
        engines = {}
        for name in ("huge", "4 KiB"):
            if name == "4 KiB":
                stack.enter_context(small_pages())
            engines[name], _ = stack.enter_context(open_engine(options, max_sequences=sessions))
            block_size = engines[name]._verifier._block_size
            for count, rows, context in CASES:  # attention reads what a prompt has left there
                forward(engines[name], batch_of(count, rows + context, 0, block_size))
        spans: dict[str, dict[str, list[float]]] = {}
        for number in range(options.rounds):
            for case in CASES:
                batch = batch_of(*case, block_size)
                for name in sorted(engines, reverse=number % 2 == 1):
                    started = time.perf_counter()
                    forward(engines[name], batch)
                    spent = (time.perf_counter() - started) * 1e3
                    label = "{} x {} rows behind {}".format(*case)
                    spans.setdefault(label, {}).setdefault(name, []).append(spent)
    result = {}
    for label, by_name in spans.items():
        ms = {name: median(each) for name, each in by_name.items()}
        result[label] = {"ms": ms, "ratio": ms["huge"] / ms["4 KiB"]}
        print(
            f"{label:26} {ms['4 KiB']:6.2f} -> {ms['huge']:6.2f} ms  {result[label]['ratio']:.3f}"
        )
    command = "python " + shlex.join(["ops/bench/huge_pages.py", *sys.argv[1:]])
    print(write_result("huge_pages", command, result))
    return 0


@contextlib.contextmanager
def small_pages() -> Iterator[None]:
    """No new huge pages for this process. Raises OSError where the system cannot do that."""

    def disable(value: int) -> None:
        nothing = ctypes.c_ulong(0)
        if libc.prctl(_PR_SET_THP_DISABLE, ctypes.c_ulong(value), nothing, nothing, nothing):
            raise OSError(ctypes.get_errno(), "huge pages cannot be switched off")

    libc = ctypes.CDLL(None, use_errno=True)
    disable(1)
    try:
        yield
    finally:
        disable(0)


def batch_of(num_sequences: int, num_rows: int, context: int, block_size: int) -> PackedBatch:
    """Sequences in blocks of their own, with logits for every row."""
    blocks = -(-(context + num_rows) // block_size)
    segments = [
        Segment(
            list(range(5, 5 + num_rows)),
            context,
            list(range(index * blocks, (index + 1) * blocks)),
            num_rows,
        )
        for index in range(num_sequences)
    ]
    return pack(segments, block_size)


def forward(engine: Engine, batch: PackedBatch) -> None:
    engine._verifier._runner.forward(batch)


if __name__ == "__main__":
    sys.exit(main())
