"""What a model's text is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of a message."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """More of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of this function begins; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsPiece:
    """More of the arguments of the call that has begun: JSON text as the model wrote it."""

    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call's arguments are complete."""


Piece = TextPiece | ReasoningPiece | CallBegun | ArgumentsPiece | CallEnded


class OutputParser(Protocol):
    """Splits one answer into pieces. Text may come in parts of any length, cut anywhere; what is
    not certain yet is held back, and no character is lost."""

    def push(self, text: str) -> list[Piece]:
        """More text; the pieces that became certain with it."""
        ...

    def finish(self) -> list[Piece]:
        """Nothing follows: what was held back. A call that is not complete stays open."""
        ...


class PlainText:
    """The parser for answers that are one message and nothing else."""

    def push(self, text: str) -> list[Piece]:
        return [TextPiece(text)] if text else []

    def finish(self) -> list[Piece]:
        return []
