"""Acceptance collapses in one session while its neighbour goes on, on the real models.

    python ops/bench/collapse.py [--draft layers:4]

Two sessions, turn by turn: code, then for the first one prose at temperature 1.5, then code again.
Prints what telemetry tells of both after every turn, and each change of a gate when it happens.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.stand_in import stand_in_draft  # noqa: E402
from ops.bench.workloads import WORKLOADS  # noqa: E402
from paceline.composition import build_engine, check_models, facts_of, plan_for  # noqa: E402
from paceline.core.config import ServeConfig, resolve  # noqa: E402
from paceline.core.events import FinishEvent  # noqa: E402
from paceline.core.request import DrafterKind, Request  # noqa: E402

CODE, PROSE = WORKLOADS[1], WORKLOADS[3]
TURNS = (CODE, CODE, PROSE, PROSE, PROSE, CODE, CODE, CODE)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", help="as for `paceline serve`")
    parser.add_argument("--draft", help="as for `paceline serve`, or layers:N")
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        draft = options.draft
        if draft is not None and draft.startswith("layers:"):
            layers = int(draft.removeprefix("layers:"))
            draft = str(stand_in_draft(options.target, layers, Path(folder)))
        models = check_models(
            ServeConfig(target=options.target, draft=draft, drafter=DrafterKind.MODEL)
        )
        config = resolve(ServeConfig(drafter=DrafterKind.MODEL, max_sequences=4), facts_of(models))
        engine = build_engine(models, config, plan_for(models, config, kv_memory=1 << 30))
    engine.watch(0.0)
    gates: dict[str, str] = {}
    examined = {"first": 0, "second": 0}
    for turn, workload in enumerate(TURNS):
        for name, kind in (("first", workload), ("second", CODE)):
            text = kind.texts[turn % len(kind.texts)]
            prompt = tuple(models.codec.encode(text))
            engine.submit(
                Request(
                    f"{name}-{turn}", prompt, options.tokens, kind.sampling, speculation_key=name
                )
            )
        while engine.has_work:
            result = engine.step()
            for session in result.status.sessions:
                if session.active and gates.get(session.key) != session.gate.value:
                    gates[session.key] = session.gate.value
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
