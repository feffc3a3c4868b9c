"""Adaptive speculation against every fixed choice, in one engine, in turns.

    python ops/bench/adaptive.py                         the whole table (a quiet machine, an hour)
    python ops/bench/adaptive.py --sessions 1 4 --rounds 3 --tokens 48     a short form
    python ops/bench/adaptive.py --draft layers:4        a stand-in: the target's first layers

For each number of sessions and each workload the columns take turns, in a new order every round, so
that all see the same machine: no speculation, fixed depths 1, 2 and 4, the n-gram alone at 4, and
adaptive. All are requests to the same engine, which differ in their `speculation`, `drafter` and
`num_speculative_tokens`. What is compared is the median over rounds of the ratio to the round's own
plain run. Sessions go on under their keys from round to round, as conversations do; the first round
warms up and is not counted.

A cell passes if adaptive has at least 0.97 of plain and 0.95 of the best column.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.provenance import write_result  # noqa: E402
from ops.bench.stand_in import stand_in_draft  # noqa: E402
from ops.bench.workloads import WORKLOADS, Workload  # noqa: E402
from paceline.composition import build_engine, check_models, facts_of, plan_for  # noqa: E402
from paceline.core.config import ServeConfig, resolve  # noqa: E402
from paceline.core.events import FinishEvent  # noqa: E402
from paceline.core.request import DrafterKind, Request, Speculation  # noqa: E402
from paceline.model.chat import ChatMessage  # noqa: E402

if TYPE_CHECKING:
    from paceline.core.events import SpeculationSummary
    from paceline.engine.engine import Engine
    from paceline.model.tokenizer import TextCodec

LEAST_OF_PLAIN = 0.97
LEAST_OF_BEST = 0.95


class Column(NamedTuple):
    """How a column asks for its tokens."""

    speculation: Speculation
    drafter: DrafterKind = DrafterKind.AUTO
    depth: int | None = None


COLUMNS = {
    "off": Column(Speculation.OFF),
    "gamma 1": Column(Speculation.ON, DrafterKind.MODEL, 1),
    "gamma 2": Column(Speculation.ON, DrafterKind.MODEL, 2),
    "gamma 4": Column(Speculation.ON, DrafterKind.MODEL, 4),
    "ngram": Column(Speculation.ON, DrafterKind.NGRAM, 4),
    "adaptive": Column(Speculation.AUTO),
}


class Bench:
    """One engine, driven from here."""

    def __init__(self, engine: Engine, codec: TextCodec, num_tokens: int) -> None:
        self._engine = engine
        self._codec = codec
        self._num_tokens = num_tokens
        self._num_requests = 0

    def prompts(self, workload: Workload, count: int) -> list[tuple[int, ...]]:
        """Token ids for so many sessions; texts repeat when there are more sessions than texts."""
        prompts = []
        for index in range(count):
            text = workload.texts[index % len(workload.texts)]
            if workload.is_chat:
                prompts.append(tuple(self._codec.encode_chat([ChatMessage("user", text)]).ids))
            else:
                prompts.append(tuple(self._codec.encode(text)))
        return prompts

    def run(
        self, column: Column, workload: Workload, prompts: list[tuple[int, ...]], name: str
    ) -> tuple[float, list[SpeculationSummary]]:
        """Tokens per second of all sessions together, and what became of them."""
        for index, prompt in enumerate(prompts):
            self._num_requests += 1
            self._engine.submit(
                Request(
                    f"r{self._num_requests}",
                    prompt,
                    self._num_tokens,
                    workload.sampling,
                    speculation=column.speculation,
                    drafter=column.drafter,
                    num_speculative_tokens=column.depth,
                    speculation_key=f"{name}/{index}",
                )
            )
        summaries = []
        started = time.perf_counter()
        while self._engine.has_work:
            for event in self._engine.step().events:
                if isinstance(event, FinishEvent):
                    if event.error is not None:
                        raise RuntimeError(event.error)
                    summaries.append(event.summary)
        return len(prompts) * self._num_tokens / (time.perf_counter() - started), summaries


def measure_cell(
    bench: Bench, workload: Workload, count: int, rounds: int, columns: dict[str, Column]
) -> dict[str, float]:
    """Median ratio of each column to plain decoding, and plain's tokens per second."""
    prompts = bench.prompts(workload, count)
    rng = random.Random(f"{workload.name} {count}")
    ratios: dict[str, list[float]] = {name: [] for name in columns}
    plain: list[float] = []
    for number in range(rounds + 1):
        order = list(columns)
        rng.shuffle(order)
        rates = {}
        for name in order:
            key = f"{workload.name}/{count}/{name}"
            rates[name], _ = bench.run(columns[name], workload, prompts, key)
        if number:
            plain.append(rates["off"])
            for name in columns:
                ratios[name].append(rates[name] / rates["off"])
    return {"tokens_per_second": median(plain)} | {
        name: median(values) for name, values in ratios.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="as for `paceline serve`")
    parser.add_argument("--draft", help="as for `paceline serve`, or layers:N")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 16, 48])
    parser.add_argument("--workloads", nargs="+", default=[each.name for each in WORKLOADS])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--name", default="adaptive", help="of the result file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draft = options.draft
        if draft is not None and draft.startswith("layers:"):
            layers = int(draft.removeprefix("layers:"))
            draft = str(stand_in_draft(options.target, layers, Path(folder)))
        config = ServeConfig(
            target=options.target, draft=draft, max_sequences=max(options.sessions)
        )
        models = check_models(config)
        decided = resolve(config, facts_of(models))
        plan = plan_for(models, decided, kv_memory=3 << 30)
        bench = Bench(build_engine(models, decided, plan), models.codec, options.tokens)
        columns = dict(COLUMNS)
        if models.draft is None:
            columns = {
                name: column
                for name, column in columns.items()
                if column.drafter is not DrafterKind.MODEL
            }
        return report(bench, options, columns)


def report(bench: Bench, options: argparse.Namespace, columns: dict[str, Column]) -> int:
    print(
        f"{'workload':16} {'sessions':>8} {'off tok/s':>9} " + "".join(f"{n:>10}" for n in columns)
    )
    cells = []
    failures = []
    for count in options.sessions:
        for workload in WORKLOADS:
            if workload.name not in options.workloads:
                continue
            cell = measure_cell(bench, workload, count, options.rounds, columns)
            best = max(value for name, value in cell.items() if name in columns)
            is_good = cell["adaptive"] >= max(LEAST_OF_PLAIN, LEAST_OF_BEST * best)
            print(
                f"{workload.name:16} {count:8} {cell['tokens_per_second']:9.1f} "
                + "".join(f"{cell[name]:10.3f}" for name in columns)
                + ("" if is_good else f"  below (best {best:.3f})"),
                flush=True,
            )
            cells.append({"workload": workload.name, "sessions": count} | cell)
            if not is_good:
                failures.append(f"{workload.name} at {count}")
    write_result(
        options.name,
        "python " + " ".join(["ops/bench/adaptive.py", *sys.argv[1:]]),
        {"tokens": options.tokens, "rounds": options.rounds, "cells": cells},
    )
    print(f"\n{len(cells) - len(failures)} of {len(cells)} cells pass")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
