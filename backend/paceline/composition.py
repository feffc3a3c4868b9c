"""Puts a server together: settings, models, engine, sockets. The only place that knows them all.

Everything that can be wrong is found before any weights are read. Settings, the port and paths need
no torch, and the command line has looked at them before it imports this; then come tokenizers and
configurations, then what the models can do, then whether memory suffices.
"""

from __future__ import annotations

import contextlib
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import psutil
import structlog
import torch
from rich.console import Console

import paceline
from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.core.cache_folder import cache_folder
from paceline.core.config import Device, Dtype, EngineConfig, Facts, ServeConfig, resolve
from paceline.core.errors import ModelError
from paceline.core.limits import EngineLimits
from paceline.core.native_library import telling_builds
from paceline.core.request import DrafterKind
from paceline.engine.assembly import HeadPart, ModelPart, assemble
from paceline.engine.calibration import STEADY, cached_costs, cost_key
from paceline.engine.thread import EngineThread
from paceline.model import default_weights
from paceline.model.draft_folder import (
    DraftDescription,
    describe_draft,
    is_draft_folder,
    load_draft,
)
from paceline.model.draft_runner import (
    DraftModuleRunner,
    feature_bytes_per_token,
    token_table_bytes,
)
from paceline.model.fast import FastPath, speed_up
from paceline.model.fixed_rows import FixedRowsRunner, slowdown
from paceline.model.generation_defaults import default_sampling
from paceline.model.graphs import GraphRunner
from paceline.model.loading import load_model, torch_dtype
from paceline.model.memory_plan import Footprint, MemoryPlan, plan_memory, render_plan
from paceline.model.runner import ModelRunner
from paceline.model.source import fetch_weights, find_source
from paceline.model.support import ModelDescription, describe_model
from paceline.model.threads import release_threads, usable_cores, use_threads
from paceline.model.tokenizer import TextCodec
from paceline.model.vocabulary import require_same_vocabulary
from paceline.server.listener import address_of
from paceline.server.logs import configure_logging
from paceline.server.serving import serve

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from anyio.abc import TaskGroup
    from transformers import PreTrainedModel

    from paceline.core.cost import CostTable
    from paceline.core.events import StepResult
    from paceline.core.request import SamplingParams
    from paceline.engine.engine import Engine

log: structlog.stdlib.BoundLogger = structlog.get_logger("paceline.composition")


# Rows of every pass with --deterministic: about as many as a step can have before it takes longer.
_FIXED_ROWS = {Device.CPU: 16, Device.CUDA: 64}


@dataclass(frozen=True, slots=True)
class Models:
    """What is going to be loaded, checked; no weights yet. draft: another causal LM, or a draft
    folder made for the target."""

    codec: TextCodec
    target: ModelDescription
    draft: ModelDescription | DraftDescription | None

    @property
    def draft_name(self) -> str | None:
        match self.draft:
            case ModelDescription():
                return self.draft.source.name
            case DraftDescription():
                return f"{self.draft.kind} {self.draft.folder.name}"
            case None:
                return None


def run_server(config: ServeConfig, listener: socket.socket) -> None:
    """Serves until a signal. Raises ConfigError, before weights are read, for what cannot be.

    listener: from `server.listener.bind`; the caller closes it.
    """
    configure_logging(config.log_level)
    console = Console(highlight=False)

    def tell(what: str) -> None:
        # rich ends the program when nobody reads its output any more; a server goes on.
        with contextlib.suppress(SystemExit):
            console.print(what, soft_wrap=True, markup=False)

    models = check_models(config, tell=tell)
    engine_config = resolve(config, facts_of(models))
    plan = plan_for(models, engine_config, kv_memory=config.kv_memory)
    sampling = default_sampling(models.target.source.folder)
    target_name = models.target.source.name
    console.print(render_plan(plan, target_name=target_name, draft_name=models.draft_name))
    with telling_builds(tell):
        engine = build_engine(models, engine_config, plan, tell=tell)
    anyio.run(_serve, listener, engine, models.codec, config, sampling, tell)


async def _serve(
    listener: socket.socket,
    engine: Engine,
    codec: TextCodec,
    config: ServeConfig,
    sampling: SamplingParams,
    tell: Callable[[str], None],
) -> None:
    def start_thread(deliver: Callable[[StepResult], None]) -> EngineThread:
        return EngineThread(engine, deliver)

    tasks: TaskGroup
    async with anyio.create_task_group() as tasks:
        start = partial(
            serve, listener, start_thread, codec, config, default_sampling=sampling, tell=tell
        )
        await tasks.start(start)
        tell(f"Paceline serves {codec.name} at {address_of(listener)}")


def _tell_nobody(what: str) -> None:
    pass


def check_models(config: ServeConfig, *, tell: Callable[[str], None] = _tell_nobody) -> Models:
    """Finds target and draft, reads their tokenizers and configurations, and checks that both can
    be served and paired. Makes the default weights if they are asked for and not there yet.

    tell: hears of what takes a while before it begins.
    """
    target_spec = config.target or str(default_weights.ensure_default_target(tell))
    target_source = find_source(target_spec, field="target")
    codec = TextCodec.load(target_source.tokenizer_path)
    target = describe_model(target_source, setting="target")
    fetch_weights(target_source, field="target")
    draft_spec = config.draft
    if draft_spec is None and config.target is None:
        shipped = shipped_draft()
        draft_spec = None if shipped is None else str(shipped)
    if draft_spec is None or config.drafter in (DrafterKind.NGRAM, DrafterKind.NONE):
        return Models(codec, target, None)
    return Models(codec, target, _check_draft(draft_spec, codec, target))


def shipped_draft() -> Path | None:
    """The draft folder in this package that was made for the default target, if there is one."""
    root = Path(paceline.__file__).parent / "drafts"
    folders = [root, *sorted(root.iterdir())] if root.is_dir() else []
    for folder in folders:
        if is_draft_folder(folder) and describe_draft(folder).target.name == default_weights.NAME:
            return folder
    return None


def _check_draft(
    spec: str, codec: TextCodec, target: ModelDescription
) -> ModelDescription | DraftDescription:
    folder = Path(spec).expanduser()
    if is_draft_folder(folder):
        head = describe_draft(folder)
        wanted = (head.target.vocabulary_rows, head.target.hidden_size, head.target.num_layers)
        actual = (target.embedding_rows, target.hidden_size, len(target.kv_layers))
        if wanted != actual:
            raise ModelError(
                f"draft {spec} was made for {head.target.name}: vocabulary rows, hidden size and "
                f"layers are {wanted} there and {actual} in {target.source.name}",
                field="draft",
            )
        if not (folder / "model.safetensors").is_file():
            raise ModelError(f"draft {spec} has no model.safetensors", field="draft")
        return head
    source = find_source(spec, field="draft")
    require_same_vocabulary(codec.vocabulary, TextCodec.load(source.tokenizer_path).vocabulary)
    draft = describe_model(source, setting="draft")
    fetch_weights(source, field="draft")
    return draft


def facts_of(models: Models) -> Facts:
    """What `resolve` needs to know of this machine and these models."""
    return Facts(
        has_cuda=torch.cuda.is_available(),
        has_fast_bfloat16=bool(torch.cpu._is_avx512_bf16_supported()),
        target_dtype=models.target.dtype,
        target_max_len=models.target.max_model_len,
        has_draft_model=models.draft is not None,
        num_cores=usable_cores(),
    )


def plan_for(models: Models, config: EngineConfig, *, kv_memory: int | None) -> MemoryPlan:
    """The memory plan of these models on the device that was chosen."""
    return plan_memory(
        footprint(models.target, config),
        None if models.draft is None else footprint(models.draft, config),
        config,
        available_bytes=_available_bytes(config.device),
        kv_memory=kv_memory,
    )


def footprint(model: ModelDescription | DraftDescription, config: EngineConfig) -> Footprint:
    """A model's sizes with these settings."""
    dtype = config.dtype
    if isinstance(model, DraftDescription):
        shape = model.config
        stored = (model.folder / "model.safetensors").stat().st_size // Dtype.BFLOAT16.num_bytes
        return Footprint(
            weight_bytes=stored * dtype.num_bytes,
            kv_bytes_per_token=kv_shape(model, dtype).num_bytes_per_token
            + feature_bytes_per_token(shape, dtype.num_bytes),
            vocabulary_rows=shape.num_output_ids,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_bytes=dtype.num_bytes,
            copy_bytes=token_table_bytes(shape, model.target, dtype.num_bytes),
        )
    packs_head = config.fast_path and config.device is Device.CPU and dtype is Dtype.BFLOAT16
    head_bytes = model.vocabulary_rows * model.hidden_size * dtype.num_bytes
    return Footprint(
        weight_bytes=model.num_parameters * dtype.num_bytes,
        kv_bytes_per_token=kv_shape(model, dtype).num_bytes_per_token,
        vocabulary_rows=model.vocabulary_rows,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_bytes=dtype.num_bytes,
        # All other weights are let go when their packed copies exist.
        copy_bytes=head_bytes if packs_head and model.is_head_tied else 0,
    )


def kv_shape(model: ModelDescription | DraftDescription, dtype: Dtype) -> KVShape:
    """What one token of a model takes in K/V memory."""
    if isinstance(model, DraftDescription):
        shape = model.config
        layers = ((shape.num_key_value_heads, shape.head_dim),) * shape.num_layers
        return KVShape(layers, torch_dtype(dtype))
    return KVShape(model.kv_layers, torch_dtype(dtype))


def build_engine(
    models: Models,
    config: EngineConfig,
    plan: MemoryPlan,
    *,
    is_adaptive: bool = True,
    tell: Callable[[str], None] = _tell_nobody,
) -> Engine:
    """Loads the weights, takes the K/V memory and assembles an engine that is ready to step.

    is_adaptive: the machine's step costs are measured, and requests may leave depths to them; else
    every draft has the full number of tokens. tell: hears of what takes a while before it begins.
    """
    use_threads(config.threads)
    tell(f"Reading the weights of {models.target.source.name}")
    target_model = load_model(models.target, dtype=config.dtype, device=config.device)
    draft: ModelPart | HeadPart | None = None
    feature_layers: tuple[int, ...] = ()
    match models.draft:
        case ModelDescription():
            model = load_model(
                models.draft, dtype=config.dtype, device=config.device, setting="draft"
            )
            draft = _model_part(models.draft, model, config, plan)
        case DraftDescription():
            # Before the target's weights are rearranged: the head borrows its embedding.
            loaded = load_draft(models.draft, target_model, models.target.source.name)
            tensors = _kv_tensors(models.draft, config, plan)
            runner = DraftModuleRunner(loaded, tensors.layers, allow_native=config.fast_path)
            feature_layers = runner.feature_layers
            draft = HeadPart(runner, models.target.max_model_len, tensors.scrub)
        case None:
            pass
    engine = assemble(
        target=_with_fixed_rows(
            _model_part(models.target, target_model, config, plan, feature_layers), config, plan
        ),
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
        grammars=models.codec.grammars,
        token_budget=config.token_budget,
        num_speculative_tokens=config.num_speculative_tokens,
        min_acceptance=config.min_acceptance,
        costs=partial(_costs, models, config, tell) if is_adaptive else None,
    )
    release_threads()  # another thread takes the steps
    return engine


def _costs(
    models: Models,
    config: EngineConfig,
    tell: Callable[[str], None],
    measure: Callable[[], CostTable],
) -> CostTable:
    """What steps cost here, measured at the first start with these models and settings, and again
    at the next one where the machine was too busy for the figures to be kept."""
    was_measured = False

    def measure_aloud() -> CostTable:
        nonlocal was_measured
        was_measured = True
        tell("Measuring what a step costs on this machine; some seconds")
        return measure()

    key = cost_key(
        target=_weights_path(models.target),
        draft=None if models.draft is None else _weights_path(models.draft),
        dtype=config.dtype.value,
        device=config.device.value
        + ("-deterministic" if config.deterministic else "")
        + ("-graphs" if config.cuda_graphs else ""),
        max_sequences=config.max_sequences,
        fast_path=config.fast_path,
    )
    table = cached_costs(cache_folder() / "costs", key, measure_aloud)
    if was_measured and table.spread > STEADY:
        cause = (
            "There was time for one round only"
            if math.isinf(table.spread)
            else "The machine was busy meanwhile"
        )
        tell(
            f"{cause}, so these costs are not kept: this start goes by them and corrects them "
            "while it serves, and the next start measures again"
        )
    return table


def _weights_path(description: ModelDescription | DraftDescription) -> Path:
    if isinstance(description, DraftDescription):
        return description.folder
    source = description.source
    return source.folder if source.gguf_file is None else source.folder / source.gguf_file


def _model_part(
    description: ModelDescription,
    model: PreTrainedModel,
    config: EngineConfig,
    plan: MemoryPlan,
    feature_layers: tuple[int, ...] = (),
) -> ModelPart:
    fast = speed_up(model) if config.fast_path else FastPath(None, (), "switched off")
    log.info("model loaded", model=description.source.name, replaced=fast.replaced, kept=fast.kept)
    tensors = _kv_tensors(description, config, plan)
    runner = ModelRunner(
        model,
        tensors.layers,
        feature_layers=feature_layers,
        decoder=fast.decoder,
        allow_native=config.fast_path,
    )
    part = ModelPart(runner, description.max_model_len, tensors.scrub)
    return _with_graphs(part, runner, config, plan) if config.cuda_graphs else part


def _with_graphs(
    part: ModelPart, runner: ModelRunner, config: EngineConfig, plan: MemoryPlan
) -> ModelPart:
    """The part with its passes of few rows recorded."""
    started = time.perf_counter()
    graphs = GraphRunner(
        runner,
        scratch_block=plan.num_blocks,
        block_size=config.block_size,
        max_model_len=config.max_model_len,
    )
    graphs.record_all()
    log.info("CUDA graphs recorded", seconds=round(time.perf_counter() - started, 1))
    return replace(part, runner=graphs)


def _with_fixed_rows(part: ModelPart, config: EngineConfig, plan: MemoryPlan) -> ModelPart:
    """The part with passes of one fixed shape, if the settings want it."""
    if not config.deterministic:
        return part
    num_rows = _FIXED_ROWS[config.device]
    scratch = plan.num_blocks
    fixed = FixedRowsRunner(part.runner, num_rows=num_rows, scratch_block=scratch)
    ratio = slowdown(part.runner, fixed, scratch_block=scratch, block_size=config.block_size)
    log.info(
        "deterministic: every pass is a full one", rows=num_rows, step_of_one_row=f"{ratio:.2f}x"
    )
    return replace(part, runner=fixed)


def _kv_tensors(
    model: ModelDescription | DraftDescription, config: EngineConfig, plan: MemoryPlan
) -> KVTensors:
    device = torch.device(config.device.value)
    # Passes of fixed size need a block that no sequence has.
    num_blocks = plan.num_blocks + (config.deterministic or config.cuda_graphs)
    return KVTensors(kv_shape(model, config.dtype), num_blocks, config.block_size, device)


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
