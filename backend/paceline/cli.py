"""One command, `paceline`. A thin table: each subcommand imports what it needs when it runs, so
that `paceline chat` works in the base install, which has no torch."""

from __future__ import annotations

import importlib.metadata
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.config import ServeConfig

app = typer.Typer(
    help="Streaming LLM server with lossless speculative decoding, and its tools.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    # Plain text: tables cut long names on narrow terminals, and then nobody can type them.
    rich_markup_mode=None,
)


def main() -> None:
    """Runs the command line; a wrong setting ends with one line and exit code 2."""
    try:
        app()
    except ConfigError as error:
        _fail(str(error), 2)


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise SystemExit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"paceline {importlib.metadata.version('paceline')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show and exit."),
    ] = False,
) -> None:
    pass


@app.command()
def serve(
    target: Annotated[
        str | None,
        typer.Option(help="Folder, GGUF file or hub id. [default: SmolLM2-135M-Instruct]"),
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="Draft model: folder, GGUF file or hub id.")
    ] = None,
    drafter: Annotated[str | None, typer.Option(help="auto, model, ngram or none.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda.")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    num_speculative_tokens: Annotated[
        int | None, typer.Option(help="Most tokens drafted for a sequence in a step.")
    ] = None,
    min_acceptance: Annotated[
        float | None,
        typer.Option(
            help="A session drafts nothing while less is accepted; 0 leaves it to measured cost. "
            "[default: 0.4]"
        ),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Tokens of prompt and answer together.")
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads that compute on a CPU.")] = None,
    fast_path: Annotated[
        bool | None,
        typer.Option(
            "--fast-path/--no-fast-path",
            help="Faster equivalents of a model's parts. [default: on]",
        ),
    ] = None,
    cuda_graphs: Annotated[
        bool | None,
        typer.Option(
            "--cuda-graphs/--no-cuda-graphs",
            help="Record passes of few rows and play them back; CUDA only. [default: off]",
        ),
    ] = None,
    deterministic: Annotated[
        bool | None,
        typer.Option(
            "--deterministic",
            help="Answers that do not depend on what else runs; slower.",
        ),
    ] = None,
    kv_memory: Annotated[
        str | None, typer.Option(help="Memory for keys and values, like 2GiB.")
    ] = None,
    max_sequences: Annotated[
        int | None, typer.Option(help="Sequences computed in one step.")
    ] = None,
    token_budget: Annotated[int | None, typer.Option(help="Tokens computed in one step.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Tokens in one K/V block.")] = None,
    max_queued: Annotated[int | None, typer.Option(help="Requests that may wait.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PACELINE_API_KEY", help="Key that clients must send.")
    ] = None,
    admin_key: Annotated[
        str | None,
        typer.Option(envvar="PACELINE_ADMIN_KEY", help="Key for the server's telemetry."),
    ] = None,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option("--allowed-origin", help="Web origin that may connect; repeat for more."),
    ] = None,
    max_message_bytes: Annotated[int | None, typer.Option(help="Largest frame.")] = None,
    max_connections: Annotated[int | None, typer.Option(help="Sockets at once.")] = None,
    max_lanes: Annotated[int | None, typer.Option(help="Requests at once on a socket.")] = None,
    max_stored_tokens: Annotated[
        int | None, typer.Option(help="Tokens a socket may keep for previous_response_id.")
    ] = None,
    send_deadline_s: Annotated[
        float | None, typer.Option(help="How long a client may read nothing.")
    ] = None,
    grace_period_s: Annotated[
        float | None,
        typer.Option(
            help="How long running answers may go on after SIGTERM or Ctrl-C; the second one ends "
            "them at once. [default: 30]"
        ),
    ] = None,
    allow_forced_speculation: Annotated[
        bool | None,
        typer.Option(
            "--allow-forced-speculation/--no-forced-speculation",
            help="Whether requests may bypass the gates.",
        ),
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None,
    log_prompts: Annotated[
        bool | None,
        typer.Option("--log-prompts/--no-log-prompts", help="Write texts into the log."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file without tables; its keys are these names with underscores, and "
            "allowed_origins, a list, for --allowed-origin."
        ),
    ] = None,
) -> None:
    """Serve a model over WebSockets. Flags override the file."""
    flags: dict[str, Any] = {name: value for name, value in locals().items() if name != "config"}
    from paceline.core.config import ServeConfig

    settings = ServeConfig.load(config, flags)
    with _first_look(settings) as listener:
        typer.echo("Starting; importing torch takes some seconds, half a minute on a busy machine")
        with _extra_needed("serve"):
            from paceline.composition import run_server
        run_server(settings, listener)


def _first_look(settings: ServeConfig) -> socket.socket:
    """The port, bound, once nothing cheap to see is wrong with settings, models and device:
    importing torch takes seconds, and nobody should wait them for a typing error."""
    from paceline.core.config import Device, check_alone
    from paceline.core.request import DrafterKind
    from paceline.model.source import check_local, find_local
    from paceline.model.torch_build import why_no_cuda
    from paceline.server.listener import bind

    check_alone(settings)
    reason = why_no_cuda() if settings.device is Device.CUDA else None
    if reason is not None:
        raise ConfigError(f"device is cuda, but {reason}", field="device")
    models = {"target": settings.target}
    if settings.drafter in (DrafterKind.AUTO, DrafterKind.MODEL):
        models["draft"] = settings.draft
    for field, spec in models.items():
        found = None if spec is None else find_local(spec, field=field)
        if found is not None:
            check_local(found, field=field)
    return bind(settings.host, settings.port)


@app.command()
def chat(
    question: Annotated[str | None, typer.Argument(help="Ask this and leave.")] = None,
    url: Annotated[str | None, typer.Option(help="Server. [default: ws://127.0.0.1:8765]")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PACELINE_API_KEY", help="Key of the server.")
    ] = None,
    system: Annotated[str | None, typer.Option(help="Instructions for the answers.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="Longest answer, in tokens; 0 lets it fill the context. [default: 1024]"),
    ] = None,
    speculation: Annotated[str | None, typer.Option(help="auto, on or off.")] = None,
    drafter: Annotated[str | None, typer.Option(help="auto, model, ngram or none.")] = None,
) -> None:
    """Chat with a server in the terminal. Ctrl-C stops an answer, Ctrl-D leaves."""
    from paceline_client.chat import run

    options: dict[str, Any] = {
        "url": url,
        "api_key": api_key,
        "system": system,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "speculation": _one_of("speculation", speculation, ("auto", "on", "off")),
        "drafter": _one_of("drafter", drafter, ("auto", "model", "ngram", "none")),
    }
    given = {name: value for name, value in options.items() if value is not None}
    raise typer.Exit(run(question, **given))


def _one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    if value is not None and value not in allowed:
        raise ConfigError(
            f"{name} is {value!r}; it must be one of {', '.join(allowed)}", field=name
        )
    return value


# Subcommands with applications of their own take all that follows their name.
_PASS_ON: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}


@app.command(**_PASS_ON)
def plan(context: typer.Context) -> None:
    """What speculation will bring for a target, a draft and a device, before you run."""
    from paceline.planning.command import app as plan_app

    plan_app(context.args, prog_name="paceline plan", obj=_run_models)


def _run_models(*arguments: Any, **options: Any) -> Any:
    """An `AcceptanceRun` that brings torch in only when something is measured."""
    with _extra_needed("serve"):
        from paceline.measuring import measure_acceptance
    return measure_acceptance(*arguments, **options)


@app.command(**_PASS_ON)
def distill(context: typer.Context) -> None:
    """Make a draft for a target from the target's own answers."""
    with _extra_needed("distill"):
        from paceline.training.command import app as distill_app
    distill_app(context.args, prog_name="paceline distill")


@app.command(**_PASS_ON)
def bench(context: typer.Context) -> None:
    """Measure a server under load: throughput, latency, acceptance, where a step's time goes."""
    with _extra_needed("bench"):
        from paceline.benchmark.command import app as bench_app
    bench_app(context.args, prog_name="paceline bench")


@app.command(**_PASS_ON)
def top(context: typer.Context) -> None:
    """Watch a server's sessions live in the terminal."""
    from paceline_client.top import app as top_app

    top_app(context.args, prog_name="paceline top")


@app.command(**_PASS_ON)
def lsp(context: typer.Context) -> None:
    """Completions in an editor: a language server over standard input and output."""
    with _extra_needed("lsp", "lsp"):
        from paceline_lsp.command import app as lsp_app
    lsp_app(context.args, prog_name="paceline lsp")


@contextmanager
def _extra_needed(name: str, extra: str = "serve") -> Iterator[None]:
    """Says what to install when a command's imports are not there."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0].startswith("paceline"):
            raise
        raise ConfigError(
            f"paceline {name} needs {error.name}, which is not installed: "
            f"pip install 'paceline[{extra}]'"
        ) from error
