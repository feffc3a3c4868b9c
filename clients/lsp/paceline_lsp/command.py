"""`paceline lsp`."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import anyio
import typer

from paceline_lsp.server import CompletionServer
from paceline_lsp.settings import Settings

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.command()
def lsp(
    url: Annotated[str | None, typer.Option(help="Server. [default: ws://127.0.0.1:8765]")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="PACELINE_API_KEY", help="Key of the server.")
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Speak over standard input and output; always so.")
    ] = True,
    log_level: Annotated[
        str, typer.Option(help="debug, info, warning or error; written to standard error.")
    ] = "warning",
) -> None:
    """A language server with completions from a Paceline server. Editors start it; what it can be
    told is in its README."""
    del stdio
    level = logging.getLevelNamesMapping().get(log_level.upper())
    if level is None:
        raise typer.BadParameter(
            f"{log_level!r} is none of debug, info, warning, error", param_hint="--log-level"
        )
    logging.basicConfig(stream=sys.stderr, level=level, format="%(levelname)s %(name)s %(message)s")
    # pygls logs every message at info level, documents and all, and each late cancellation.
    logging.getLogger("pygls").setLevel(max(level, logging.ERROR))
    given = {"url": url, "apiKey": api_key}
    server = CompletionServer(Settings().changed(given))
    raise typer.Exit(anyio.run(server.run, sys.stdin.buffer, sys.stdout.buffer))
