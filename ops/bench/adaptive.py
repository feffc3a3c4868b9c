"""Adaptive speculation against every fixed choice, in one engine, in turns.

    python ops/bench/adaptive.py                      the whole table (a quiet machine, 20 minutes)
    python ops/bench/adaptive.py --sessions 1 4 --minutes 4     a part of it
    python ops/bench/adaptive.py --draft layers:4        a stand-in: the target's first layers

For each number of sessions and each workload the columns take turns, in a new order every round, so
that all see the same machine: no speculation, fixed depths 1, 2 and 4, the n-gram alone at 4, and
adaptive. All are requests to the same engine, which differ in their `speculation`, `drafter` and
`num_speculative_tokens`. Sessions ask again as soon as they are answered, and a turn counts the
tokens of a stretch of time in which all of them decode; its length follows from `--minutes`.
Sessions go on under their keys from turn to turn, as conversations do, so what was learnt of them
stays; their texts change from round to round. Where fewer than four decode at once, groups of them
take turns round by round, so that no cell rests on a single session; such cells have two rounds for
each group at least. Before the rounds that count, every column has a turn, adaptive two with each
group, on other texts than the group's in the rounds that count, as far as there are others.

The column "no gate" is adaptive without the session gate (`--min-acceptance 0`): measured cost
alone decides. It has no part in the verdict, but says what the gate at 0.40 costs: a cell that is
below the best column for nothing else is marked so.

What is compared is the median over rounds of the ratio to the round's own plain turn. A cell passes
if adaptive has at least 0.97 of plain and 0.95 of the best column.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.closed_loop import ClosedLoop, Column  # noqa: E402
from ops.bench.engines import add_model_options, open_engine, prompts_of  # noqa: E402
from ops.bench.provenance import write_result  # noqa: E402
from ops.bench.workloads import WORKLOADS, Workload  # noqa: E402
from paceline.core.request import DrafterKind, Speculation  # noqa: E402

if TYPE_CHECKING:
    from ops.bench.closed_loop import Turn
    from paceline.core.controller import Controller
    from paceline.model.tokenizer import TextCodec

LEAST_OF_PLAIN = 0.97
LEAST_OF_BEST = 0.95
LEAST_SESSIONS = 4

COLUMNS = {
    "off": Column(Speculation.OFF),
    "gamma 1": Column(Speculation.ON, DrafterKind.MODEL, 1),
    "gamma 2": Column(Speculation.ON, DrafterKind.MODEL, 2),
    "gamma 4": Column(Speculation.ON, DrafterKind.MODEL, 4),
    "ngram": Column(Speculation.ON, DrafterKind.NGRAM, 4),
    "adaptive": Column(Speculation.AUTO),
}
NO_GATE = "no gate"


class Cell:
    """One workload at one number of sessions."""

    def __init__(
        self,
        workload: Workload,
        num_sessions: int,
        codec: TextCodec,
        columns: dict[str, Column],
        controller: Controller,
    ) -> None:
        self.workload = workload
        self.num_sessions = num_sessions
        self._codec = codec
        self._controller = controller
        self._columns = columns
        self._turns: dict[str, list[Turn]] = {name: [] for name in columns}

    def measure(self, loop: ClosedLoop, rounds: int, seconds: float) -> None:
        """All its turns, of so many seconds each."""
        rng = random.Random(f"{self.workload.name} {self.num_sessions}")
        for name in self._columns:
            self._turn(loop, name, 0, seconds)
        groups = num_groups(self.num_sessions)
        for number in range(1, 2 * groups):
            for name in ("adaptive", NO_GATE):
                self._turn(loop, name, number, seconds, shift=groups // 2)
        for number in range(1, num_rounds(self.num_sessions, rounds) + 1):
            order = list(self._columns)
            rng.shuffle(order)
            for name in order:
                self._turns[name].append(self._turn(loop, name, number, seconds))

    def _turn(
        self, loop: ClosedLoop, name: str, number: int, seconds: float, shift: int = 0
    ) -> Turn:
        """In every round a session goes on with another text, the same one for all columns.
        shift: of the texts, against the round's own."""
        prompts = prompts_of(self._codec, self.workload, self.num_sessions, number + shift)
        group = number % num_groups(self.num_sessions)
        key = f"{self.workload.name}/{self.num_sessions}/{name}/{group}"
        sampling = self.workload.sampling
        gate = self._controller.acceptances.min_acceptance
        self._controller.acceptances.min_acceptance = 0.0 if name == NO_GATE else gate
        turn = loop.run(self._columns[name], prompts, sampling, key, seconds)
        self._controller.acceptances.min_acceptance = gate
        return turn

    @property
    def ratios(self) -> dict[str, float]:
        """Each column's median ratio to plain decoding of the same round."""
        plain = self._turns["off"]
        return {
            name: median(t.rate / p.rate for t, p in zip(turns, plain, strict=True))
            for name, turns in self._turns.items()
        }

    @property
    def of_best(self) -> float:
        """Adaptive against the best column, itself included."""
        return self._of_best("adaptive")

    def _of_best(self, name: str) -> float:
        ratios = self.ratios
        return ratios[name] / max(ratio for other, ratio in ratios.items() if other != NO_GATE)

    @property
    def failures(self) -> list[str]:
        """Which limits it is below."""
        below = []
        if self.ratios["adaptive"] < LEAST_OF_PLAIN:
            below.append("off")
        if self.of_best < LEAST_OF_BEST:
            is_gate = self._of_best(NO_GATE) >= LEAST_OF_BEST
            below.append("best by the session gate alone" if is_gate else "best")
        return below

    def to_json(self) -> dict[str, Any]:
        ratios = self.ratios
        return {
            "workload": self.workload.name,
            "sessions": self.num_sessions,
            "rounds": len(self._turns["off"]),
            "adaptive_of_off": ratios["adaptive"],
            "adaptive_of_best": self.of_best,
            "no_gate_of_best": self._of_best(NO_GATE),
            "passes": not self.failures,
            "below": self.failures,
            "columns": {
                name: {
                    "ratio": ratios[name],
                    "tokens_per_second": [round(turn.rate, 2) for turn in turns],
                    "tokens_per_step_and_session": _ratio(
                        sum(turn.num_tokens for turn in turns),
                        sum(turn.num_steps for turn in turns) * self.num_sessions,
                    ),
                    "accepted_per_drafted": _ratio(
                        sum(turn.num_accepted for turn in turns),
                        sum(turn.num_drafted for turn in turns),
                    ),
                    "step_ms": _ratio(
                        sum(sum(turn.stage_ms) for turn in turns),
                        sum(turn.num_steps for turn in turns),
                    ),
                    "predicted_over_measured": _ratio(
                        sum(turn.predicted_ms for turn in turns),
                        sum(sum(turn.stage_ms) for turn in turns),
                    ),
                }
                for name, turns in self._turns.items()
            },
        }


def num_groups(num_sessions: int) -> int:
    """Groups of sessions that take turns."""
    return -(-LEAST_SESSIONS // num_sessions)


def num_rounds(num_sessions: int, rounds: int) -> int:
    """Rounds that count."""
    groups = num_groups(num_sessions)
    return rounds if groups == 1 else max(rounds, 2 * groups)


def num_turns(num_sessions: int, num_columns: int, rounds: int) -> int:
    """All turns of a cell."""
    warming = num_columns + 2 * (2 * num_groups(num_sessions) - 1)
    return warming + num_columns * num_rounds(num_sessions, rounds)


def _ratio(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 16, 48])
    parser.add_argument("--workloads", nargs="+", default=[each.name for each in WORKLOADS])
    parser.add_argument("--columns", nargs="+", default=list(COLUMNS), help="off and adaptive too")
    parser.add_argument("--rounds", type=int, default=6, help="that count")
    parser.add_argument("--minutes", type=float, default=18.0, help="for all cells together")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--name", default="adaptive", help="of the result file")
    options = parser.parse_args()
    workloads = [each for each in WORKLOADS if each.name in options.workloads]
    with open_engine(options, max_sequences=max(options.sessions)) as (engine, models):
        columns = {
            name: column
            for name, column in COLUMNS.items()
            if (name in options.columns or name in ("off", "adaptive"))
            and (models.draft is not None or column.drafter is not DrafterKind.MODEL)
        }
        columns[NO_GATE] = columns["adaptive"]
        turns = len(workloads) * sum(
            num_turns(count, len(columns), options.rounds) for count in options.sessions
        )
        seconds = options.minutes * 60.0 / turns
        print(f"{turns} turns of {seconds:.2f} s and their prompts\n")
        heading = "".join(f"{name:>10}" for name in columns)
        print(f"{'workload':16} {'sessions':>8} {'off tok/s':>9} {heading}  of best")
        loop = ClosedLoop(engine, options.tokens)
        controller = engine._policy.controller  # type: ignore[attr-defined]
        cells = []
        for count in options.sessions:
            for workload in workloads:
                cell = Cell(workload, count, models.codec, columns, controller)
                cell.measure(loop, options.rounds, seconds)
                cells.append(cell)
                show(cell)
    failed = [cell for cell in cells if cell.failures]
    write_result(
        options.name,
        "python " + " ".join(["ops/bench/adaptive.py", *sys.argv[1:]]),
        {
            "tokens": options.tokens,
            "seconds_per_turn": seconds,
            "least_of_off": LEAST_OF_PLAIN,
            "least_of_best": LEAST_OF_BEST,
            "cells": [cell.to_json() for cell in cells],
        },
    )
    print(f"\n{len(cells) - len(failed)} of {len(cells)} cells pass")
    return 1 if failed else 0


def show(cell: Cell) -> None:
    """One line."""
    verdict = f"  below {' and '.join(cell.failures)}" if cell.failures else "  passes"
    plain = cell.to_json()["columns"]["off"]["tokens_per_second"]
    print(
        f"{cell.workload.name:16} {cell.num_sessions:8} {median(plain):9.1f} "
        + "".join(f"{ratio:10.3f}" for ratio in cell.ratios.values())
        + f"{cell.of_best:9.3f}"
        + verdict,
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
