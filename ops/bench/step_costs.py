"""What a step costs against its rows on this machine, and from where on drafting doesn't pay.

    python ops/bench/step_costs.py [--fresh] [--target ...] [--draft ...]

The table is the one that the engine of `paceline serve` decides by: measured at its first start,
kept, and used again; `--fresh` measures it anew. From it, and by the controller's own functions:
the batch from which one more draft token for everybody no longer pays (the break-even batch), and
for sessions of one acceptance at every depth the best depth and what it gains over plain decoding.

Writes results/step_costs.json, results/step_costs.svg and results/step_gains.svg.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.provenance import RESULTS, write_result  # noqa: E402
from paceline.benchmark.line_chart import write_line_chart  # noqa: E402
from paceline.composition import build_engine, check_models, facts_of, plan_for  # noqa: E402
from paceline.core.config import ServeConfig, resolve  # noqa: E402
from paceline.core.controller_depth import DraftOffer, choose_depths, plain_tokens  # noqa: E402
from paceline.core.controller_session import MODEL_DEPTH  # noqa: E402
from paceline.core.cost import StepShape  # noqa: E402
from paceline.engine.adaptive_policy import AdaptivePolicy  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.controller import Controller
    from paceline.core.cost import CostTable, Curve

SESSIONS = (1, 2, 4, 8, 16, 32, 48)
ACCEPTANCES = (0.4, 0.5, 0.6, 0.7, 0.8)
CONTEXT = 128


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="as for `paceline serve`")
    parser.add_argument("--draft", help="as for `paceline serve`")
    parser.add_argument("--fresh", action="store_true", help="measure anew")
    parser.add_argument("--name", default="step", help="the result files begin with this")
    options = parser.parse_args()
    controller = controller_of(options.target, options.draft, is_fresh=options.fresh)
    result = summary(controller)
    show(result)
    command = "python " + shlex.join(["ops/bench/step_costs.py", *sys.argv[1:]])
    print(write_result(f"{options.name}_costs", command, result))
    # Behind the provenance: a chart of before is a changed file.
    write_charts(result, options.name)
    return 0


def controller_of(target: str | None, draft: str | None, *, is_fresh: bool) -> Controller:
    """Of an engine as `paceline serve` makes it."""
    config = ServeConfig(target=target, draft=draft, max_sequences=max(SESSIONS))
    models = check_models(config)
    decided = resolve(config, facts_of(models))
    plan = plan_for(models, decided, kv_memory=None)
    with _other_cache_folder() if is_fresh else contextlib.nullcontext():
        engine = build_engine(models, decided, plan)
    policy = engine._policy
    assert isinstance(policy, AdaptivePolicy)
    return policy.controller


def summary(controller: Controller) -> dict[str, Any]:
    """Plain values: the table in milliseconds, and what follows from it."""
    table = controller.cost.table
    return {
        "spread": round(table.spread, 3),
        "ms_by_rows": {name: _points(curve) for name, curve in _curves(table).items()},
        "ms_per_1000_tokens_of_context": round(table.context_seconds * 1e6, 4),
        "ms_per_further_sequence": round(table.sequence_seconds * 1e3, 4),
        "break_even_batch": break_even_batch(controller),
        "break_even_rows": {
            sessions: controller.break_even_rows(_decoding(sessions)) for sessions in SESSIONS
        },
        "best": {
            f"{acceptance:g}": {
                sessions: best_depth(controller, sessions, acceptance) for sessions in SESSIONS
            }
            for acceptance in ACCEPTANCES
        },
    }


def break_even_batch(controller: Controller, most: int = 512) -> int | None:
    """The first number of sessions that reaches what the controller calls its break-even at that
    number; None if none up to `most` does."""
    for sessions in range(1, most + 1):
        rows = controller.break_even_rows(_decoding(sessions))
        if rows is not None and rows <= sessions:
            return sessions
    return None


def best_depth(controller: Controller, sessions: int, acceptance: float) -> dict[str, float]:
    """Tokens drafted for each of so many equal sessions by the controller's choice, on average,
    and tokens per second over plain decoding's."""
    base = _decoding(sessions)
    survivals = tuple(acceptance**depth for depth in range(1, MODEL_DEPTH + 1))
    offers = [DraftOffer(survivals, uses_model=controller.cost.has_draft)] * sessions
    worth = plain_tokens(controller.cost, base, base, sessions)
    chosen = choose_depths(controller.cost, base, worth, offers)
    plain = worth / controller.cost.step_seconds(base)
    return {
        "depth": round(sum(chosen.counts) / sessions, 2),
        "gain": round(chosen.rate / plain, 3),
    }


def show(result: dict[str, Any]) -> None:
    rows = result["ms_by_rows"]
    for name, points in rows.items():
        print(f"{name}: " + ", ".join(f"{count}: {ms:.2f}" for count, ms in points) + " ms")
    batch = result["break_even_batch"]
    print("break-even batch: " + ("beyond what was tried" if batch is None else str(batch)))
    for acceptance, by_sessions in result["best"].items():
        cells = ", ".join(
            f"{sessions}: {best['gain']:.2f} ({best['depth']:g})"
            for sessions, best in by_sessions.items()
        )
        print(f"acceptance {acceptance}: gain (depth) at sessions {cells}")


def write_charts(result: dict[str, Any], name: str) -> None:
    """`<name>_costs.svg` and `<name>_gains.svg` among the results."""
    RESULTS.mkdir(exist_ok=True)
    batch = result["break_even_batch"]
    write_line_chart(
        RESULTS / f"{name}_costs.svg",
        "Cost of a step by its rows",
        "rows",
        "ms",
        {name: points for name, points in result["ms_by_rows"].items() if len(points) > 1},
        marks=[] if batch is None else [(batch, f"break-even batch: {batch}")],
    )
    write_line_chart(
        RESULTS / f"{name}_gains.svg",
        "Best depth against plain decoding, by the cost table",
        "sessions",
        "times plain",
        {
            f"acceptance {acceptance}": [
                (int(sessions), best["gain"]) for sessions, best in by_sessions.items()
            ]
            for acceptance, by_sessions in result["best"].items()
        },
    )


def _curves(table: CostTable) -> dict[str, Curve]:
    curves = {
        "target pass": table.target,
        "draft pass, greedy": table.draft_greedy,
        "draft pass, drawn": table.draft_drawn,
        "sampling, greedy": table.sample_greedy,
        "sampling, drawn": table.sample_drawn,
    }
    return {name: curve for name, curve in curves.items() if curve is not None}


def _points(curve: Curve) -> Sequence[tuple[int, float]]:
    return [
        (count, round(seconds * 1e3, 4))
        for count, seconds in zip(curve.counts, curve.seconds, strict=True)
    ]


def _decoding(sessions: int) -> StepShape:
    """A plain step of so many sessions that decode greedily."""
    return StepShape(sessions, sessions, sessions, sessions * CONTEXT)


@contextlib.contextmanager
def _other_cache_folder() -> Iterator[None]:
    before = os.environ.get("XDG_CACHE_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


if __name__ == "__main__":
    sys.exit(main())
