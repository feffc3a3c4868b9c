"""Acceptance collapses in one session while its neighbour goes on, on the real models.

    python ops/bench/collapse.py [--draft layers:4]

Two sessions, turn by turn: code, then for the first one prose in a language that the shipped draft
was not trained on, then code again. (`--hot` has prose at temperature 1.5 instead, at which a draft
without a tail collapses too, as `--draft layers:4`.) Prints what telemetry tells of both after each
turn, and each change of a gate when it happens.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.engines import add_model_options, open_engine  # noqa: E402
from ops.bench.provenance import write_result  # noqa: E402
from ops.bench.workloads import WORKLOADS, Workload  # noqa: E402
from paceline.core.events import FinishEvent  # noqa: E402
from paceline.core.request import DrafterKind, Request, SamplingParams  # noqa: E402

CODE, HOT = WORKLOADS[1], WORKLOADS[3]
FOREIGN = Workload(
    "Russian prose",
    (
        "Жил-был на берегу моря старый рыбак, который каждое утро",
        "Поздней осенью в маленькую деревню приехал человек, которого",
        "Когда наступила зима, в доме у реки остались только",
    ),
    SamplingParams(temperature=1.0),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_options(parser)
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    parser.add_argument("--min-acceptance", type=float, default=0.4, help="as for `paceline serve`")
    parser.add_argument("--hot", action="store_true", help="prose at temperature 1.5 instead")
    parser.add_argument("--name", default="collapse", help="of the result file")
    options = parser.parse_args()
    prose = HOT if options.hot else FOREIGN
    story = (CODE, CODE, prose, prose, prose, CODE, CODE, CODE)
    settings = {"drafter": DrafterKind.MODEL, "min_acceptance": options.min_acceptance}
    with open_engine(options, max_sequences=16, **settings) as (engine, models):
        engine.watch(0.0)
        gates: dict[str, str] = {}
        examined = {"first": 0, "second": 0}
        changes = []
        turns = []
        for turn, workload in enumerate(story):
            for name, kind in (("first", workload), ("second", CODE)):
                prompt = tuple(models.codec.encode(kind.texts[turn % len(kind.texts)]))
                request = f"{name}-{turn}"
                engine.submit(
                    Request(request, prompt, options.tokens, kind.sampling, speculation_key=name)
                )
            while engine.has_work:
                result = engine.step()
                for session in result.status.sessions:
                    if session.active and gates.get(session.key) != session.gate.value:
                        gates[session.key] = session.gate.value
                        changes.append((turn + 1, session.key, session.reason))
                        print(f"    {session.key}: {session.reason}")
                for event in result.events:
                    if isinstance(event, FinishEvent):
                        name = event.request_id.partition("-")[0]
                        examined[name] += event.summary.num_examined
            print(f"turn {turn + 1}: first {workload.name}, second {CODE.name}")
            for session in engine.status().sessions:
                acceptance = "-" if session.acceptance is None else f"{session.acceptance:.2f}"
                print(
                    f"  {session.key:7} gate {session.gate.value:8} acceptance {acceptance:5} "
                    f"examined {examined[session.key]:4}  tokens per step "
                    f"{session.tokens_per_step or 0:.2f}  {session.reason}"
                )
                turns.append(
                    {
                        "turn": turn + 1,
                        "session": session.key,
                        "gate": session.gate.value,
                        "acceptance": session.acceptance,
                        "examined": examined[session.key],
                        "reason": session.reason,
                    }
                )
    write_result(
        options.name,
        "python " + " ".join(["ops/bench/collapse.py", *sys.argv[1:]]),
        {"turns": turns, "changes": changes},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
