"""Puts a server together: settings, models, engine, sockets. The only place that knows them all.

Everything that can be wrong is found before any weights are read: the port first, then tokenizers
and configurations, then what the models can do, then whether memory suffices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
import torch
from rich.console import Console

from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.core.config import Device, Dtype, EngineConfig, Facts, ServeConfig, resolve
from paceline.core.limits import EngineLimits
from paceline.engine.assembly import ModelPart, assemble
from paceline.engine.thread import EngineThread
from paceline.model.default_weights import ensure_default_target
from paceline.model.generation_defaults import default_sampling
from paceline.model.loading import load_model, torch_dtype
from paceline.model.memory_plan import Footprint, MemoryPlan, plan_memory, render_plan
from paceline.model.runner import ModelRunner
from paceline.model.source import fetch_weights, find_source
from paceline.model.support import ModelDescription, describe_model
from paceline.model.tokenizer import TextCodec
from paceline.model.vocabulary import require_same_vocabulary
from paceline.server.logs import configure_logging
from paceline.server.serving import address_of, bind, serve

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from anyio.abc import TaskGroup

    from paceline.core.events import StepResult
    from paceline.core.request import SamplingParams
    from paceline.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Models:
    """What is going to be loaded, checked; no weights yet."""

    codec: TextCodec
    target: ModelDescription
    draft: ModelDescription | None


def run_server(config: ServeConfig) -> None:
    """Serves until a signal. Raises ConfigError, before weights are read, for what cannot be."""
    configure_logging(config.log_level)
    console = Console(highlight=False)
    listener = bind(config.host, config.port)
    try:
        models = check_models(config)
        engine_config = resolve(config, facts_of(models))
        plan = plan_for(models, engine_config, kv_memory=config.kv_memory)
        console.print(
            render_plan(
                plan,
                target_name=models.target.source.name,
                draft_name=None if models.draft is None else models.draft.source.name,
            )
        )
        engine = build_engine(models, engine_config, plan)
    except BaseException:
        listener.close()
        raise
    anyio.run(
        _serve,
        listener,
        engine,
        models.codec,
        config,
        default_sampling(models.target.source.folder),
        console,
    )


async def _serve(
    listener: socket.socket,
    engine: Engine,
    codec: TextCodec,
    config: ServeConfig,
    sampling: SamplingParams,
    console: Console,
) -> None:
    def start_thread(deliver: Callable[[StepResult], None]) -> EngineThread:
        return EngineThread(engine, deliver)

    tasks: TaskGroup
    async with anyio.create_task_group() as tasks:
        start = partial(serve, listener, start_thread, codec, config, default_sampling=sampling)
        await tasks.start(start)
        console.print(f"Paceline serves {codec.name} at {address_of(listener)}", soft_wrap=True)


def check_models(config: ServeConfig) -> Models:
    """Finds target and draft, reads their tokenizers and configurations, and checks that both can
    be served and paired. Makes the default weights if they are asked for and not there yet."""
    target_spec = config.target or str(ensure_default_target())
    target_source = find_source(target_spec, field="target")
    codec = TextCodec.load(target_source.tokenizer_path)
    target = describe_model(target_source, setting="target")
    fetch_weights(target_source, field="target")
    draft = None
    if config.draft is not None:
        draft_source = find_source(config.draft, field="draft")
        draft_codec = TextCodec.load(draft_source.tokenizer_path)
        require_same_vocabulary(codec.vocabulary, draft_codec.vocabulary)
        draft = describe_model(draft_source, setting="draft")
        fetch_weights(draft_source, field="draft")
    return Models(codec, target, draft)


def facts_of(models: Models) -> Facts:
    """What `resolve` needs to know of this machine and these models."""
    return Facts(
        has_cuda=torch.cuda.is_available(),
        has_fast_bfloat16=bool(torch.cpu._is_avx512_bf16_supported()),
        target_dtype=models.target.dtype,
        target_max_len=models.target.max_model_len,
        has_draft_model=models.draft is not None,
    )


def plan_for(models: Models, config: EngineConfig, *, kv_memory: int | None) -> MemoryPlan:
    """The memory plan of these models on the device that was chosen."""
    return plan_memory(
        footprint(models.target, config.dtype),
        None if models.draft is None else footprint(models.draft, config.dtype),
        config,
        available_bytes=_available_bytes(config.device),
        kv_memory=kv_memory,
    )


def footprint(model: ModelDescription, dtype: Dtype) -> Footprint:
    """A model's sizes in a dtype."""
    return Footprint(
        weight_bytes=model.num_parameters * dtype.num_bytes,
        kv_bytes_per_token=KVShape(model.kv_layers, torch_dtype(dtype)).num_bytes_per_token,
        vocabulary_rows=model.vocabulary_rows,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_bytes=dtype.num_bytes,
    )


def build_engine(models: Models, config: EngineConfig, plan: MemoryPlan) -> Engine:
    """Loads the weights, takes the K/V memory and assembles an engine that is ready to step."""
    target = _load_part(models.target, config, plan, setting="target")
    draft = None
    if models.draft is not None:
        draft = _load_part(models.draft, config, plan, setting="draft")
    return assemble(
        target=target,
        draft=draft,
        drafter=config.drafter,
        limits=EngineLimits(
            max_model_len=config.max_model_len,
            num_blocks=plan.num_blocks,
            block_size=config.block_size,
            max_sequences=config.max_sequences,
            max_waiting=config.max_queued,
            vocabulary_size=min(models.codec.vocabulary_size, models.target.vocabulary_rows),
        ),
        text_stream=models.codec.detokenizer,
        token_budget=config.token_budget,
        num_speculative_tokens=config.num_speculative_tokens,
    )


def _load_part(
    description: ModelDescription, config: EngineConfig, plan: MemoryPlan, *, setting: str
) -> ModelPart:
    model = load_model(description, dtype=config.dtype, device=config.device, setting=setting)
    tensors = KVTensors(
        KVShape(description.kv_layers, torch_dtype(config.dtype)),
        plan.num_blocks,
        config.block_size,
        torch.device(config.device.value),
    )
    return ModelPart(ModelRunner(model, tensors.layers), description.max_model_len, tensors.scrub)


def _available_bytes(device: Device) -> int:
    if device is Device.CUDA:
        free, _ = torch.cuda.mem_get_info()
        return free
    available: int = psutil.virtual_memory().available
    limit = _cgroup_limit()
    return available if limit is None else min(available, limit)


def _cgroup_limit() -> int | None:
    """What a container may still use, where one is limited (Linux, cgroup v2)."""
    folder = Path("/sys/fs/cgroup")
    try:
        limit = (folder / "memory.max").read_text().strip()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else max(0, int(limit) - used)
