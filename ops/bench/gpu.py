"""What a GPU does with all this, in at most 8 minutes: tests, then plain against speculative.

    python ops/bench/gpu.py                 on a machine with one GPU of 48 GB or more
    python ops/bench/gpu.py --dry-run       the same steps on a CPU with a tiny model

First the tests marked `gpu`. Then an 8B target and a 1B draft of random weights, at 1, 8, 32 and
128 sessions: plain and with 4 drafted tokens, with CUDA graphs and without, in turns in one
process. Random weights agree on nothing, so acceptance is scripted: the target's logits, computed
in full, are overwritten so that each drafted token is accepted with the given probability. All
else, drafting, verification, acceptance, rollback, is what serves. Writes results/gpu.json.
"""

from __future__ import annotations

import argparse
import random
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

from ops.bench.provenance import write_result  # noqa: E402
from paceline.cache.kv_tensors import KVShape, KVTensors  # noqa: E402
from paceline.core.events import FinishEvent  # noqa: E402
from paceline.core.limits import EngineLimits  # noqa: E402
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation  # noqa: E402
from paceline.engine.assembly import ModelPart, assemble  # noqa: E402
from paceline.model.attention import ATTENTION_NAME  # noqa: E402
from paceline.model.graphs import ROWS, GraphRunner  # noqa: E402
from paceline.model.runner import ForwardOutput, ModelRunner  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from paceline.engine.engine import Engine
    from paceline.engine.runner import Runner
    from paceline.model.attention_cuda import VarlenKernel
    from paceline.model.batch import PackedBatch
    from paceline.model.graphs import Recording

NO_GPU = "no CUDA device here: run this on a machine with one, or with --dry-run on a CPU"
TEST_SECONDS = 150
SECONDS = 480
ACCEPTED_LOGIT = 1e4


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured. prompt, tokens: of each session. gamma: drafted in each step."""

    target: LlamaConfig
    draft: LlamaConfig
    sessions: tuple[int, ...]
    prompt: int
    tokens: int
    rounds: int
    gamma: int
    acceptance: float
    block_size: int
    dtype: torch.dtype


class ScriptedAcceptance:
    """A target whose logits, computed in full, then accept drafts by script: a row's greedy token
    is the token that follows it in the batch, with the given probability, else another one."""

    def __init__(self, runner: Runner, acceptance: float, vocabulary_size: int) -> None:
        self._runner = runner
        self._acceptance = acceptance
        self._vocabulary_size = vocabulary_size
        self._random = np.random.default_rng(0)

    def forward(self, batch: PackedBatch) -> ForwardOutput:
        output = self._runner.forward(batch)
        rows = batch.logit_rows
        following = np.append(batch.token_ids[1:], 0)[rows]
        other = (following + 1 + self._random.integers(0, 1000, len(rows))) % self._vocabulary_size
        is_accepted = self._random.random(len(rows)) < self._acceptance
        winner = torch.from_numpy(np.where(is_accepted, following, other))
        winner = winner.to(output.logits.device)
        logits = output.logits.scatter(1, winner[:, None], ACCEPTED_LOGIT)
        return ForwardOutput(logits, output.features)


def gpu_plan(acceptance: float, block_size: int) -> Plan:
    """The shapes of Llama 3.1 8B and Llama 3.2 1B."""
    common: dict[str, Any] = {
        "vocab_size": 128256,
        "max_position_embeddings": 4096,
        "num_key_value_heads": 8,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    target = LlamaConfig(
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        tie_word_embeddings=False,
        **common,
    )
    draft = LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        tie_word_embeddings=True,
        **common,
    )
    sessions = (1, 8, 32, 128)
    return Plan(target, draft, sessions, 256, 64, 3, 4, acceptance, block_size, torch.bfloat16)


def dry_plan(acceptance: float) -> Plan:
    """The same on a CPU, as small as can be."""
    shape: dict[str, Any] = {
        "vocab_size": 1200,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    target = LlamaConfig(num_hidden_layers=2, **shape)
    draft = LlamaConfig(num_hidden_layers=1, **shape)
    return Plan(target, draft, (1, 2), 6, 11, 1, 4, acceptance, 4, torch.float32)


class Bench:
    """Both models, their memory, and an engine with graphs and one without over them.

    record, kernel: for running without CUDA, see `GraphRunner` and `ModelRunner`.
    """

    def __init__(
        self,
        plan: Plan,
        device: torch.device,
        *,
        record: Callable[[Callable[[], ForwardOutput]], Recording] | None = None,
        kernel: VarlenKernel | None = None,
    ) -> None:
        self.plan = plan
        self._device = device
        self._record = record
        self._kernel = kernel
        self._num_requests = 0
        per_session = -(-(plan.prompt + plan.tokens + plan.gamma + 2) // plan.block_size)
        self._num_blocks = max(plan.sessions) * (per_session + 1)
        self._max_model_len = (per_session + 1) * plan.block_size
        self._target = _random_model(plan.target, plan.dtype, device)
        self._draft = _random_model(plan.draft, plan.dtype, device)
        self.record_seconds = 0.0
        self.engines = {False: self._engine(has_graphs=False)}
        self.engines[True] = self._engine(has_graphs=True)

    def rate(self, *, has_graphs: bool, gamma: int, sessions: int) -> tuple[float, float]:
        """Tokens per second of all sessions together, from when all are decoding, and tokens for
        each step of a session."""
        engine, plan = self.engines[has_graphs], self.plan
        source = random.Random(sessions)
        for _ in range(sessions):
            self._num_requests += 1
            prompt = source.choices(range(plan.target.vocab_size), k=plan.prompt)
            engine.submit(
                Request(
                    f"r{self._num_requests}",
                    tuple(prompt),
                    plan.tokens,
                    SamplingParams(temperature=0.0),
                    speculation=Speculation.ON if gamma else Speculation.OFF,
                    num_speculative_tokens=gamma or None,
                )
            )
        started, waiting, tokens, passes = 0.0, sessions, 0, 0
        is_begun: set[str] = set()
        while engine.has_work:
            events = engine.step().events
            if not waiting:
                passes += sum(not isinstance(event, FinishEvent) for event in events)
                tokens += sum(
                    len(event.tokens) for event in events if not isinstance(event, FinishEvent)
                )
            for event in events:
                if isinstance(event, FinishEvent):
                    if event.error is not None:
                        raise RuntimeError(event.error)
                elif event.request_id not in is_begun:
                    is_begun.add(event.request_id)
                    waiting -= 1
                    if not waiting:
                        self._wait()
                        started = time.perf_counter()
        self._wait()
        seconds = time.perf_counter() - started
        return tokens / seconds, tokens / max(1, passes)

    def _engine(self, *, has_graphs: bool) -> Engine:
        plan = self.plan
        scratch, parts = self._num_blocks, []
        for model in (self._target, self._draft):
            kv = KVTensors(_kv_shape(model, plan.dtype), scratch + 1, plan.block_size, self._device)
            runner: Any = ModelRunner(model, kv.layers, kernel=self._kernel)
            if has_graphs:
                started = time.perf_counter()
                runner = GraphRunner(
                    runner,
                    scratch_block=scratch,
                    block_size=plan.block_size,
                    max_model_len=self._max_model_len,
                    most_rows=_rows_needed(max(plan.sessions) * (1 + plan.gamma)),
                    record=self._record,
                )
                runner.record_all()
                self._wait()
                self.record_seconds += time.perf_counter() - started
            if model is self._target:
                runner = ScriptedAcceptance(runner, plan.acceptance, plan.target.vocab_size)
            parts.append(ModelPart(runner, self._max_model_len, kv.scrub))
        return assemble(
            target=parts[0],
            draft=parts[1],
            drafter=DrafterKind.MODEL,
            limits=EngineLimits(
                max_model_len=self._max_model_len,
                num_blocks=self._num_blocks,
                block_size=plan.block_size,
                max_sequences=max(plan.sessions),
                max_waiting=max(plan.sessions),
                vocabulary_size=plan.target.vocab_size,
            ),
            text_stream=lambda prompt_ids: _NoText(),
            token_budget=max(2048, max(plan.sessions) * (1 + plan.gamma)),
            num_speculative_tokens=plan.gamma,
            prefix_caching=False,
        )

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def measure(bench: Bench, deadline: float) -> list[dict[str, Any]]:
    """A row for each number of sessions: medians over rounds of tokens per second, in turns, and
    ratios to plain without graphs. Rounds after the first are left out when time is up."""
    rows = []
    gamma = bench.plan.gamma
    columns = {
        "plain": (False, 0),
        "speculative": (False, gamma),
        "plain, graphs": (True, 0),
        "speculative, graphs": (True, gamma),
    }
    for sessions in bench.plan.sessions:
        rates: dict[str, list[float]] = {name: [] for name in columns}
        per_step: dict[str, float] = {}
        for number in range(bench.plan.rounds + 1):
            if number > 1 and time.monotonic() > deadline:
                break
            order = list(columns)
            random.Random(number).shuffle(order)
            for name in order:
                has_graphs, depth = columns[name]
                rate, per_step[name] = bench.rate(
                    has_graphs=has_graphs, gamma=depth, sessions=sessions
                )
                if number:  # the first round warms up
                    rates[name].append(rate)
        medians = {name: statistics.median(values) for name, values in rates.items()}
        ratios = {name: round(rate / medians["plain"], 3) for name, rate in medians.items()}
        row = {
            "sessions": sessions,
            "rounds": len(rates["plain"]),
            "tokens_per_second": {name: round(rate, 1) for name, rate in medians.items()},
            "ratio_to_plain": ratios,
            "tokens_per_step": {name: round(value, 3) for name, value in per_step.items()},
        }
        rows.append(row)
        cells = ", ".join(f"{name} {rate:.0f}" for name, rate in medians.items())
        ratio = ratios["speculative, graphs"]
        print(f"{sessions} sessions: {cells} tok/s; all of it {ratio:.2f} of plain", flush=True)
    return rows


def run_gpu_tests(seconds: float) -> dict[str, Any]:
    """The tests marked `gpu`, in a process of their own."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"exit_code": None, "said": f"not over after {seconds:.0f} s"}
    # 5: there are none.
    return {"exit_code": done.returncode, "said": done.stdout.strip()[-1500:]}


def main(arguments: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry-run", action="store_true", help="on a CPU, with a tiny model")
    parser.add_argument("--acceptance", type=float, default=0.7, help="of each drafted token")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for everything")
    parser.add_argument("--block-size", type=int, default=16, help="tokens in a K/V block")
    parser.add_argument("--no-tests", action="store_true", help="leave the tests out")
    options = parser.parse_args(None if arguments is None else list(arguments))
    if not 0.0 <= options.acceptance <= 1.0:
        parser.error(f"--acceptance is {options.acceptance}; it must be from 0 to 1")
    deadline = time.monotonic() + options.seconds
    if options.dry_run:
        bench = Bench(
            dry_plan(options.acceptance),
            torch.device("cpu"),
            record=record_by_running_again,
            kernel=kernel_for_dry_run,
        )
        print("dry run on a CPU: the figures mean nothing")
        measure(bench, deadline)
        return 0
    if not torch.cuda.is_available():
        print(NO_GPU)
        return 2
    tests = {} if options.no_tests else run_gpu_tests(TEST_SECONDS)
    print(tests.get("said", ""))
    plan = gpu_plan(options.acceptance, options.block_size)
    bench = Bench(plan, torch.device("cuda"))
    print(f"graphs recorded in {bench.record_seconds:.0f} s", flush=True)
    result = {
        "device": torch.cuda.get_device_name(),
        "acceptance": options.acceptance,
        "gamma": bench.plan.gamma,
        "record_seconds": round(bench.record_seconds, 1),
        "tests": tests,
        "rows": measure(bench, deadline),
    }
    print(write_result("gpu", "python " + shlex.join(["ops/bench/gpu.py", *sys.argv[1:]]), result))
    return 0 if tests.get("exit_code", 0) in (0, 5) else 1


def record_by_running_again(run: Callable[[], ForwardOutput]) -> Recording:
    """What a graph does, where there are none: the pass is run again, into the same memory."""
    from paceline.model.graphs import Recording

    output = run()

    def replay() -> None:
        output.logits.copy_(run().logits)

    return Recording(replay, output)


def kernel_for_dry_run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    max_q: int,
    max_k: int,
    *,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool,
    seqused_k: torch.Tensor,
    block_table: torch.Tensor,
    num_splits: int,
) -> torch.Tensor:
    """See `VarlenKernel`: sequence by sequence, causal, without windows."""
    output = torch.zeros_like(query)
    bounds = cu_seq_q.tolist()
    for index, used in enumerate(seqused_k.tolist()):
        start, end = bounds[index], bounds[index + 1]
        if start == end:
            continue
        rows = block_table[index].long()
        keys, values = (each[rows].flatten(0, 1)[:used] for each in (key, value))
        positions = torch.arange(used - (end - start), used)
        mask = torch.arange(used)[None, :] <= positions[:, None]
        output[start:end] = torch.nn.functional.scaled_dot_product_attention(
            query[start:end].transpose(0, 1),
            keys.transpose(0, 1),
            values.transpose(0, 1),
            attn_mask=mask,
            scale=scale,
            enable_gqa=enable_gqa,
        ).transpose(0, 1)
    return output


class _NoText:
    def append(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


def _random_model(config: LlamaConfig, dtype: torch.dtype, device: torch.device) -> Any:
    """Made on the device, since copying 16 GB there takes longer."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    model.train(mode=False)
    model.set_attn_implementation(ATTENTION_NAME)
    return model


def _kv_shape(model: Any, dtype: torch.dtype) -> KVShape:
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    return KVShape(((config.num_key_value_heads, width),) * config.num_hidden_layers, dtype)


def _rows_needed(rows: int) -> int:
    """The recorded shape that holds so many rows, or the largest."""
    return next((each for each in ROWS if each >= rows), ROWS[-1])


if __name__ == "__main__":
    sys.exit(main())
