"""Where a JSON object or array ends, read character by character."""

from __future__ import annotations


class Nesting:
    """Push from the opening bracket on; after `is_closed` nothing more may be pushed.

    Brackets are counted, not matched: what a model wrote is handed on as it is, and whoever parses
    it will say what is wrong.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    def push(self, character: str) -> None:
        if self._is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._is_in_string = False
        elif character == '"':
            self._is_in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_closed = self._depth == 0
