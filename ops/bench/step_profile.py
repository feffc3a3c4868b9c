"""Where the milliseconds of a plain step go on this machine, with the fast path and without it.

    python ops/bench/step_profile.py [--rounds 20] [--quick]

Three tables, of the default target in bfloat16: a step's cost by rows, by sessions and contexts,
and by part. What is compared runs interleaved in one process, and medians are given. "transformers"
is the unchanged model with torch's attention over the same paged memory (`--no-fast-path`).
Writes results/step_profile.json and results/step_profile.svg, or those of `--name`.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import statistics
import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import torch
from provenance import RESULTS, write_result

from paceline.benchmark.line_chart import write_line_chart
from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.model.batch import PackedBatch, Segment, pack
from paceline.model.default_weights import ensure_default_target
from paceline.model.fast import LeanDecoder, speed_up
from paceline.model.loading import load_target
from paceline.model.runner import ModelRunner
from paceline.model.threads import usable_cores, use_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from paceline.model.attention import AttentionContext

BLOCK_SIZE = 16
ROWS = (1, 2, 4, 8, 16, 24, 32, 64)
SESSIONS = (1, 4, 16)
CONTEXTS = (100, 1000, 4000)
PROMPT = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--quick", action="store_true", help="contexts of 100 and 1000 only")
    parser.add_argument("--name", default="step_profile", help="of the result files")
    arguments = parser.parse_args()
    use_threads(usable_cores())
    contexts = CONTEXTS[:2] if arguments.quick else CONTEXTS
    num_blocks = max(SESSIONS) * (max(contexts) // BLOCK_SIZE + 6)
    plain_model, fast_model = _load(), _load()
    fast = speed_up(fast_model)
    assert fast.decoder is not None, fast.kept
    runners = {
        "transformers": ModelRunner(
            plain_model, _memory(plain_model, num_blocks), allow_native=False
        ),
        "fast path": ModelRunner(fast_model, _memory(fast_model, num_blocks), decoder=fast.decoder),
    }
    bandwidth = _bandwidth()
    weights = sum(p.numel() * p.element_size() for p in plain_model.parameters())
    result: dict[str, Any] = {
        "read_bandwidth_gb_s": round(bandwidth / 1e9, 1),
        "weights_mb": round(weights / 1e6, 1),
        "one_read_of_the_weights_ms": round(weights / bandwidth * 1e3, 2),
        "replaced": list(fast.replaced),
    }
    print(
        f"one read of the weights at {bandwidth / 1e9:.0f} GB/s: {weights / bandwidth * 1e3:.1f} ms"
    )
    by_rows = {rows: _compare(runners, _batch(1, 100, rows), arguments.rounds) for rows in ROWS}
    _show("ms a step by rows (one session, context 100)", by_rows)
    prefill = _compare(runners, _prefill(PROMPT), max(3, arguments.rounds // 4))
    _show(f"ms for a prefill of {PROMPT} tokens", {PROMPT: prefill})
    by_load = {
        f"{sessions} x {context}": _compare(runners, _batch(sessions, context, 1), arguments.rounds)
        for context in contexts
        for sessions in SESSIONS
    }
    _show("ms a step by sessions x context", by_load)
    parts = {}
    for sessions in (1, 16):
        batch = _batch(sessions, 100, 1)
        before = _parts_of_modules(plain_model, runners["transformers"], batch, arguments.rounds)
        after = _parts_of_decoder(fast.decoder, runners["fast path"], batch, arguments.rounds)
        parts[sessions] = {"transformers": before, "fast path": after}
        for name, table in parts[sessions].items():
            cells = ", ".join(f"{part} {ms:.2f}" for part, ms in table.items())
            print(f"{sessions} sessions, {name}: {cells}")
    result |= {"by_rows": by_rows, "prefill": prefill, "by_load": by_load, "parts": parts}
    command = "python " + shlex.join(["ops/bench/step_profile.py", *sys.argv[1:]])
    path = write_result(arguments.name, command, result)
    chart = RESULTS / f"{arguments.name}.svg"
    write_line_chart(
        chart,
        "Cost of one step, SmolLM2-135M, context 100",
        "rows in the step",
        "ms",
        {name: [(rows, by_rows[rows][name]) for rows in ROWS] for name in runners},
        marks=[(_knee(by_rows), "twice one row")],
    )
    print(path, chart)


def _knee(by_rows: dict[int, dict[str, float]]) -> float:
    """Rows from which a fast step costs twice what it does with one: beyond it a drafted row costs
    about its share, and speculation has to be accepted almost always to pay."""
    base = by_rows[1]["fast path"]
    beyond = [rows for rows in ROWS if by_rows[rows]["fast path"] > 2 * base]
    return float(beyond[0] if beyond else ROWS[-1])


def _load() -> PreTrainedModel:
    return load_target(str(ensure_default_target()))


def _memory(model: PreTrainedModel, num_blocks: int) -> tuple[Tensor, ...]:
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    shape = KVShape(((config.num_key_value_heads, width),) * config.num_hidden_layers, model.dtype)
    return KVTensors(shape, num_blocks, BLOCK_SIZE, model.device).layers


def _batch(sessions: int, context: int, rows: int) -> PackedBatch:
    """Each session computes `rows` tokens behind `context`; blocks interleaved as they are when
    sessions grow side by side."""
    width = (context + rows) // BLOCK_SIZE + 1
    return pack(
        [
            Segment([7] * rows, context, range(which, sessions * width, sessions), rows)
            for which in range(sessions)
        ],
        BLOCK_SIZE,
    )


def _prefill(length: int) -> PackedBatch:
    return pack([Segment(range(5, 5 + length), 0, range(length // BLOCK_SIZE + 1), 1)], BLOCK_SIZE)


def _compare(runners: dict[str, ModelRunner], batch: PackedBatch, rounds: int) -> dict[str, float]:
    """Median milliseconds of each, taken in turn."""
    times = defaultdict(list)
    for turn in range(rounds + 2):
        for name, runner in runners.items():
            started = time.perf_counter()
            runner.forward(batch)
            if turn >= 2:
                times[name].append((time.perf_counter() - started) * 1e3)
    return {name: round(statistics.median(values), 2) for name, values in times.items()}


def _bandwidth() -> float:
    """Bytes a second that a sum over memory far larger than the caches reads."""
    block = torch.ones(64 << 20, dtype=torch.float32)
    best = min(_timed(block.sum) for _ in range(6))
    return block.numel() * block.element_size() / best


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


class _Clock:
    """Adds up seconds by part."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def around(self, part: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            value = call(*args, **kwargs)
            self.seconds[part] += time.perf_counter() - started
            return value

        return timed

    def table(self, rounds: int, whole_s: float) -> dict[str, float]:
        """Milliseconds a step by part, what is left, and the whole."""
        parts = {part: s / rounds * 1e3 for part, s in sorted(self.seconds.items())}
        whole = whole_s / rounds * 1e3
        parts["everything else"] = whole - sum(parts.values())
        parts["whole"] = whole
        return {part: round(ms, 2) for part, ms in parts.items()}


def _parts_of_modules(
    model: PreTrainedModel, runner: ModelRunner, batch: PackedBatch, rounds: int
) -> dict[str, float]:
    """Time inside the model's modules, by kind."""
    clock = _Clock()
    changed: list[nn.Module] = []
    for name, module in model.named_modules():
        part = _part_of(name)
        if part is not None:
            module.forward = clock.around(part, module.forward)
            changed.append(module)
    context = runner._context

    def timed_context(batch: PackedBatch) -> AttentionContext:
        made = context(batch)
        made.attend = clock.around("attention", made.attend)  # type: ignore[method-assign]
        return made

    runner._context = timed_context  # type: ignore[method-assign]
    try:
        return clock.table(rounds, _run(runner, batch, rounds, clock))
    finally:
        runner._context = context  # type: ignore[method-assign]
        for module in changed:
            del module.forward


def _part_of(name: str) -> str | None:
    last = name.rpartition(".")[2]
    if last in ("q_proj", "k_proj", "v_proj", "o_proj"):
        return "attention projections"
    if last in ("gate_proj", "up_proj", "down_proj", "act_fn"):
        return "feed-forward"
    if last in ("input_layernorm", "post_attention_layernorm", "norm"):
        return "norms"
    return {"lm_head": "output head", "rotary_emb": "rotary table"}.get(last)


def _parts_of_decoder(
    decoder: LeanDecoder, runner: ModelRunner, batch: PackedBatch, rounds: int
) -> dict[str, float]:
    """Time of a lean layer's pieces, called one by one; the whole is the step as it is served."""
    whole = _run(runner, batch, rounds, _Clock())
    clock = _Clock()
    served = decoder._native, decoder._layers, decoder._head
    decoder._native = []
    decoder._layers = tuple(_taken_apart(layer, clock) for layer in served[1])
    decoder._head = clock.around("output head", served[2])
    rotary = decoder._rotary
    rotary.rotation = clock.around("rotary table", rotary.rotation)  # type: ignore[method-assign]
    try:
        _run(runner, batch, rounds, clock)
    finally:
        decoder._native, decoder._layers, decoder._head = served
        del rotary.rotation
    table = clock.table(rounds, whole)
    pieces = sum(ms for part, ms in table.items() if part not in ("whole", "everything else"))
    # Taken apart, the pieces pay for calls that the one call of a layer saves.
    table["saved by one call a layer"] = round(max(0.0, pieces - table["whole"]), 2)
    table["everything else"] = max(0.0, table["everything else"])
    return table


def _taken_apart(layer: Any, clock: _Clock) -> Any:
    class Timed:
        kernels = layer.operations.kernels
        norm = staticmethod(clock.around("norms", layer.operations.norm))
        add_norm = staticmethod(clock.around("norms", layer.operations.add_norm))
        turn = staticmethod(clock.around("rotary embedding", layer.operations.turn))

    class Apart:
        index = layer.index

        @staticmethod
        def forward(rows: Tensor, rotation: Any, context: Any) -> Tensor:
            timed = _TimedContext(context, clock)
            return changed.forward(rows, rotation, timed)  # type: ignore[no-any-return]

    changed = dataclasses.replace(
        layer,
        operations=Timed(),
        query_key_value=clock.around("attention projections", layer.query_key_value),
        output=clock.around("attention projections", layer.output),
        gated=clock.around("feed-forward", layer.gated),
        down=clock.around("feed-forward", layer.down),
    )
    return Apart()


class _TimedContext:
    def __init__(self, context: Any, clock: _Clock) -> None:
        self.attend = clock.around("attention", context.attend)


def _run(runner: ModelRunner, batch: PackedBatch, rounds: int, clock: _Clock) -> float:
    """Seconds of `rounds` steps, after two that do not count."""
    for _ in range(2):
        runner.forward(batch)
    clock.seconds.clear()
    return _timed(lambda: [runner.forward(batch) for _ in range(rounds)])


def _show(title: str, table: dict[Any, dict[str, float]]) -> None:
    print(title)
    for key, row in table.items():
        base = row["transformers"]
        cells = ", ".join(f"{name} {ms:.1f}" for name, ms in row.items())
        print(f"  {key}: {cells} ({base / row['fast path']:.2f}x)")


if __name__ == "__main__":
    main()
