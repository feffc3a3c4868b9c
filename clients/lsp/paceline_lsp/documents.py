"""Open documents, as the editor has them, and positions in them.

pygls keeps documents too, but splits lines at characters that the protocol does not count as line
ends (form feed, U+2028 and others), after which every later position is wrong. Source code has
form feeds, so text and positions are kept here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

PositionEncoding = Literal["utf-8", "utf-16", "utf-32"]

_LINE_END = re.compile(r"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Span:
    """A range of positions: line and character of its start and of its end (exclusive)."""

    start: tuple[int, int]
    end: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Document:
    uri: str
    language_id: str
    version: int
    text: str


def offset_at(text: str, line: int, character: int, encoding: PositionEncoding) -> int:
    """Index into the text of a position, counted in the encoding's code units.

    Beyond the end of its line a position means the line's end, beyond the last line the end of the
    text, and within a character that character's start: what the protocol says, or nearest to it.
    """
    start = 0
    ends = _LINE_END.finditer(text)
    for _ in range(line):
        end_of_line = next(ends, None)
        if end_of_line is None:
            return len(text)
        start = end_of_line.end()
    end_of_line = next(ends, None)
    end = len(text) if end_of_line is None else end_of_line.start()
    if encoding == "utf-32" or text[start:end].isascii():
        return min(start + character, end)
    num_units = 0
    for at in range(start, end):
        num_units += _width(text[at], encoding)
        if num_units > character:
            return at
    return end


def num_units(text: str, encoding: PositionEncoding) -> int:
    """Length of a text in the encoding's code units."""
    if encoding == "utf-32" or text.isascii():
        return len(text)
    return sum(_width(character, encoding) for character in text)


def _width(character: str, encoding: PositionEncoding) -> int:
    code = ord(character)
    if encoding == "utf-16":
        return 1 if code < 0x10000 else 2
    return 1 if code < 0x80 else 2 if code < 0x800 else 3 if code < 0x10000 else 4


class Documents:
    """The open documents by URI."""

    def __init__(self, encoding: PositionEncoding = "utf-16") -> None:
        self.encoding: PositionEncoding = encoding
        self._open: dict[str, Document] = {}

    def open(self, document: Document) -> None:
        self._open[document.uri] = document

    def change(self, uri: str, version: int, edits: Iterable[tuple[Span | None, str]]) -> None:
        """Edits in order, each in positions after the one before; without a span the whole text is
        replaced. Changes of a document that is not open are ignored."""
        document = self._open.get(uri)
        if document is None:
            return
        text = document.text
        for span, new in edits:
            if span is None:
                text = new
                continue
            start = offset_at(text, *span.start, self.encoding)
            end = offset_at(text, *span.end, self.encoding)
            text = text[:start] + new + text[max(start, end) :]
        self._open[uri] = replace(document, version=version, text=text)

    def close(self, uri: str) -> None:
        self._open.pop(uri, None)

    def get(self, uri: str) -> Document | None:
        return self._open.get(uri)
