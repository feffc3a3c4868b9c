"""The load swings between 1 and 48 sessions: adaptive against always on and always off.

    python ops/bench/swings.py                     (a quiet machine, seven minutes)
    python ops/bench/swings.py --seconds 2 --rounds 2         a short form

One engine with the default pair. A swing is a phase with one session and one with 48; sessions ask
again as soon as they are answered, and those above the load leave in mid-answer. The modes take
turns, swing by swing, in a new order every round, so that all see the same machine. The session
that is alone is another one in every round, with another prompt, the same for all modes. Every
phase counts from its first step: 47 sessions that arrive and their prompts are part of a swing.

A kind of phase passes if adaptive's median is within 5 % of the better of always on and always off.
Of the controller's gates it prints how often they opened or closed per minute.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.closed_loop import ClosedLoop, Column  # noqa: E402
from ops.bench.engines import add_model_options, open_engine, prompts_of  # noqa: E402
from ops.bench.provenance import write_result  # noqa: E402
from ops.bench.workloads import WORKLOADS  # noqa: E402
from paceline.core.request import DrafterKind, Speculation  # noqa: E402

if TYPE_CHECKING:
    from ops.bench.closed_loop import Turn
    from paceline.core.statistics import EngineTotals
    from paceline.engine.engine import Engine

SHORTFALL = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.add_argument("--sessions", type=int, nargs=2, default=[1, 48])
    parser.add_argument("--workload", default="chat", choices=[each.name for each in WORKLOADS])
    parser.add_argument("--seconds", type=float, default=6.0, help="of a phase")
    parser.add_argument("--rounds", type=int, default=10, help="that count; one goes before")
    parser.add_argument("--depth", type=int, default=2, help="of always on")
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--name", default="swings", help="of the result file")
    options = parser.parse_args()
    modes = {
        "adaptive": Column(Speculation.AUTO),
        "always on": Column(Speculation.ON, DrafterKind.MODEL, options.depth),
        "always off": Column(Speculation.OFF),
    }
    with open_engine(options, max_sequences=max(options.sessions)) as (engine, models):
        if models.draft is None:
            modes["always on"] = Column(Speculation.ON, DrafterKind.NGRAM, options.depth)
        workload = next(each for each in WORKLOADS if each.name == options.workload)
        prompts = prompts_of(models.codec, workload, max(options.sessions))
        loop = ClosedLoop(engine, options.tokens)
        rates: dict[str, dict[int, list[float]]] = {
            mode: {count: [] for count in options.sessions} for mode in modes
        }
        flips = Flips(engine)
        rng = random.Random(0)
        for number in range(options.rounds + 1):
            order = list(modes)
            rng.shuffle(order)
            for mode in order:
                flips.begin()
                turns = {}
                for count in options.sessions:
                    who = [(number + index) % len(prompts) for index in range(count)]
                    turns[count] = loop.run(
                        modes[mode], [prompts[each] for each in who], workload.sampling, mode,
                        options.seconds, numbers=who, is_settled=False,
                    )  # fmt: skip
                if number:
                    for count, turn in turns.items():
                        rates[mode][count].append(turn.rate)
                    if mode == "adaptive":
                        flips.end(turns)
            print(f"round {number} of {options.rounds}", file=sys.stderr, flush=True)
    return report(options, rates, flips)


class Flips:
    """Counts changes of gates over stretches of time. The load gate is the engine's, and the only
    sessions whose gates can change are those of adaptive phases."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before: EngineTotals = engine.status().totals
        self.seconds = 0.0
        self.session = 0
        self.load = 0

    def begin(self) -> None:
        self._before = self._engine.status().totals

    def end(self, turns: dict[int, Turn]) -> None:
        totals = self._engine.status().totals
        self.session += totals.num_session_flips - self._before.num_session_flips
        self.load += totals.num_load_flips - self._before.num_load_flips
        self.seconds += sum(turn.seconds for turn in turns.values())

    def per_minute(self, count: int) -> float:
        return count / self.seconds * 60.0


def report(
    options: argparse.Namespace, rates: dict[str, dict[int, list[float]]], flips: Flips
) -> int:
    failures = []
    kinds = {}
    for count in options.sessions:
        medians = {mode: median(by_count[count]) for mode, by_count in rates.items()}
        best = max(medians["always on"], medians["always off"])
        ratio = medians["adaptive"] / best
        print(
            f"{count:3} sessions, {options.rounds} phases: "
            + "  ".join(f"{mode} {rate:.1f}" for mode, rate in medians.items())
            + f" tokens/s  adaptive/better one {ratio:.3f}"
            + ("" if ratio >= 1 - SHORTFALL else "  below")
        )
        if ratio < 1 - SHORTFALL:
            failures.append(count)
        phases = {mode: by_count[count] for mode, by_count in rates.items()}
        kinds[str(count)] = {"medians": medians, "ratio": ratio, "phases": phases}
    load, session = flips.per_minute(flips.load), flips.per_minute(flips.session)
    print(
        f"flips per minute of adaptive phases: load gate {load:.1f}, session gates {session:.1f} "
        f"of up to {max(options.sessions)} sessions"
    )
    write_result(
        options.name,
        "python " + " ".join(["ops/bench/swings.py", *sys.argv[1:]]),
        {
            "seconds_per_phase": options.seconds,
            "rounds": options.rounds,
            "workload": options.workload,
            "always_on_depth": options.depth,
            "kinds": kinds,
            "load_flips_per_minute": load,
            "session_flips_per_minute": session,
        },
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
