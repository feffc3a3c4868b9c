"""How much of what the draft drafts the target accepts: by workload, temperature and depth.

    python ops/bench/acceptance.py [--tokens 128] [--answers 32] [--sessions 16]

The engine of `paceline serve` answers the prompts of `paceline bench`, of which none was used to
train the shipped draft, with four drafted tokens in every round whatever comes of it. Counted is
what the server's metrics count: at each depth the positions that were examined, by the token rule,
and those of them that were accepted, on what the draft really rolled out behind its own tokens.

coverage: the share of the answers' tokens that the draft's trimmed vocabulary holds, a limit of
what can be accepted but at temperature 1.5, where the draft's tail has the others. What a drafted
token costs is in `step_costs.py`.

Writes results/acceptance.json.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from ops.bench.engines import add_model_options, open_engine, prompts_of  # noqa: E402
from ops.bench.provenance import write_result  # noqa: E402
from ops.bench.workloads import Workload  # noqa: E402
from paceline.benchmark.workloads import NAMES, find_workload  # noqa: E402
from paceline.core.events import FinishEvent, TokenEvent  # noqa: E402
from paceline.core.request import (  # noqa: E402
    DrafterKind,
    Request,
    SamplingParams,
    Speculation,
)
from paceline.model.draft_folder import OUTPUT_IDS, DraftDescription  # noqa: E402

if TYPE_CHECKING:
    from paceline.composition import Models
    from paceline.engine.engine import Engine
    from paceline.model.tokenizer import TextCodec

DEPTH = 4
TEMPERATURES = (0.0, 1.0, 1.5)


@dataclass(frozen=True, slots=True)
class Counted:
    """passed, examined: by depth. num_covered: of num_tokens, those that the draft has an output
    for."""

    passed: tuple[int, ...]
    examined: tuple[int, ...]
    num_tokens: int
    num_covered: int

    def to_json(self) -> dict[str, Any]:
        return {
            "acceptance_by_depth": [
                round(passed / examined, 4) if examined else None
                for passed, examined in zip(self.passed, self.examined, strict=True)
            ],
            "acceptance": round(sum(self.passed) / max(1, sum(self.examined)), 4),
            "examined_by_depth": list(self.examined),
            "coverage": round(self.num_covered / max(1, self.num_tokens), 4),
            "num_tokens": self.num_tokens,
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_model_options(parser)
    parser.add_argument("--workloads", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument(
        "--answers", type=int, default=32, help="of each workload, at most; greedily one a prompt"
    )
    parser.add_argument("--tokens", type=int, default=128, help="of each answer")
    options = parser.parse_args()
    rows = []
    with open_engine(options, max_sequences=options.sessions) as (engine, models):
        can_draft = drafted_ids(models)
        for name, temperature in itertools.product(options.workloads, TEMPERATURES):
            packaged = find_workload(name)
            sampling = SamplingParams(temperature=temperature)
            workload = Workload(name, packaged.texts, sampling, packaged.is_chat)
            # What greedy decoding says to a prompt, it says again.
            most = options.answers if temperature else len(packaged.texts)
            prompts = prompts_of(models.codec, workload, min(options.answers, most))
            counted = measure(engine, models.codec, prompts, sampling, options.tokens, can_draft)
            row = {"workload": name, "temperature": temperature, **counted.to_json()}
            rows.append(row)
            depths = " ".join(f"{rate or 0:.3f}" for rate in row["acceptance_by_depth"])
            covered = f"covered {row['coverage']:.3f}"
            print(f"{name:24} T={temperature:g}  {depths}  {covered}", flush=True)
        result = {"rows": rows, "depth": DEPTH, "draft": models.draft_name}
    command = "python " + shlex.join(["ops/bench/acceptance.py", *sys.argv[1:]])
    print(write_result("acceptance", command, result))
    return 0


def drafted_ids(models: Models) -> frozenset[int] | None:
    """Token ids that the draft has an output for; None for all of them."""
    if not isinstance(models.draft, DraftDescription):
        return None
    with safe_open(models.draft.folder / "model.safetensors", "pt") as weights:
        return frozenset(weights.get_tensor(OUTPUT_IDS).tolist())


def measure(
    engine: Engine,
    codec: TextCodec,
    prompts: list[tuple[int, ...]],
    sampling: SamplingParams,
    num_tokens: int,
    can_draft: frozenset[int] | None,
) -> Counted:
    """All prompts answered. Raises RuntimeError if an answer fails."""
    before = engine.status().totals
    for index, prompt in enumerate(prompts):
        engine.submit(
            Request(
                f"{sampling.temperature:g} {index}",
                prompt,
                num_tokens,
                sampling,
                codec.eos_token_ids,
                speculation=Speculation.ON,
                drafter=DrafterKind.MODEL,
                num_speculative_tokens=DEPTH,
            )
        )
    ids: list[int] = []
    while engine.has_work:
        for event in engine.step().events:
            match event:
                case TokenEvent():
                    ids += [token.token_id for token in event.tokens]
                case FinishEvent() if event.error is not None:
                    raise RuntimeError(event.error)
                case _:
                    pass
    after = engine.status().totals

    def grown(now: tuple[int, ...], then: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(new - old for new, old in zip(now, then, strict=True))[:DEPTH]

    return Counted(
        grown(after.passed_per_position, before.passed_per_position),
        grown(after.examined_per_position, before.examined_per_position),
        len(ids),
        sum(can_draft is None or token in can_draft for token in ids),
    )


if __name__ == "__main__":
    sys.exit(main())
