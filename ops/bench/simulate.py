"""Drives the real scheduler and controller through scripted scenarios, without any model.

    python ops/bench/simulate.py                    10,000 sessions over all scenarios
    python ops/bench/simulate.py --sessions 500     a short run
    python ops/bench/simulate.py --json FILE        numbers as JSON too

Prints for each scenario: the regret against a per-step oracle that knows the true costs and
acceptances and obeys the same session gates, what the session gates themselves cost that oracle,
and the worst interval of the ledger. Fails if the mean regret or a bound is exceeded. Times are
simulated, so the output depends on the seed alone.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.scenarios import SCENARIOS, always_on, simulate, swing  # noqa: E402

if TYPE_CHECKING:
    from ops.bench.simulation import Report

MOST_REGRET = 0.05
SWING_SHORTFALL = 0.03


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=10_000, help="over all scenarios")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--judge-every", type=int, default=4, help="steps between oracle calls")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count = max(1, options.sessions // len(SCENARIOS))
    print(f"{len(SCENARIOS)} scenarios, {count} sessions each, seed {options.seed}\n")
    print(
        f"{'scenario':26} {'steps':>7} {'speedup':>7} {'regret':>7} {'gate':>6} "
        f"{'excess':>15} flips"
    )
    rows = []
    failures = []
    for scenario in SCENARIOS:
        report = simulate(scenario, count, options.seed, judge_every=options.judge_every)
        bound = report.capacity + report.worst_step
        print(
            f"{scenario.name:26} {report.num_steps:7} {report.speedup:7.2f} "
            f"{report.regret:7.1%} {report.gate_cost:6.1%} "
            f"{report.excess * 1e3:6.0f} of {bound * 1e3:3.0f} ms {report.gate_flips:5}",
            flush=True,
        )
        if report.excess > bound:
            failures.append(f"{scenario.name}: the ledger's bound is exceeded")
        rows.append(
            {
                "scenario": scenario.name,
                "steps": report.num_steps,
                "tokens": report.num_tokens,
                "speedup": report.speedup,
                "regret": report.regret,
                "gate_cost": report.gate_cost,
                "excess_seconds": report.excess,
                "bound_seconds": bound,
                "gate_flips": report.gate_flips,
                "load_flips": report.load_flips,
            }
        )
    regret = fmean(row["regret"] for row in rows)  # type: ignore[misc]
    print(f"\nmean regret {regret:.2%}, allowed {MOST_REGRET:.0%}")
    if regret > MOST_REGRET:
        failures.append(f"mean regret {regret:.2%}")
    failures += _swings(options.seed)
    if options.json is not None:
        options.json.write_text(json.dumps({"seed": options.seed, "scenarios": rows}, indent=2))
    for failure in failures:
        print(f"FAILED: {failure}")
    return 1 if failures else 0


def _swings(seed: int) -> list[str]:
    """Load swings: tokens per second of each kind of phase, against both extremes."""
    print("\nswings of 1 and 48 sessions, tokens per second")
    runs = {
        "adaptive": swing(None, seed),
        "always 4": swing(always_on(4), seed),
        "always off": swing(always_on(0), seed),
    }
    failures = []
    for phase in ("1 session", "48 sessions"):
        rates = {name: median_rate(report, phase) for name, report in runs.items()}
        best = max(rates["always 4"], rates["always off"])
        print(
            f"{phase:12} "
            + "  ".join(f"{name} {rate:6.1f}" for name, rate in rates.items())
            + f"  adaptive/best {rates['adaptive'] / best:.3f}"
        )
        if rates["adaptive"] < (1 - SWING_SHORTFALL) * best:
            failures.append(f"swings, {phase}: {rates['adaptive'] / best:.3f} of the better one")
    flips = runs["adaptive"]
    print(
        f"flips per minute: load {flips.load_flips / flips.seconds * 60:.1f}, "
        f"session gates {flips.gate_flips / flips.seconds * 60:.1f}"
    )
    return failures


def median_rate(report: Report, label: str) -> float:
    """Median over the phases of a kind; the first one, with its cold start, counts too."""
    return median(
        phase.num_tokens / phase.seconds
        for phase in report.phases
        if phase.label == label and phase.seconds > 1.0
    )


if __name__ == "__main__":
    sys.exit(main())
