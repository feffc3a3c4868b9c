"""One call in JSON, read character by character: `{"name": "f", "arguments": {...}}`.

The arguments are handed on as they are written, untouched, as soon as the name is known. `function`
is taken for `name`, or for the object around both; `parameters` for `arguments`; arguments that are
a JSON string are handed on decoded.
"""

from __future__ import annotations

import json
from enum import Enum, auto

from paceline.server.tool_calls.nesting import Nesting
from paceline.server.tool_calls.pieces import ArgumentsPiece, CallBegun, CallEnded, Piece

_SPACE = " \t\r\n"
_ARGUMENTS = ("arguments", "parameters")
_NAMES = ("name", "function")


class MalformedCall(Exception):
    """What was read is no call."""


class _At(Enum):
    OPENING = auto()
    KEY = auto()
    IN_KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_STRING = auto()
    IN_NESTED = auto()
    IN_SCALAR = auto()
    BEHIND_VALUE = auto()


class JsonCall:
    """Reads one object. `push` takes a character; after `is_done` nothing more may be pushed."""

    def __init__(self) -> None:
        self.is_done = False
        self.name: str | None = None
        self._at = _At.OPENING
        self._num_open = 0
        self._key = ""
        self._text: list[str] = []
        self._arguments: list[str] = []
        self._has_arguments = False
        self._nesting = Nesting()
        self._is_escaped = False

    @property
    def has_begun(self) -> bool:
        """Whether the name is known, so that pieces have been given out."""
        return self.name is not None

    def push(self, character: str) -> list[Piece]:
        """Raises MalformedCall."""
        match self._at:
            case _At.IN_KEY | _At.IN_STRING:
                return self._in_string(character)
            case _At.IN_NESTED:
                return self._in_nested(character)
            case _At.IN_SCALAR:
                if character not in _SPACE + ",}":
                    return self._value_part(character)
                self._at = _At.BEHIND_VALUE
                return self.push(character)
            case _:
                return [] if character in _SPACE else self._between(character)

    def _between(self, character: str) -> list[Piece]:
        """Outside of keys and values, white space aside."""
        match self._at, character:
            case _At.OPENING, "{":
                self._num_open = 1
                self._at = _At.KEY
            case _At.KEY, '"':
                self._text = ['"']
                self._at = _At.IN_KEY
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.VALUE, _:
                return self._begin_value(character)
            case _At.BEHIND_VALUE, ",":
                self._at = _At.KEY
            case ((_At.BEHIND_VALUE | _At.KEY), "}"):
                return self._close()
            case _:
                raise MalformedCall
        return []

    def _begin_value(self, character: str) -> list[Piece]:
        if character == '"':
            self._text = ['"']
            self._at = _At.IN_STRING
            return []
        if character == "{" and self._key == "function" and self._num_open == 1:
            self._num_open = 2
            self._at = _At.KEY
            return []
        if character in "{[":
            self._nesting = Nesting()
            self._at = _At.IN_NESTED
            return self._in_nested(character)
        elif character in "-0123456789tfn":
            self._at = _At.IN_SCALAR
        else:
            raise MalformedCall
        return self._value_part(character)

    def _in_string(self, character: str) -> list[Piece]:
        self._text.append(character)
        if self._is_escaped:
            self._is_escaped = False
            return []
        if character == "\\":
            self._is_escaped = True
            return []
        if character != '"':
            return []
        try:
            text = json.loads("".join(self._text), strict=False)
        except ValueError:
            raise MalformedCall from None
        if self._at is _At.IN_KEY:
            self._key = text
            self._at = _At.COLON
            return []
        self._at = _At.BEHIND_VALUE
        if self._key in _NAMES and self.name is None:
            return self._begin(text)
        return self._value_part(text) if text else []

    def _in_nested(self, character: str) -> list[Piece]:
        self._nesting.push(character)
        if self._nesting.is_closed:
            self._at = _At.BEHIND_VALUE
        return self._value_part(character)

    def _value_part(self, text: str) -> list[Piece]:
        """More of a value; only that of the arguments counts."""
        if self._key not in _ARGUMENTS:
            return []
        self._has_arguments = True
        if self.name is None:
            self._arguments.append(text)
            return []
        return [ArgumentsPiece(text)]

    def _begin(self, name: str) -> list[Piece]:
        if not name:
            raise MalformedCall
        self.name = name
        pieces: list[Piece] = [CallBegun(name)]
        if self._arguments:
            pieces.append(ArgumentsPiece("".join(self._arguments)))
        return pieces

    def _close(self) -> list[Piece]:
        self._num_open -= 1
        if self._num_open:
            self._at = _At.BEHIND_VALUE
            return []
        if self.name is None:
            raise MalformedCall
        self.is_done = True
        pieces: list[Piece] = [] if self._has_arguments else [ArgumentsPiece("{}")]
        return [*pieces, CallEnded()]
