"""An engine as `paceline serve` makes it, for benchmarks that drive it from one thread."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ops.bench.stand_in import stand_in_draft
from paceline.composition import build_engine, check_models, facts_of, plan_for
from paceline.core.config import ServeConfig, resolve
from paceline.model.chat import ChatMessage

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ops.bench.workloads import Workload
    from paceline.composition import Models
    from paceline.engine.engine import Engine
    from paceline.model.tokenizer import TextCodec

KV_BYTES = 3 << 30


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """`--target` and `--draft`."""
    parser.add_argument("--target", help="as for `paceline serve`")
    parser.add_argument("--draft", help="as for `paceline serve`, or layers:N, a stand-in")


@contextmanager
def open_engine(options: argparse.Namespace, **settings: object) -> Iterator[tuple[Engine, Models]]:
    """The engine for `--target` and `--draft`, and its models. settings: more of `ServeConfig`."""
    with tempfile.TemporaryDirectory() as folder:
        draft = options.draft
        if draft is not None and draft.startswith("layers:"):
            layers = int(draft.removeprefix("layers:"))
            draft = str(stand_in_draft(options.target, layers, Path(folder)))
        config = ServeConfig(target=options.target, draft=draft, **settings)  # type: ignore[arg-type]
        models = check_models(config)
        decided = resolve(config, facts_of(models))
        plan = plan_for(models, decided, kv_memory=KV_BYTES)
        yield build_engine(models, decided, plan), models


def prompts_of(
    codec: TextCodec, workload: Workload, count: int, first: int = 0
) -> list[tuple[int, ...]]:
    """Token ids for so many sessions, from text number `first` on; texts repeat when there are more
    sessions than texts."""
    prompts = []
    for index in range(first, first + count):
        text = workload.texts[index % len(workload.texts)]
        if workload.is_chat:
            prompts.append(tuple(codec.encode_chat([ChatMessage("user", text)]).ids))
        else:
            prompts.append(tuple(codec.encode(text)))
    return prompts
