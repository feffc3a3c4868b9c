"""From a validation failure to an error that a client's author can act on.

msgspec reports a fault as one sentence with a path. Here it becomes a code, a path in the form
`input[2].content` and a sentence that says what would be right.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.requests import CompletionCreate, PacelineOptions, ResponseCreate

_PATH = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_WRONG_TYPE = re.compile(r"^Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_OUT_OF_RANGE = re.compile(r"^Expected (?P<wanted>.+)$")
_INVALID_VALUE = re.compile(r"^Invalid (?:enum )?value (?P<value>.+)$", re.DOTALL)

_OPTION_NAMES = frozenset(field.name for field in msgspec.structs.fields(PacelineOptions))


def one_of(names: Iterable[str]) -> str:
    """`a`, `b` or `c`, in words."""
    quoted = [f"`{name}`" for name in names]
    if len(quoted) == 1:
        return quoted[0]
    return ", ".join(quoted[:-1]) + " or " + quoted[-1]


def misplaced_option(value: Mapping[str, Any], cls: type[msgspec.Struct]) -> ProtocolError | None:
    """The error for a sampling parameter of `paceline` that stands beside it.

    Unknown fields of the OpenAI vocabulary are ignored, but these are known to change the answer:
    ignoring them would be a silent lie.
    """
    if cls is not ResponseCreate and cls is not CompletionCreate:
        return None
    own = {field.name for field in msgspec.structs.fields(cls)}
    for name in value:
        if name in _OPTION_NAMES and name not in own:
            return ProtocolError(
                ErrorCode.UNSUPPORTED_PARAMETER,
                f'{name} has its place inside `paceline`: {{"paceline": {{"{name}": ...}}}}',
                param=name,
            )
    return None


def as_protocol_error(
    error: msgspec.ValidationError, cls: type[msgspec.Struct] | None
) -> ProtocolError:
    """Translate a validation failure.

    cls: the message's class, from which names of neighbouring fields are suggested for a
    misspelt one; None for none.
    """
    text = str(error)
    path = ""
    if found := _PATH.search(text):
        path = found["path"]
        text = text[: found.start()]
    if found := _MISSING.match(text):
        param = _join(path, found["name"])
        return ProtocolError(
            ErrorCode.MISSING_REQUIRED_PARAMETER, f"{param} is missing", param=param
        )
    if found := _UNKNOWN.match(text):
        param = _join(path, found["name"])
        return ProtocolError(
            ErrorCode.UNKNOWN_PARAMETER,
            f"{param} is not known{_suggestion(found['name'], path, cls)}",
            param=param,
        )
    where = path or "the message"
    param_or_none = path or None
    if found := _WRONG_TYPE.match(text):
        wanted, got = (_in_json_words(found[name]) for name in ("wanted", "got"))
        return ProtocolError(
            ErrorCode.INVALID_TYPE, f"{where} must be {wanted}, not {got}", param=param_or_none
        )
    if found := _INVALID_VALUE.match(text):
        return ProtocolError(
            ErrorCode.INVALID_VALUE,
            f"{where} is {found['value']}, which is not one of the values it can take",
            param=param_or_none,
        )
    if found := _OUT_OF_RANGE.match(text):
        return ProtocolError(
            ErrorCode.INVALID_VALUE,
            f"{where} must be {_in_json_words(found['wanted'].replace('`', ''))}",
            param=param_or_none,
        )
    return ProtocolError(ErrorCode.INVALID_VALUE, f"{where}: {text}", param=param_or_none)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _suggestion(name: str, path: str, cls: type[msgspec.Struct] | None) -> str:
    if path == "paceline":
        names = sorted(_OPTION_NAMES)
    elif not path and cls is not None:
        names = [field.name for field in msgspec.structs.fields(cls)]
    else:
        return ""
    close = difflib.get_close_matches(name, names, n=1)
    if close:
        return f"; did you mean `{close[0]}`?"
    return f"; known are {', '.join(names)}"


_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "null": "null",
}


def _in_json_words(names: str) -> str:
    """`str | array` as `a string or an array`; what is no such list of types stays as it is."""
    parts = names.split(" | ")
    if len(parts) > 1 and parts[-1] == "null":
        parts.pop()
    head, _, tail = parts[-1].partition(" ")
    parts[-1] = head
    return " or ".join(_WORDS.get(part, part) for part in parts) + (f" {tail}" if tail else "")
