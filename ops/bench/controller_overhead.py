"""What the controller costs: its own time for one step of 48 sessions, against that step.

    python ops/bench/controller_overhead.py [--sessions 48] [--json]

The real policy decides and observes for sequences that decode, in three kinds of load: rows for
nothing and everybody drafts with the model, the same with look-ups everywhere, and rows as they
are. Processor time of the controller's thread against the decided steps' time, by the cost table
that `paceline serve` measured on this machine, or by a typical one. 1 % is allowed of the last, the
machine's own; the other two say what faster hardware would make of it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.provenance import write_result  # noqa: E402
from ops.bench.simulation import CPU_TABLE, SimulatedDrafter, SimulatedText, steady  # noqa: E402
from paceline.core.controller import Controller, ControllerSettings  # noqa: E402
from paceline.core.cost import CostModel, CostTable, Curve  # noqa: E402
from paceline.core.events import StepTimes  # noqa: E402
from paceline.core.request import DrafterKind, Request, SamplingParams  # noqa: E402
from paceline.engine.adaptive_policy import AdaptivePolicy  # noqa: E402
from paceline.engine.drafters.ngram import NgramDrafter  # noqa: E402
from paceline.engine.plan import Outcome  # noqa: E402
from paceline.engine.sequence import Sequence  # noqa: E402

ALLOWED = 0.01


class _NoText:
    def append(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def measured_table() -> CostTable | None:
    """The newest one of the default target that a server on this machine kept."""
    from paceline.core.cache_folder import cache_folder
    from paceline.model.default_weights import NAME

    folder = cache_folder() / "costs"
    for path in sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_mtime):
        document = json.loads(path.read_text(encoding="utf-8"))
        if Path(document["key"]["target"]["path"]).name != NAME:
            continue
        try:
            return CostTable.from_json(document["costs"])
        except ValueError:
            continue  # of an earlier format
    return None


def clock_seconds() -> float:
    """What one reading of the clock costs: a system call that the engine does not make."""
    spans = []
    for _ in range(200):
        started = time.thread_time()
        spans.append(time.thread_time() - started)
    return median(spans)


def flat(table: CostTable) -> CostTable:
    """The same costs, as if rows were free: everybody drafts."""
    lowest = table.target.seconds[0]
    counts = table.target.counts
    return CostTable(
        Curve(counts, [lowest] * len(counts)),
        draft_greedy=table.draft_greedy or CPU_TABLE.draft_greedy,
        draft_drawn=table.draft_drawn or CPU_TABLE.draft_drawn,
    )


def measure(
    table: CostTable, num_sessions: int, num_steps: int, *, copies: bool
) -> tuple[float, float]:
    """Median seconds per step: of processor time in `choose` and `observe`, n-gram scoring
    included, and of the steps that were decided, by the table."""
    rng = random.Random(0)
    ngram = NgramDrafter()
    model = SimulatedDrafter(DrafterKind.MODEL)
    controller = Controller(CostModel(table), ControllerSettings(max_sequences=num_sessions))
    policy = AdaptivePolicy(controller, ngram=ngram, model=model)
    sequences = []
    for index in range(num_sessions):
        prompt = tuple(rng.randrange(40 if copies else 40_000) for _ in range(200))
        request = Request(f"r{index}", prompt, 1 << 20, SamplingParams(temperature=0.0))
        sequence = Sequence(request, _NoText(), 0, 0.0)
        sequence.num_computed = sequence.num_draft_computed = sequence.num_tokens - 1
        ngram.admit(sequence)
        model.texts[request.request_id] = SimulatedText(steady(0.7), random.Random(index))
        sequences.append(sequence)
    seconds: list[float] = []
    steps: list[float] = []
    for _ in range(num_steps):
        started = time.thread_time()
        choices = policy.choose(sequences, 0)
        spent = time.thread_time() - started
        outcomes = []
        for sequence, choice in zip(sequences, choices, strict=True):
            drafted = choice.num_drafted
            accepted = 0
            while accepted < drafted and rng.random() < 0.7:
                accepted += 1
            before = sequence.num_tokens
            top = 40 if copies else 40_000
            sequence.token_ids += [rng.randrange(top) for _ in range(accepted + 1)]
            sequence.num_computed = sequence.num_tokens - 1
            sequence.num_draft_computed = sequence.num_tokens - 1
            chain = tuple(float(i < accepted) for i in range(drafted))
            outcomes.append(
                Outcome(
                    sequence, before, drafted, accepted, accepted + 1, 0, 1 + drafted,
                    min(accepted + 1, drafted), accepted, chain,
                )
            )  # fmt: skip
        times = StepTimes(3.0, table.target.at(num_sessions) * 1e3, 1.0, 1.0)
        started = time.thread_time()
        ngram.observe(outcomes, None)
        policy.observe(outcomes, times)
        seconds.append(spent + time.thread_time() - started)
        steps.append(policy.predicted_seconds or 0.0)
    # Two spans for each step, each with one reading of the clock inside.
    return median(seconds) - 2 * clock_seconds(), median(steps)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=48)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument(
        "--json", action="store_true", help="write results/controller_overhead.json"
    )
    options = parser.parse_args()
    known = measured_table()
    table = known or CPU_TABLE
    print(
        f"{options.sessions} sessions, steps by "
        f"{'the table measured on this machine' if known else 'a table typical for a small CPU'}"
    )
    rows = {
        "everybody drafts with the model": (flat(table), False),
        "look-ups and the model": (flat(table), True),
        "as the table says": (table, False),
    }
    results = {}
    for name, (costs, copies) in rows.items():
        seconds, step = measure(costs, options.sessions, options.steps, copies=copies)
        results[name] = {"seconds": seconds, "share": seconds / step}
        print(f"{name:34} {seconds * 1e6:6.0f} us of {step * 1e3:6.1f} ms  {seconds / step:6.2%}")
    if options.json:
        write_result("controller_overhead", "ops/bench/controller_overhead.py", results)
    share = results["as the table says"]["share"]
    print(f"{share:.2%} of a step of this machine's own, allowed {ALLOWED:.0%}")
    return 0 if share <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
