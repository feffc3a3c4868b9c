"""Finds tool calls in an answer while it is being written.

    TEXT --marker--> CALLS (one, or an array of them) --end marker--> BETWEEN --text--> TEXT
                                                                          \\--marker--> CALLS

What announces a call but turns out to be none is text again, marker and all. White space between
calls is syntax; anywhere else it is text.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from paceline.server.tool_calls.json_call import JsonCall, MalformedCall
from paceline.server.tool_calls.nesting import Nesting
from paceline.server.tool_calls.pieces import ArgumentsPiece, CallBegun, CallEnded, TextPiece

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.server.tool_calls.dialects import Dialect
    from paceline.server.tool_calls.pieces import Piece

_SPACE = " \t\r\n"
_ARGS_MARK = "[ARGS]"
_MAX_NAME = 128


class _At(Enum):
    START = auto()
    TEXT = auto()
    OPENING = auto()
    NAME = auto()
    CALL = auto()
    BEHIND_CALL = auto()
    BETWEEN = auto()


class CallParser:
    """See `pieces.OutputParser`. names: of the functions that can be called; an unannounced call of
    any other is text."""

    def __init__(self, dialect: Dialect, names: Iterable[str]) -> None:
        self._dialect = dialect
        self._names = frozenset(names)
        self._at = _At.START if dialect.is_bare else _At.TEXT
        self._held = ""
        self._raw = ""
        self._call = JsonCall()
        self._arguments: JsonArguments | None = None
        self._name = ""
        self._is_array = False
        self._is_announced = False

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        for character in text:
            pieces += self._step(character)
        return _merged(pieces)

    def finish(self) -> list[Piece]:
        match self._at:
            case _At.START | _At.TEXT:
                rest = self._held
            case _At.OPENING | _At.NAME:
                rest = self._raw
            case _At.CALL:
                begun = self._arguments is not None or self._call.has_begun
                rest = "" if begun else self._raw
            case _:
                rest = "" if self._is_syntax(self._held) else self._held
        self._held = self._raw = ""
        return [TextPiece(rest)] if rest else []

    def _step(self, character: str) -> list[Piece]:
        match self._at:
            case _At.START:
                return self._start(character)
            case _At.TEXT | _At.BETWEEN:
                return self._text(character)
            case _At.BEHIND_CALL:
                return self._behind_call(character)
        self._raw += character
        try:
            match self._at:
                case _At.OPENING:
                    return self._opening(character)
                case _At.NAME:
                    return self._in_name(character)
                case _:
                    return self._in_call(character)
        except MalformedCall:
            return self._give_up()

    def _start(self, character: str) -> list[Piece]:
        """Nothing but white space so far."""
        if character in _SPACE:
            self._held += character
            return []
        if character != "{":
            self._at = _At.TEXT
            return self._text(character)
        self._raw, self._held = self._held + character, ""
        self._is_announced = False
        self._begin_object()
        return self._in_call(character)

    def _text(self, character: str) -> list[Piece]:
        """Text, or white space behind a call, that may hold the beginning of a marker."""
        self._held += character
        for marker in self._dialect.begins:
            if self._held.endswith(marker):
                text = self._held[: -len(marker)]
                is_syntax = self._at is _At.BETWEEN and not text.strip(_SPACE)
                self._raw, self._held = marker, ""
                self._is_announced, self._is_array = True, False
                self._at = _At.OPENING
                return [] if is_syntax or not text else [TextPiece(text)]
        keep = max(_overlap(self._held, marker) for marker in self._dialect.begins)
        if self._at is _At.BETWEEN:
            if not self._held[: len(self._held) - keep].strip(_SPACE):
                return []
            self._at = _At.TEXT
        shown = self._held[: len(self._held) - keep]
        self._held = self._held[len(shown) :]
        return [TextPiece(shown)] if shown else []

    def _opening(self, character: str) -> list[Piece]:
        """Behind a marker, or behind a comma of an array."""
        if character in _SPACE:
            return []
        if character == "[" and not self._is_array:
            self._is_array = True
            return []
        if character == "{":
            self._begin_object()
            return self._in_call(character)
        if self._dialect.names_first and not self._is_array:
            self._name = character
            self._at = _At.NAME
            return []
        raise MalformedCall

    def _in_name(self, character: str) -> list[Piece]:
        """`name[ARGS]{...}` or `name{...}`."""
        self._name += character
        if character != "{":
            if len(self._name) > _MAX_NAME:
                raise MalformedCall
            return []
        name = self._name[:-1].strip(_SPACE).removesuffix(_ARGS_MARK).strip(_SPACE)
        if not name or any(each in _SPACE for each in name):
            raise MalformedCall
        self._arguments = JsonArguments()
        self._at = _At.CALL
        return [CallBegun(name), *self._arguments.push(character)]

    def _begin_object(self) -> None:
        self._call = JsonCall()
        self._arguments = None
        self._at = _At.CALL

    def _in_call(self, character: str) -> list[Piece]:
        reader = self._arguments or self._call
        try:
            pieces = reader.push(character)
        except MalformedCall:
            if not reader.has_begun:
                raise
            self._raw = character  # the call stands as far as it goes
            return [CallEnded(), *self._give_up()]
        for piece in pieces:
            if isinstance(piece, CallBegun):
                if not self._is_announced and piece.name not in self._names:
                    raise MalformedCall
                self._raw = ""
        if reader.is_done:
            self._at, self._held = _At.BEHIND_CALL, ""
        return pieces

    def _behind_call(self, character: str) -> list[Piece]:
        """A comma, the array's end, the end marker, a separator of unannounced calls."""
        self._held += character
        held = self._held.lstrip(_SPACE)
        if not held:
            return []
        if self._is_array and held in (",", "]"):
            self._raw = self._held if held == "," else ""
            self._held = ""
            if held == ",":
                self._at = _At.OPENING
            else:
                self._is_array = False
            return []
        if self._dialect.is_bare and held == ";":
            self._raw, self._held = self._held, ""
            self._at = _At.OPENING
            return []
        end = self._dialect.end
        if end is not None and end.startswith(held):
            if held == end:
                self._at, self._held = _At.BETWEEN, ""
            return []
        rest, self._held = self._held, ""
        self._at = _At.BETWEEN
        pieces: list[Piece] = []
        for each in rest:
            pieces += self._step(each)
        return pieces

    def _give_up(self) -> list[Piece]:
        """What was read is text."""
        text, self._raw = self._raw, ""
        self._at, self._is_array = _At.TEXT, False
        return [TextPiece(text)] if text else []

    def _is_syntax(self, held: str) -> bool:
        """White space, or an end marker that was cut off."""
        rest = held.strip(_SPACE)
        end = self._dialect.end
        return not rest or (end is not None and end.startswith(rest))


class JsonArguments:
    """The arguments alone, where the name stood before them."""

    has_begun = True

    def __init__(self) -> None:
        self._nesting = Nesting()

    @property
    def is_done(self) -> bool:
        return self._nesting.is_closed

    def push(self, character: str) -> list[Piece]:
        self._nesting.push(character)
        return [ArgumentsPiece(character), *([CallEnded()] if self.is_done else [])]


def _overlap(text: str, marker: str) -> int:
    """Length of the longest proper prefix of `marker` that `text` ends with."""
    for size in range(min(len(marker) - 1, len(text)), 0, -1):
        if text.endswith(marker[:size]):
            return size
    return 0


def _merged(pieces: list[Piece]) -> list[Piece]:
    """Adjacent pieces of the same kind as one."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        if isinstance(piece, TextPiece) and isinstance(last, TextPiece):
            merged[-1] = TextPiece(last.text + piece.text)
        elif isinstance(piece, ArgumentsPiece) and isinstance(last, ArgumentsPiece):
            merged[-1] = ArgumentsPiece(last.text + piece.text)
        else:
            merged.append(piece)
    return merged
