"""`paceline top`: a server's sessions live in the terminal, from its telemetry."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import anyio
import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from paceline_client.endpoint import DEFAULT_URL
from paceline_client.errors import (
    ConnectError,
    ConnectionLostError,
    PacelineClientError,
    RequestRefusedError,
)
from paceline_client.session import connect
from paceline_client.top_view import History, screen
from paceline_protocol import ErrorCode

if TYPE_CHECKING:
    from paceline_protocol.messages import TelemetrySample

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

RETRY_S = 1.0


@app.command()
def top(
    url: Annotated[str, typer.Option(help="Server.")] = DEFAULT_URL,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar=["PACELINE_ADMIN_KEY", "PACELINE_API_KEY"],
            help="Admin key of the server; on its own machine a server without keys needs none.",
        ),
    ] = None,
    interval_ms: Annotated[
        int, typer.Option(min=50, max=60_000, help="Time between two samples.")
    ] = 500,
    once: Annotated[
        bool, typer.Option("--once", help="Print one sample and leave, as into a pipe.")
    ] = False,
) -> None:
    """Watch a server's sessions: acceptance, gates, speed, blocks, step time. Ctrl-C leaves."""
    console = Console(highlight=False)
    errors = Console(file=sys.stderr, highlight=False)
    try:
        if once or not console.is_terminal:
            anyio.run(show_once, console, url, api_key, interval_ms)
        else:
            anyio.run(watch, console, url, api_key, interval_ms)
    except KeyboardInterrupt:
        raise typer.Exit from None
    except (PacelineClientError, ValueError) as error:
        errors.print(Text(f"error: {in_words(error)}"), soft_wrap=True)
        raise typer.Exit(2 if isinstance(error, ValueError) else 1) from None


async def show_once(console: Console, url: str, api_key: str | None, interval_ms: int) -> None:
    """Print one sample. Raises PacelineClientError, or ValueError for what is no address."""
    history = History()
    async with (
        connect(url, api_key=api_key) as session,
        session.telemetry("server", interval_ms=interval_ms) as samples,
    ):
        history.add(await anext(samples))  # speeds are from one sample to the next
        sample = await anext(samples)
        history.add(sample)
    height = max(console.height, len(sample.sessions) + 20)  # a pipe has no end
    console.print(screen(sample, history, width=console.width, height=height))


async def watch(console: Console, url: str, api_key: str | None, interval_ms: int) -> None:
    """Redraw with every sample until cancelled; a connection that is lost is made again.

    Raises PacelineClientError when there is no server at first, or it does not show its telemetry.
    """
    history = History()
    last: TelemetrySample | None = None
    with Live(console=console, auto_refresh=False, screen=True, transient=True) as live:

        def draw(note: str = "") -> None:
            if last is not None:
                size = console.size
                view = screen(last, history, width=size.width, height=size.height, note=note)
                live.update(view, refresh=True)

        while True:
            try:
                async with connect(url, api_key=api_key) as session:
                    async for sample in session.telemetry("server", interval_ms=interval_ms):
                        last = sample
                        history.add(sample)
                        draw()
            except (ConnectError, ConnectionLostError) as error:
                if last is None:
                    raise
                draw(f"{error}; trying again")
                await anyio.sleep(RETRY_S)


def in_words(error: Exception) -> str:
    """What went wrong and what would help, in one line."""
    if isinstance(error, RequestRefusedError) and error.code == ErrorCode.PERMISSION_DENIED:
        return (
            f"{error.message}; --api-key or the environment variable PACELINE_ADMIN_KEY takes "
            "the admin key"
        )
    if isinstance(error, ConnectError):
        return (
            f"no server answers at {error.url} ({error.reason}); `paceline serve` starts one, "
            "--url names another"
        )
    return str(error)
