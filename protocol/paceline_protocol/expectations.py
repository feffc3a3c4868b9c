"""What a message may hold at a path, in words, read from the message's class.

Errors quote it, so that they never say less than the schema does.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_STEP = re.compile(r"\.?(?P<name>[^.\[\]]+)|\[(?P<index>[^\]]*)\]")


def one_of(names: Iterable[str]) -> str:
    """`a`, `b` or `c`, in words."""
    return _either([f"`{name}`" for name in names])


def expectation(cls: type[msgspec.Struct], path: str, value: Any) -> str | None:
    """What is right at a path of a message, or None where the class does not say.

    path: as in `input[2].role`. value: the message in plain values; where several classes are
    possible its tags say which is meant.
    """
    options: list[inspect.Type] = [_type_info(cls)]
    for found in _STEP.finditer(path):
        name, index = found["name"], found["index"]
        if name is not None:
            tags = _tags(options, name)
            options = [member for option in options for member in _fields(option, name, value)]
            if not options and tags:
                return one_of(tags)
            value = value.get(name) if isinstance(value, dict) else None
        else:
            options = [item for option in options for item in _items(option)]
            value = _element(value, index)
    described = list(dict.fromkeys(text for option in options for text in _describe(option)))
    return _either(described) if described else None


def value_at(path: str, value: Any) -> Any:
    """The plain value at a path; None where there is none."""
    for found in _STEP.finditer(path):
        if found["name"] is not None:
            value = value.get(found["name"]) if isinstance(value, dict) else None
        else:
            value = _element(value, found["index"])
    return value


def with_value_at(path: str, value: Any, new: Any) -> Any:
    """A copy of the plain value with another one at a path that it has; all else is shared."""
    found = _STEP.match(path)
    if found is None:
        return new
    rest = path[found.end() :]
    if found["name"] is not None:
        name = found["name"]
        return {**value, name: with_value_at(rest, value[name], new)}
    index = int(found["index"])
    changed = list(value)
    changed[index] = with_value_at(rest, value[index], new)
    return changed


@cache
def _type_info(cls: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(cls)


def _members(option: inspect.Type) -> Iterator[inspect.Type]:
    match option:
        case inspect.UnionType(types=types):
            for member in types:
                yield from _members(member)
        case inspect.Metadata(type=inner):
            yield from _members(inner)
        case _:
            yield option


def _fields(option: inspect.Type, name: str, value: Any) -> Iterator[inspect.Type]:
    for member in _members(option):
        if not isinstance(member, inspect.StructType):
            continue
        if isinstance(value, dict) and value.get(member.tag_field, member.tag) != member.tag:
            continue
        for field in member.fields:
            if field.encode_name == name:
                yield from _members(field.type)


def _tags(options: list[inspect.Type], name: str) -> list[str]:
    return [
        str(member.tag)
        for option in options
        for member in _members(option)
        if isinstance(member, inspect.StructType) and member.tag_field == name
    ]


def _items(option: inspect.Type) -> Iterator[inspect.Type]:
    for member in _members(option):
        match member:
            case inspect.ListType(item_type=item):
                yield from _members(item)
            case inspect.DictType(value_type=item):
                yield from _members(item)


def _element(value: Any, index: str) -> Any:
    if isinstance(value, list) and index.isdigit() and int(index) < len(value):
        return value[int(index)]
    return None


def _describe(option: inspect.Type) -> Iterator[str]:
    match option:
        case inspect.IntType():
            yield "an integer" + _range(option)
        case inspect.FloatType():
            yield "a number" + _range(option)
        case inspect.StrType():
            yield "a string" + _length(option)
        case inspect.BoolType():
            yield "true or false"
        case inspect.LiteralType(values=values):
            yield one_of(str(value) for value in values)
        case inspect.ListType():
            yield "an array"
        case inspect.DictType() | inspect.StructType():
            yield "an object"


def _range(option: inspect.IntType | inspect.FloatType) -> str:
    match (option.ge, option.gt, option.le):
        case (None, None, None):
            return ""
        case (low, None, None):
            return f", {low:g} or more"
        case (None, low, None):
            return f" above {low:g}"
        case (low, None, high):
            return f" from {_exact(low)} to {_exact(high)}"
        case (_, low, high):
            return f" above {low:g} and at most {high:g}"


def _exact(bound: float | None) -> str:
    return str(int(bound)) if bound is not None and bound == int(bound) else str(bound)


def _length(option: inspect.StrType) -> str:
    if option.min_length is None or option.max_length is None:
        return ""
    return f" of {option.min_length} to {option.max_length} characters"


def _either(parts: list[str]) -> str:
    if len(parts) < 2:
        return "".join(parts)
    return ", ".join(parts[:-1]) + " or " + parts[-1]
