"""Share of a step's time outside the two models' forwards and sampling, on the default target.

What is left is the engine's own: draining, scheduling, packing, commit, text, prefix cache and
events. Measured with the target drafting for itself at gamma 2, which is the busiest step there is,
and plainly, at 1, 8 and 32 sessions.

    python ops/bench/engine_overhead.py [--steps 60]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
from provenance import write_result

from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.engine.assembly import ModelPart, assemble
from paceline.model.default_weights import ensure_default_target
from paceline.model.loading import load_target
from paceline.model.runner import ModelRunner
from paceline.model.tokenizer import TextCodec

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.engine.engine import Engine
    from paceline.model.batch import PackedBatch
    from paceline.model.runner import ForwardOutput

NUM_BLOCKS = 1024
BLOCK_SIZE = 16


class TimedRunner:
    """A runner that counts the time spent inside its model."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.seconds = 0.0

    def forward(self, batch: PackedBatch) -> ForwardOutput:
        started = time.perf_counter()
        output = self._runner.forward(batch)
        self.seconds += time.perf_counter() - started
        return output


def build(
    model: PreTrainedModel, codec: TextCodec, *, has_draft: bool
) -> tuple[Engine, list[TimedRunner]]:
    runners, parts = [], []
    config = model.config
    width = config.hidden_size // config.num_attention_heads
    for _ in range(1 + has_draft):
        shape = KVShape(
            ((config.num_key_value_heads, width),) * config.num_hidden_layers, model.dtype
        )
        kv = KVTensors(shape, NUM_BLOCKS, BLOCK_SIZE, model.device)
        runner = TimedRunner(ModelRunner(model, kv.layers))
        runners.append(runner)
        parts.append(ModelPart(runner, config.max_position_embeddings, kv.scrub))
    engine = assemble(
        target=parts[0],
        draft=parts[1] if has_draft else None,
        drafter=DrafterKind.MODEL if has_draft else DrafterKind.NONE,
        limits=EngineLimits(8192, NUM_BLOCKS, BLOCK_SIZE, 32, 64, codec.vocabulary_size),
        text_stream=codec.detokenizer,
        token_budget=512,
        num_speculative_tokens=2,
    )
    return engine, runners


def measure(
    engine: Engine, runners: list[TimedRunner], num_sessions: int, num_steps: int, prompt: list[int]
) -> dict[str, float]:
    """Medians over decoding steps: the whole step, and what is outside forwards and sampling."""
    for index in range(num_sessions):
        engine.submit(
            Request(
                f"{time.monotonic_ns()}-{index}",
                tuple(prompt[index:]),
                400,
                SamplingParams(temperature=0.8, top_p=0.95),
                speculation=Speculation.ON,
            )
        )
    for _ in range(4 + num_sessions // 4):
        engine.step()
    wholes, owns = [], []
    for _ in range(num_steps):
        before = sum(runner.seconds for runner in runners)
        started = time.perf_counter()
        result = engine.step()
        whole = (time.perf_counter() - started) * 1e3
        forwards = (sum(runner.seconds for runner in runners) - before) * 1e3
        wholes.append(whole)
        owns.append(whole - forwards - result.status.times.sample_ms)
    engine.abort("measured")
    shares = [own / whole for own, whole in zip(owns, wholes, strict=True)]
    return {
        "step_ms": statistics.median(wholes),
        "own_ms": statistics.median(owns),
        "share": statistics.median(shares),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    folder = ensure_default_target()
    codec = TextCodec.load(folder)
    model = load_target(str(folder))
    prompt = codec.encode("A generator is a function that yields its values one by one. " * 8)
    result: dict[str, Any] = {"num_threads": torch.get_num_threads(), "cells": []}
    for has_draft in (False, True):
        for num_sessions in (1, 8, 32):
            engine, runners = build(model, codec, has_draft=has_draft)
            cell = measure(engine, runners, num_sessions, arguments.steps, prompt)
            name = "self-draft, gamma 2" if has_draft else "plain"
            print(
                f"{name:20} {num_sessions:3} sessions: step {cell['step_ms']:7.1f} ms, "
                f"own {cell['own_ms']:5.2f} ms, {cell['share']:.1%}"
            )
            result["cells"].append({"drafting": name, "num_sessions": num_sessions, **cell})
    path = write_result(
        "engine_overhead", f"python ops/bench/engine_overhead.py --steps {arguments.steps}", result
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
