"""Takes the thoughts off the front of an answer: `<think>...</think>`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from paceline.server.tool_calls.pieces import ReasoningPiece

if TYPE_CHECKING:
    from paceline.server.tool_calls.pieces import OutputParser, Piece

OPENING: Final = "<think>"
CLOSING: Final = "</think>"


class ReasoningParser:
    """Hands everything behind the thoughts to another parser.

    is_open: the prompt has opened the thoughts already. White space around them is syntax.
    """

    def __init__(self, rest: OutputParser, *, is_open: bool) -> None:
        self._rest = rest
        self._is_inside = is_open
        self._is_over = False
        self._has_thought = False
        self._trims = False
        self._held = ""

    def push(self, text: str) -> list[Piece]:
        if self._is_over:
            return self._after(text)
        self._held += text
        if not self._is_inside:
            start = self._held.lstrip()
            if not start.startswith(OPENING):
                if OPENING.startswith(start):
                    return []
                return self._end(self._held)
            self._is_inside = True
            self._held = start.removeprefix(OPENING)
        if not self._has_thought:
            self._held = self._held.lstrip("\n")
        place = self._held.find(CLOSING)
        if place >= 0:
            thought, rest = self._held[:place], self._held[place + len(CLOSING) :]
            pieces: list[Piece] = [ReasoningPiece(thought.rstrip("\n"))] if thought.strip() else []
            return pieces + self._end(rest.lstrip("\n"), trims=not rest.strip("\n"))
        keep = _held_back(self._held)
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        self._has_thought = self._has_thought or bool(shown)
        return [ReasoningPiece(shown)] if shown else []

    def finish(self) -> list[Piece]:
        held, self._held = self._held, ""
        if self._is_inside and not self._is_over:
            return [ReasoningPiece(held)] if held.strip() else []
        pieces = self._rest.push(held) if held and not self._is_over else []
        return pieces + self._rest.finish()

    def _end(self, rest: str, *, trims: bool = False) -> list[Piece]:
        self._is_over = True
        self._held = ""
        self._trims = trims
        return self._rest.push(rest) if rest else []

    def _after(self, text: str) -> list[Piece]:
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return self._rest.push(text) if text else []


def _held_back(text: str) -> int:
    """Characters at the end that may belong to the closing marker: a part of it, and line ends
    before it."""
    for size in range(min(len(CLOSING) - 1, len(text)), -1, -1):
        if text.endswith(CLOSING[:size]):
            body = text[: len(text) - size]
            return size + len(body) - len(body.rstrip("\n"))
    return 0
