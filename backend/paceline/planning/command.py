"""`paceline plan`: expected speedup, memory and the best pairing, before anything runs."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from paceline.core.errors import ConfigError, PacelineError
from paceline.planning.acceptance import (
    AcceptanceProfile,
    find_workload,
    profile_from_counts,
)
from paceline.planning.acceptance_run import AcceptanceRun, load_prompts
from paceline.planning.chart import write_chart
from paceline.planning.devices import Device, find_device
from paceline.planning.measure import device_from, measure_this_machine
from paceline.planning.plan import Plan, Setup, make_plan
from paceline.planning.precision import find_kv_bytes, find_precision
from paceline.planning.report import render, to_json
from paceline.planning.sources import load_draft, load_model

__all__ = ["app", "best_plan", "load_acceptance", "plan_command"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def plan_command(
    context_object: typer.Context,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="Folder with a config.json, such a file, a known name (llama-3.1-70b), or plain "
            "numbers (params=7e9,layers=32,hidden=4096,heads=32,kv_heads=8,vocab=32000).",
        ),
    ],
    draft: Annotated[
        list[str],
        typer.Option(
            "--draft",
            help="What drafts: like --target, and :vocab=16000 after it for a trimmed output "
            "vocabulary; head or head:16000 for a one-layer head; ngram. Repeat to compare.",
        ),
    ],
    device: Annotated[
        str,
        typer.Option(
            "--device",
            help="Name of a device; this-machine to measure it; or plain numbers: "
            "bandwidth=28,tflops=0.15,memory=24 (GB/s, dense 16-bit, GiB).",
        ),
    ] = "h100-sxm",
    devices: Annotated[
        str, typer.Option("--devices", help="How many share the target; 1,2,4 compares.")
    ] = "1",
    draft_devices: Annotated[
        int | None,
        typer.Option("--draft-devices", help="1, or as many as the target; default: the faster."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="Target weights: bf16, fp8, int8, int4; bf16,fp8 compares."),
    ] = None,
    draft_dtype: Annotated[
        str | None, typer.Option("--draft-dtype", help="Draft weights; default: the target's.")
    ] = None,
    kv_dtype: Annotated[str, typer.Option("--kv-dtype", help="K/V cache: bf16 or fp8.")] = "bf16",
    batch: Annotated[
        str, typer.Option("--batch", help="Batch sizes; the verdict is about the first.")
    ] = "1,4,16,64",
    context: Annotated[
        int, typer.Option("--context", help="Tokens of prompt and answer a session holds.")
    ] = 2048,
    max_gamma: Annotated[
        int | None,
        typer.Option(
            "--max-gamma",
            min=1,
            max=32,
            help="Most tokens drafted in a step; by default 6, and 16 for ngram.",
        ),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(
            "--workload",
            help="code-edit, code-completion, chat, summarise or high-temperature-prose.",
        ),
    ] = "chat",
    acceptance: Annotated[
        str | None,
        typer.Option(
            "--acceptance",
            help="Instead of a workload: one number, numbers by depth (0.8,0.7,0.6), or a JSON "
            "file with passed_per_position and examined_per_position as telemetry counts them.",
        ),
    ] = None,
    measure: Annotated[
        Path | None,
        typer.Option(
            "--measure",
            help="Instead of assuming acceptance, run target and drafts on the prompts of this "
            "file: one per line, or between lines ---, or .jsonl with strings, "
            '{"prompt": ...} or {"messages": [...]}. Target and drafts must be real models.',
        ),
    ] = None,
    measure_tokens: Annotated[
        int, typer.Option("--measure-tokens", help="Of each measured answer, at most.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Of measured answers; measure at your own.")
    ] = 0.0,
    memory_fraction: Annotated[
        float, typer.Option("--memory-fraction", help="Part of memory for weights and K/V.")
    ] = 0.9,
    bandwidth_efficiency: Annotated[
        float | None, typer.Option(help="Part of the vendor's bandwidth that is reached.")
    ] = None,
    compute_efficiency: Annotated[
        float | None, typer.Option(help="Part of the vendor's arithmetic that is reached.")
    ] = None,
    layer_us: Annotated[float | None, typer.Option(help="Fixed microseconds a layer.")] = None,
    pass_us: Annotated[float | None, typer.Option(help="Fixed microseconds a pass.")] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Write a chart: .html (self-contained) or .svg.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """What speculation will bring for a target, a draft and a device, before you run or buy."""
    console = Console(soft_wrap=False)
    try:
        where = _find_device(
            device,
            bandwidth=bandwidth_efficiency,
            compute=compute_efficiency,
            layer_us=layer_us,
            pass_us=pass_us,
        )
        measured = None
        if measure is not None:
            if acceptance is not None:
                raise ConfigError(
                    "measure: acceptance is either given or measured", field="acceptance"
                )
            measured = _measure_all(
                context_object.obj,
                target,
                draft,
                measure,
                num_tokens=measure_tokens,
                temperature=temperature,
                max_gamma=max_gamma,
            )
        plans = _plan_all(
            target,
            draft,
            where,
            counts=_whole_numbers(devices, "devices"),
            dtypes=[name.strip() for name in dtype.split(",")] if dtype else [None],
            draft_dtype=draft_dtype,
            workload=workload,
            acceptance=acceptance,
            measured=measured,
            max_gamma=max_gamma,
            common={
                "draft_devices": draft_devices,
                "kv_element_bytes": find_kv_bytes(kv_dtype),
                "batches": tuple(_whole_numbers(batch, "batch")),
                "context": context,
                "memory_fraction": memory_fraction,
            },
        )
        best = best_plan(plans)
        if plot is not None:
            write_chart(plans, best, plot)
    except PacelineError as error:
        Console(stderr=True).print(f"paceline plan: {error}", style="red", markup=False)
        raise typer.Exit(2) from error
    if as_json:
        sys.stdout.write(json.dumps(to_json(plans, best), indent=2) + "\n")
    else:
        console.print(render(plans, best))


def best_plan(plans: list[Plan]) -> int:
    """Index of the plan with most tokens a second at its first batch size, among those that fit;
    the first one if none fits."""

    def rate(plan: Plan) -> float:
        row = plan.first
        return row.cells[row.best_gamma].tokens_per_s if row and row.fits else 0.0

    return max(range(len(plans)), key=lambda index: rate(plans[index]))


def _plan_all(
    target: str,
    drafts: list[str],
    device: Device,
    *,
    counts: list[int],
    dtypes: list[str] | list[None],
    draft_dtype: str | None,
    workload: str,
    acceptance: str | None,
    measured: list[AcceptanceProfile] | None,
    max_gamma: int | None,
    common: dict[str, Any],
) -> list[Plan]:
    source = load_model(target)
    kind_of_text = find_workload(workload)
    given = load_acceptance(acceptance) if acceptance is not None else None
    plans = []
    for dtype in dtypes:
        precision = find_precision(dtype or source.precision or "bf16")
        for count in counts:
            for index, text in enumerate(drafts):
                draft = load_draft(text, source.shape)
                if measured is not None:
                    given = measured[index]
                profile = given or kind_of_text.profile(
                    draft.kind,
                    draft.shape.total_params if draft.shape else 0,
                    source.shape.total_params,
                )
                draft_precision = find_precision(draft_dtype or draft.precision or precision.name)
                setup = Setup(
                    target=source.shape,
                    target_precision=precision,
                    draft=draft,
                    draft_precision=draft_precision,
                    device=device,
                    acceptance=profile,
                    num_devices=count,
                    max_gamma=draft.kind.max_gamma if max_gamma is None else max_gamma,
                    **common,
                )
                plans.append(make_plan(setup))
    return plans


def _measure_all(
    run: AcceptanceRun | None,
    target: str,
    drafts: list[str],
    path: Path,
    *,
    num_tokens: int,
    temperature: float,
    max_gamma: int | None,
) -> list[AcceptanceProfile]:
    """Each draft's profile on the prompts of a file."""
    if run is None:
        raise ConfigError(
            "measure: running models needs the command `paceline plan`", field="measure"
        )
    if num_tokens < 2:
        raise ConfigError(
            f"measure-tokens is {num_tokens}; it must be at least 2", field="measure-tokens"
        )
    prompts = load_prompts(path)
    shape = load_model(target).shape
    profiles = []
    for text in drafts:
        kind = load_draft(text, shape).kind
        if text.partition(":")[0].strip().lower() == "head" or ":vocab=" in text:
            raise ConfigError(
                f"draft: {text} is a plan for a draft, not one that can be run; measure a draft "
                "folder, a model or ngram",
                field="draft",
            )
        counts = run(
            target,
            text,
            prompts,
            num_tokens=num_tokens,
            temperature=temperature,
            max_gamma=kind.max_gamma if max_gamma is None else max_gamma,
        )
        profile = profile_from_counts(
            path.name,
            counts.accepted_per_position,
            counts.examined_per_position,
            num_steps=counts.num_steps,
        )
        where = f"{len(prompts)} prompts of {path.name} at temperature {temperature:g}"
        profiles.append(replace(profile, source=f"{profile.source}: {where}"))
    return profiles


def _find_device(name: str, **efficiency: float | None) -> Device:
    if name.strip().lower().replace("_", "-") == "this-machine":
        device = device_from(measure_this_machine())
    else:
        device = find_device(name)
    given = {key: value for key, value in efficiency.items() if value is not None}
    return replace(device, efficiency=replace(device.efficiency, **given))


def _whole_numbers(text: str, field: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(
            f"{field}: {text!r} is not a list of whole numbers such as 1,4,16", field=field
        ) from error


def load_acceptance(text: str) -> AcceptanceProfile:
    """A profile from one number, numbers by depth, or a JSON file of counters.

    The file holds `passed_per_position` and `examined_per_position` and may hold `num_steps` and
    `name`: a session's telemetry will do, or a finished response's summary.
    """
    path = Path(text)
    if path.suffix == ".json" or path.is_file():
        return _acceptance_file(path)
    try:
        probs = tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise ConfigError(
            f"acceptance: {text!r} is neither a number, nor numbers by depth, nor a JSON file",
            field="acceptance",
        ) from error
    return AcceptanceProfile("given", probs, "given on the command line")


def _acceptance_file(path: Path) -> AcceptanceProfile:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return profile_from_counts(
            str(content.get("name", path.stem)),
            [int(count) for count in content["passed_per_position"]],
            [int(count) for count in content["examined_per_position"]],
            num_steps=content.get("num_steps"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"acceptance: {path} must be a JSON object with passed_per_position and "
            f"examined_per_position, two lists of counts: {error!r}",
            field="acceptance",
        ) from error
