"""An answer on a terminal while it streams.

Markdown is shown block by block: a block that can't change any more is printed for good and
scrolls like everything else; only the last one is redrawn, and only its end where it is taller
than the screen. So a half-finished code fence looks like code from its first line, and a long
answer neither flickers nor repeats itself.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from markdown_it import MarkdownIt
from rich.console import Group
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rich.console import Console, ConsoleOptions, RenderResult

_REDRAWS_PER_SECOND = 12
_CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_PARSER = MarkdownIt()


def printable(text: str) -> str:
    """Text from a model without the control characters that could steer a terminal."""
    return _CONTROL_CHARACTERS.sub("", text)


def split_finished(markdown: str) -> tuple[str, str]:
    """The blocks that what follows can't change, and the rest: the last block."""
    starts = [token.map[0] for token in _PARSER.parse(markdown) if token.level == 0 and token.map]
    if len(starts) < 2:
        return "", markdown
    lines = markdown.splitlines(keepends=True)
    last = max(starts)
    return "".join(lines[:last]), "".join(lines[last:])


class AnswerView:
    """Use as a context manager; `add` text as it comes, set `status` for the line below it."""

    def __init__(self, console: Console) -> None:
        self.status = ""
        self._console = console
        self._rest = ""
        self._drawn_at = 0.0
        self._live = Live(
            console=console, auto_refresh=False, transient=True, vertical_overflow="crop"
        )

    def add(self, text: str) -> None:
        self._rest += printable(text)
        now = time.monotonic()
        if now - self._drawn_at >= 1 / _REDRAWS_PER_SECOND:
            self._drawn_at = now
            self._draw()

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._live.update(Text(""), refresh=True)
        self._live.stop()
        if self._rest.strip():
            self._console.print(_markdown(self._rest))

    def _draw(self) -> None:
        finished, self._rest = split_finished(self._rest)
        if finished.strip():
            self._console.print(_markdown(finished))
            self._console.print()
        height = max(1, self._console.height - 3)
        self._live.update(
            Group(_End(_markdown(self._rest), height), Text(self.status, style="dim")),
            refresh=True,
        )


class _End:
    """The last lines of something that may be taller than the screen."""

    def __init__(self, markdown: Markdown, height: int) -> None:
        self._markdown = markdown
        self._height = height

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._markdown, options.update(height=None), pad=False)
        for line in lines[-self._height :]:
            yield from line
            yield Segment.line()


def _markdown(text: str) -> Markdown:
    return Markdown(text, code_theme="ansi_dark", hyperlinks=False)
