"""`paceline bench`: load over real sockets, and what came of it."""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path  # noqa: TC003  (typer reads the annotations)
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import typer
from rich.console import Console
from rich.progress import Progress

from paceline.benchmark.comparison import Server, Settings, compare
from paceline.benchmark.modes import ADAPTIVE, PLAIN, ClosedLoop, Poisson, parse_mode
from paceline.benchmark.own_server import own_server
from paceline.benchmark.provenance import provenance
from paceline.benchmark.report import render, render_failures, write_plot
from paceline.benchmark.workloads import CODE_COMPLETION, NAMES, find_workload
from paceline.core.errors import ConfigError
from paceline_client import ConnectError
from paceline_client.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.benchmark.modes import Load, Mode
    from paceline.benchmark.summary import Cell
    from paceline.benchmark.workloads import Workload

__all__ = ["app"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

_COMPARED = ("off", "fixed:2", "fixed:4", "auto")
_SESSIONS = (1, 4)
_FILE_WIDTH = 150


@app.command()
def bench_command(
    url: Annotated[
        str | None, typer.Option(help="A running server. [default: one is started for the time]")
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PACELINE_API_KEY", help="Key of the server.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Of the own server.")] = None,
    draft: Annotated[str | None, typer.Option(help="Of the own server.")] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of the own server's settings.")
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(NAMES)}; repeat for more. [default: all]"),
    ] = None,
    sessions: Annotated[
        list[int] | None,
        typer.Option(
            help="Sessions that each ask again as soon as they are answered; repeat for more. "
            "[default: 1 and 4]"
        ),
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests per second that come at random (Poisson); repeat for more."),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option(help="off, auto, fixed:N or ngram:N; repeat for more. [default: off, auto]"),
    ] = None,
    compare_modes: Annotated[
        bool, typer.Option("--compare", help=f"The modes {', '.join(_COMPARED)}.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds that count; one more warms up.")] = 3,
    requests: Annotated[
        int, typer.Option(min=1, help="Requests of each session in a round, at least.")
    ] = 2,
    seconds: Annotated[
        float, typer.Option(min=0.1, help="How long requests of a --rate come in a round.")
    ] = 20.0,
    tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 96,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, help="In place of the workloads' own.")
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="No prompt's K/V is found in the prefix cache.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="Write all figures as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write charts: .html or .svg.")] = None,
) -> None:
    """Measure a server: throughput, latency, acceptance by depth, where a step's time goes.

    Ends with 1 if a request had no whole answer.
    """
    if url is not None and (target, draft, config) != (None, None, None):
        raise ConfigError(
            "--target, --draft and --config are for a server that bench starts; leave them out "
            "with --url",
            field="url",
        )
    if plot is not None and plot.suffix.lower() not in (".html", ".svg"):
        raise ConfigError(f"plot: {plot} must end in .html or .svg", field="plot")
    settings = Settings(
        workloads=[each.at(temperature) for each in _workloads(workload)],
        loads=_loads(sessions, rate, requests, seconds),
        modes=_modes(mode, compare_modes),
        rounds=rounds,
        max_tokens=tokens,
        is_cold=cold,
    )
    serve = [f"--{name}={value}" for name, value in _given(target, draft, config)]
    with own_server(serve) if url is None else nullcontext(url) as address:
        cells = _measure(Server(address, api_key), settings)
    document = _document(settings, cells)
    if output is not None:
        _write(output, document)
    if plot is not None:
        write_plot(document["cells"], f"Paceline with {document['model']}", plot)
    console = Console()
    if not console.is_terminal:
        console = Console(width=_FILE_WIDTH)
    console.print(render(document["cells"]))
    failures = render_failures(document["cells"])
    for line in failures:
        console.print(line, markup=False)
    raise typer.Exit(1 if failures else 0)


def _measure(server: Server, settings: Settings) -> list[Cell]:
    try:
        Endpoint.of(server.url)
    except ValueError as error:
        raise ConfigError(str(error), field="url") from error
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=settings.num_runs)
        num_begun = 0

        def on_run(what: str) -> None:
            nonlocal num_begun
            progress.update(task, description=what, completed=num_begun)
            num_begun += 1

        try:
            return anyio.run(compare, server, settings, on_run)
        except ConnectError as error:
            raise ConfigError(str(error), field="url") from error


def _document(settings: Settings, cells: Sequence[Cell]) -> dict[str, Any]:
    models = [answer.model for cell in cells for run in cell.runs for answer in run.answers]
    return {
        "provenance": provenance(shlex.join(["paceline", "bench", *sys.argv[2:]])),
        "model": next((model for model in models if model), "no model"),
        "settings": {
            "max_tokens": settings.max_tokens,
            "rounds": settings.rounds,
            "is_cold": settings.is_cold,
            "temperatures": {each.name: each.temperature for each in settings.workloads},
        },
        "cells": [cell.to_json() for cell in cells],
    }


def _workloads(names: Sequence[str] | None) -> list[Workload]:
    if names:
        return [find_workload(name) for name in dict.fromkeys(names)]
    found = []
    for name in NAMES:
        try:
            found.append(find_workload(name))
        except ConfigError as error:
            if name != CODE_COMPLETION:
                raise
            typer.echo(f"left out: {error}", err=True)
    return found


def _loads(
    sessions: Sequence[int] | None, rates: Sequence[float] | None, requests: int, seconds: float
) -> list[Load]:
    for number in sessions or ():
        if not 1 <= number <= 1024:
            raise ConfigError(f"sessions is {number}; it must be from 1 to 1024", field="sessions")
    for each in rates or ():
        if not 0 < each <= 1000:
            raise ConfigError(
                f"rate is {each:g}; it must be above 0 and at most 1000", field="rate"
            )
    if not sessions and not rates:
        sessions = _SESSIONS
    return [
        *(ClosedLoop(number, requests) for number in sessions or ()),
        *(Poisson(each, seconds) for each in rates or ()),
    ]


def _modes(names: Sequence[str] | None, is_comparison: bool) -> list[Mode]:
    if is_comparison:
        names = [*_COMPARED, *(names or ())]
    if not names:
        return [PLAIN, ADAPTIVE]
    return [parse_mode(name) for name in dict.fromkeys(names)]


def _given(
    target: str | None, draft: str | None, config: Path | None
) -> list[tuple[str, str | Path]]:
    values = (("target", target), ("draft", draft), ("config", config))
    return [(name, value) for name, value in values if value is not None]


def _write(path: Path, document: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"output: cannot write {path}: {error}", field="output") from error
