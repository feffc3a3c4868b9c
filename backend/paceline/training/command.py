"""`paceline distill`: the command line around `Distillation`."""

from __future__ import annotations

import random
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from paceline.core.cache_folder import cache_folder
from paceline.core.config import Device, Dtype
from paceline.core.errors import ConfigError
from paceline.core.speedup import best_gamma
from paceline.model.default_weights import ensure_default_target
from paceline.model.loading import load_model
from paceline.model.source import find_source
from paceline.model.support import describe_model
from paceline.model.tokenizer import TextCodec
from paceline.training import prompts
from paceline.training.answers import read_answers
from paceline.training.distill import Distillation, DistillOptions, DraftKind, Report
from paceline.training.generate import GenerationOptions, OnPolicyGenerator
from paceline.training.generation_engine import generation_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.training.evaluation import Evaluation

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
Choice = TypeVar("Choice", bound=StrEnum)
VERIFY_COST_RATIO = 0.06
"""Extra time of a verified token as a part of a plain step, for the predicted speedup only: a
typical memory-bound machine."""
_FEW_STEPS = 100


@app.command()
def distill(
    target: Annotated[
        str | None,
        typer.Option(help="Folder, GGUF file or hub id. [default: SmolLM2-135M-Instruct]"),
    ] = None,
    output: Annotated[Path, typer.Option(help="Folder for the draft.")] = Path("draft"),
    minutes: Annotated[
        float, typer.Option(help="Time to spend, over all runs that share a work folder.")
    ] = 120.0,
    kind: Annotated[
        str, typer.Option(help="head (on the target's hidden states) or decoder (independent).")
    ] = "head",
    prompts_file: Annotated[
        Path | None,
        typer.Option("--prompts", help="Your prompts: one a line, or JSON lines in a .jsonl file."),
    ] = None,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of text or code to ask about and to continue; repeat for more."),
    ] = None,
    answers: Annotated[
        list[Path] | None,
        typer.Option(help="JSON lines of chats that this target answered; repeat for more."),
    ] = None,
    max_answer_tokens: Annotated[
        int, typer.Option(help="Enough training data; what is there already counts.")
    ] = 1_000_000,
    output_ids: Annotated[int, typer.Option(help="Token ids that the draft can propose.")] = 8192,
    layers: Annotated[
        int | None, typer.Option(help="Decoder layers. [default: head 1, decoder 2]")
    ] = None,
    concurrency: Annotated[int, typer.Option(help="Answers generated at once.")] = 32,
    work: Annotated[
        Path | None,
        typer.Option(help="Folder for data and checkpoints. [default: in the user's cache]"),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="The target's: bfloat16, float16, float32.")] = (
        "bfloat16"
    ),
    seed: Annotated[int, typer.Option(help="Of prompts, sampling and training.")] = 0,
) -> None:
    """Make a draft for a target. Interrupt it whenever you like: started again, it goes on."""
    console = Console()
    options = _options(kind, minutes, output_ids, layers, max_answer_tokens, seed)
    source = find_source(target or str(ensure_default_target()), field="target")
    codec = TextCodec.load(source.tokenizer_path)
    description = describe_model(source, setting="target")
    rng = random.Random(seed)
    mixed = _prompts(prompts_file, text or [], rng)
    for path in answers or []:
        if not path.is_file():
            raise ConfigError(f"answers {path} does not exist", field="answers")
    model = load_model(
        description,
        dtype=_one_of(Dtype, "dtype", dtype),
        device=_one_of(Device, "device", device),
        attn_implementation="sdpa",
    )
    folder = work or cache_folder() / "distill" / f"{source.name}-{options.kind}"
    generation = GenerationOptions(concurrency=concurrency)
    with Live(console=console, refresh_per_second=2) as live:

        def show(report: Report) -> None:
            live.update(_table(report, description.num_parameters))

        work_on = Distillation(folder, model, codec, options, show)
        try:
            for path in answers or []:
                work_on.add_answers(
                    path,
                    read_answers(path, codec, max_answer_tokens=generation.max_answer_tokens),
                )
            if work_on.needs_data:
                engine = generation_engine(model, description, codec, generation)
                round_seed = seed + work_on.num_sequences
                work_on.collect(
                    OnPolicyGenerator(engine, codec, mixed, generation, seed=round_seed)
                )
            work_on.encode()
            evaluation = work_on.train(output)
        except KeyboardInterrupt:
            console.print(f"interrupted; the same command goes on from {folder}")
            raise typer.Exit(130) from None
        except ValueError as error:
            raise ConfigError(str(error)) from error
    console.print(_summary(evaluation))
    if work_on.num_steps < _FEW_STEPS:
        console.print(
            f"the draft is hardly trained ({work_on.num_steps} steps): making data took most of "
            "the time. The same command with more --minutes goes on from here.",
            style="yellow",
        )
    console.print(f"draft written to {output}: paceline serve --draft {output}")


def _options(
    kind: str,
    minutes: float,
    output_ids: int,
    layers: int | None,
    max_answer_tokens: int,
    seed: int,
) -> DistillOptions:
    chosen = _one_of(DraftKind, "kind", kind)
    for name, value in (("minutes", minutes), ("output_ids", output_ids), ("layers", layers or 1)):
        if value <= 0:
            raise ConfigError(f"{name} is {value}; it must be more than 0", field=name)
    return DistillOptions(
        kind=chosen,
        budget_s=minutes * 60,
        num_output_ids=output_ids,
        num_layers=layers or (1 if chosen is DraftKind.HEAD else 2),
        max_answer_tokens=max_answer_tokens,
        seed=seed,
    )


def _prompts(
    file: Path | None, folders: list[Path], rng: random.Random
) -> Iterator[prompts.Prompt]:
    """The user's prompts and text get most of the weight, where there are any."""
    sources = [(1.0, prompts.self_written(rng)), (0.6, prompts.open_questions(rng))]
    if file is not None:
        if not file.is_file():
            raise ConfigError(f"prompts {file} does not exist", field="prompts")
        sources.append((4.0, prompts.from_file(file, rng)))
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"text {folder} is no folder", field="text")
        sources.append((1.0, prompts.from_folder(folder, rng)))
    return prompts.mix(sources, rng)


def _one_of(kind: type[Choice], name: str, value: str) -> Choice:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(member.value for member in kind if member.value != "auto")
        raise ConfigError(f"{name} is {value!r}; it must be one of {allowed}", field=name) from None


def _table(report: Report, target_parameters: int) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row(report.phase, f"{report.share:.0%} of the time")
    table.add_row("answer tokens", f"{report.answer_tokens:,}")
    if report.progress is not None:
        table.add_row("steps", f"{report.progress.step:,} ({report.progress.tokens:,} positions)")
        means = " ".join(f"{value:.2f}" for value in report.progress.acceptance)
        table.add_row("acceptance, training", means)
    evaluation = report.evaluation
    if evaluation is not None:
        for name, kind in (("T=1", evaluation.sampled), ("T=0", evaluation.greedy)):
            if kind is not None:
                depths = " ".join(f"{value:.2f}" for value in kind.by_depth)
                table.add_row(f"acceptance, held out, {name}", depths)
        table.add_row("predicted speedup", f"{predicted_speedup(evaluation):.2f}")
    return table


def _summary(evaluation: Evaluation) -> str:
    return (
        f"acceptance at depth 1: {evaluation.mean_acceptance:.3f}, predicted speedup "
        f"{predicted_speedup(evaluation):.2f} where a draft token costs 0.07 of a step"
    )


def predicted_speedup(evaluation: Evaluation, draft_cost_ratio: float = 0.07) -> float:
    """Of one session on a memory-bound machine, at the best fixed depth, averaged over temperatures
    0 and 1 as far as both were measured; 1 when speculation would not pay."""
    kinds = [kind for kind in (evaluation.greedy, evaluation.sampled) if kind is not None]
    if not kinds:
        return 1.0
    gains = [best_gamma(k.survival, draft_cost_ratio, VERIFY_COST_RATIO).speedup for k in kinds]
    return sum(gains) / len(gains)
