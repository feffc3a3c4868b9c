"""Share of a step's time outside the two models' forwards and sampling, on the default target.

What is left is the engine's own: draining, scheduling, packing, commit, text, prefix cache and
events. Measured on the path that is served by default, plainly, with the draft that is shipped, and
with the target drafting for itself (the most forwards that a step can have), at 1, 8 and 32
sessions. Speculation is forced on, with two drafted tokens a step.

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
from paceline.composition import shipped_draft
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.engine.assembly import HeadPart, ModelPart, assemble
from paceline.engine.drafters import next_tokens
from paceline.model.default_weights import NAME, ensure_default_target
from paceline.model.draft_folder import describe_draft, load_draft
from paceline.model.draft_runner import DraftModuleRunner
from paceline.model.fast import speed_up
from paceline.model.loading import load_target
from paceline.model.runner import ModelRunner
from paceline.model.threads import usable_cores, use_threads
from paceline.model.tokenizer import TextCodec

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.engine.engine import Engine

NUM_BLOCKS = 1024
BLOCK_SIZE = 16
SESSIONS = (1, 8, 32)
PLAIN, SHIPPED, OWN_DRAFT = "plain", "shipped draft, gamma 2", "self-draft, gamma 2"


class Clock:
    """Adds up the seconds inside the calls that it is put around."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            value = call(*args, **kwargs)
            self.seconds += time.perf_counter() - started
            return value

        return timed

    def watch(self, thing: Any, *names: str) -> None:
        for name in names:
            setattr(thing, name, self.around(getattr(thing, name)))


class Bench:
    """The default target, loaded and sped up once, and engines around it."""

    def __init__(self) -> None:
        folder = ensure_default_target()
        self.codec = TextCodec.load(folder)
        self.model = load_target(str(folder))
        shipped = shipped_draft()
        if shipped is None:
            raise SystemExit("this installation has no draft for the default target")
        # Before the target's weights are rearranged: the head borrows its embedding.
        self.shape = describe_draft(shipped).config
        self.heads = [load_draft(describe_draft(shipped), self.model, NAME) for _ in SESSIONS]
        self.decoder = speed_up(self.model).decoder
        self.models, self.sampling = Clock(), Clock()
        # The verifier's sampling is in the step's own times; the drafters' is counted here.
        self.sampling.watch(next_tokens, "draft_tokens")

    def engine(self, drafting: str) -> Engine:
        draft: ModelPart | HeadPart | None = None
        feature_layers: tuple[int, ...] = ()
        config = self.model.config
        if drafting == SHIPPED:
            shape = self.shape
            layers = ((shape.num_key_value_heads, shape.head_dim),) * shape.num_layers
            kv = KVTensors(
                KVShape(layers, self.model.dtype), NUM_BLOCKS, BLOCK_SIZE, self.model.device
            )
            runner = DraftModuleRunner(self.heads.pop(), kv.layers)
            self.models.watch(runner, "condition", "recur", "forward", "logits", "keep_features")
            feature_layers = runner.feature_layers
            draft = HeadPart(runner, config.max_position_embeddings, kv.scrub)
        elif drafting == OWN_DRAFT:
            draft = self._part()
        return assemble(
            target=self._part(feature_layers),
            draft=draft,
            drafter=DrafterKind.NONE if draft is None else DrafterKind.MODEL,
            limits=EngineLimits(8192, NUM_BLOCKS, BLOCK_SIZE, 32, 64, self.codec.vocabulary_size),
            text_stream=self.codec.detokenizer,
            token_budget=512,
            num_speculative_tokens=2,
        )

    def _part(self, feature_layers: tuple[int, ...] = ()) -> ModelPart:
        config = self.model.config
        width = config.hidden_size // config.num_attention_heads
        layers = ((config.num_key_value_heads, width),) * config.num_hidden_layers
        kv = KVTensors(KVShape(layers, self.model.dtype), NUM_BLOCKS, BLOCK_SIZE, self.model.device)
        runner = ModelRunner(
            self.model, kv.layers, feature_layers=feature_layers, decoder=self.decoder
        )
        self.models.watch(runner, "forward")
        return ModelPart(runner, config.max_position_embeddings, kv.scrub)

    def measure(
        self, engine: Engine, num_sessions: int, num_steps: int, prompt: list[int]
    ) -> dict[str, float]:
        """Medians over decoding steps: the whole, and what is inside and outside of forwards and
        sampling."""
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
        steps: dict[str, list[float]] = {"step_ms": [], "models_ms": [], "sampling_ms": []}
        for _ in range(num_steps):
            models, sampling = self.models.seconds, self.sampling.seconds
            started = time.perf_counter()
            result = engine.step()
            steps["step_ms"].append((time.perf_counter() - started) * 1e3)
            steps["models_ms"].append((self.models.seconds - models) * 1e3)
            drafted_ms = (self.sampling.seconds - sampling) * 1e3
            steps["sampling_ms"].append(drafted_ms + result.status.times.sample_ms)
        engine.abort("measured")
        steps["own_ms"] = [
            whole - models - sampling
            for whole, models, sampling in zip(*steps.values(), strict=True)
        ]
        shares = [own / whole for own, whole in zip(steps["own_ms"], steps["step_ms"], strict=True)]
        cell = {name: statistics.median(values) for name, values in steps.items()}
        return cell | {"share": statistics.median(shares)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    use_threads(usable_cores())
    bench = Bench()
    prompt = bench.codec.encode("A generator is a function that yields its values one by one. " * 8)
    result: dict[str, Any] = {"num_threads": torch.get_num_threads(), "cells": []}
    for drafting in (PLAIN, SHIPPED, OWN_DRAFT):
        for num_sessions in SESSIONS:
            engine = bench.engine(drafting)
            cell = bench.measure(engine, num_sessions, arguments.steps, prompt)
            print(
                f"{drafting:22} {num_sessions:3} sessions: step {cell['step_ms']:6.2f} ms, "
                f"models {cell['models_ms']:6.2f}, sampling {cell['sampling_ms']:5.2f}, "
                f"own {cell['own_ms']:5.2f}, {cell['share']:.1%}"
            )
            result["cells"].append({"drafting": drafting, "num_sessions": num_sessions, **cell})
    path = write_result(
        "engine_overhead", f"python ops/bench/engine_overhead.py --steps {arguments.steps}", result
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
