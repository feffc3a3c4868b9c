"""From a validation failure to an error that a client's author can act on.

msgspec reports a fault as one sentence with a path. Here it becomes a code, a path in the form
`input[2].content` and a sentence that says what is there and what would be right.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any

import msgspec

from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.expectations import expectation, value_at, with_value_at
from paceline_protocol.requests import PacelineOptions

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<name>[^`]*)`")
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<name>[^`]*)`")
_WRONG_TYPE = re.compile(r"^Expected `(?P<wanted>[^`<>]*)`, got `(?P<got>[^`]*)`")

_OPTION_NAMES = frozenset(field.name for field in msgspec.structs.fields(PacelineOptions))
_MAX_SHOWN = 60


def refuse_misplaced_option(value: Mapping[str, Any], cls: type[msgspec.Struct]) -> None:
    """Raises ProtocolError for a sampling parameter of `paceline` that stands beside it.

    Unknown fields of the OpenAI vocabulary are ignored, but these are known to change the answer:
    ignoring them would be a silent lie.
    """
    own = {field.name for field in msgspec.structs.fields(cls)}
    if "paceline" not in own:
        return
    for name in value:
        if name in _OPTION_NAMES and name not in own and value[name] is not None:
            raise ProtocolError(
                ErrorCode.UNSUPPORTED_PARAMETER,
                f'{name} has its place inside `paceline`: {{"paceline": {{"{name}": ...}}}}',
                param=name,
            )


def as_protocol_error(
    error: msgspec.ValidationError, cls: type[msgspec.Struct], value: Any
) -> ProtocolError:
    """Translate a validation failure of `value`, a message in plain values, against its class."""
    text = str(error)
    path = ""
    is_key = False
    if found := _PLACE.search(text):
        path = found["path"]
        is_key = found["key"] is not None
        text = text[: found.start()]
    if found := _MISSING.match(text):
        return _missing(_join(path, found["name"]), cls, value)
    if found := _UNKNOWN.match(text):
        return _unknown(found["name"], path, cls)
    wrong_type = _WRONG_TYPE.match(text)
    code = ErrorCode.INVALID_TYPE if wrong_type else ErrorCode.INVALID_VALUE
    if is_key:
        wanted = _WORDS.get(wrong_type["wanted"], "another") if wrong_type else "another"
        return ProtocolError(code, f"a key of {path} must be {wanted}", param=path)
    wanted_here = expectation(cls, path, value)
    if path.endswith("[...]"):  # msgspec names no key
        path = _faulty_value(error, cls, value, path.removesuffix("[...]"))
    shown = _show(value_at(path, value)) if path else "of another form"
    where = path or "the message"
    if wanted_here is None:
        return ProtocolError(code, f"{where} is {shown}: {text}", param=path or None)
    return ProtocolError(code, f"{where} is {shown}; it must be {wanted_here}", param=path or None)


def _faulty_value(
    error: msgspec.ValidationError, cls: type[msgspec.Struct], value: Any, path: str
) -> str:
    """The path of the value that is wrong in the object at `path`: what fails alike alone."""
    values = value_at(path, value)
    for key, each in values.items() if isinstance(values, dict) else ():
        try:
            msgspec.convert(with_value_at(path, value, {key: each}), cls, str_keys=True)
        except msgspec.ValidationError as other:
            if str(other) == str(error):
                return f"{path}.{str(key)[:_MAX_SHOWN]}"
    return path


def json_fault(text: str | bytes, error: Exception) -> str:
    """What msgspec found wrong with a text that is no JSON.

    It takes half of a surrogate pair near the end for an end that came too early. The standard
    library lets halves pass, so what it can read was not cut off.
    """
    if "truncated" in str(error):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            return str(error)
        return "a string has a lone surrogate, half of a `\\ud83d\\ude00` pair"
    return str(error)


def kind(value: object) -> str:
    """What JSON calls the type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case dict():
            return "an object"
        case bytes():
            return "binary data"
        case _:
            return "an extension type"


def _missing(param: str, cls: type[msgspec.Struct], value: Any) -> ProtocolError:
    wanted = expectation(cls, param, value)
    return ProtocolError(
        ErrorCode.MISSING_REQUIRED_PARAMETER,
        f"{param} is missing" + (f"; it must be {wanted}" if wanted else ""),
        param=param,
    )


def _unknown(name: str, path: str, cls: type[msgspec.Struct]) -> ProtocolError:
    name = name[:_MAX_SHOWN]
    names = sorted(_OPTION_NAMES)
    if not path:
        names = [field.name for field in msgspec.structs.fields(cls)]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean `{close[0]}`?" if close else f"known are {', '.join(names)}"
    param = _join(path, name)
    return ProtocolError(ErrorCode.UNKNOWN_PARAMETER, f"{param} is not known; {hint}", param=param)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _show(value: object) -> str:
    """A value as an error quotes it: short scalars as they are, else only what kind it is."""
    match value:
        case bool() | None:
            return "null" if value is None else str(value).lower()
        case int() | float():
            shown = str(value)
            return shown if len(shown) <= _MAX_SHOWN else "a very large number"
        case str():
            cut = value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "..."
            return f'"{cut}"'
        case _:
            return kind(value)


_WORDS = {"str": "a string", "int": "an integer", "float": "a number"}
