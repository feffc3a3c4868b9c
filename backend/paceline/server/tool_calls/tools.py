"""The functions that a request lets the model call, checked."""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.faults import kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline_protocol.requests import ResponseCreate

_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
MAX_TOOLS = 128


@dataclass(frozen=True, slots=True)
class Function:
    """parameters: the JSON schema of its arguments. is_strict: they must fit it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    is_strict: bool

    def described(self) -> dict[str, Any]:
        """In the form that chat templates take."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class Tools:
    """functions: what the model is told about. callable_names: what it may call now.
    is_required: it must. is_parallel: it may call several at once."""

    functions: tuple[Function, ...]
    callable_names: frozenset[str]
    is_required: bool
    is_parallel: bool

    @property
    def callable_functions(self) -> tuple[Function, ...]:
        return tuple(each for each in self.functions if each.name in self.callable_names)


def tools_of(message: ResponseCreate) -> Tools | None:
    """What a request says about tools; None if it has none, or wants none to be called. Raises
    ProtocolError with the path of what is wrong."""
    functions = _functions(message.tools)
    choice = message.tool_choice
    if choice is not None and not isinstance(choice, str | dict):
        raise _wrong_choice(f"tool_choice is {kind(choice)}", functions)
    names = frozenset(each.name for each in functions)
    is_required = False
    match choice:
        case None | "auto" | "none":
            pass
        case "required":
            is_required = True
        case {"type": "function", "name": str(name)}:
            if name not in names:
                raise _wrong_choice(f"tool_choice names {name!r}", functions, "tool_choice.name")
            names, is_required = frozenset({name}), True
        case _:
            raise _wrong_choice(f"tool_choice is {reprlib.repr(choice)}", functions)
    if is_required and not functions:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            "tool_choice asks for a call, and there are no tools to be called",
            param="tool_choice",
        )
    if not functions or choice == "none":
        return None
    return Tools(functions, names, is_required, message.parallel_tool_calls is not False)


def _functions(tools: Any) -> tuple[Function, ...]:
    if tools is None:
        return ()
    if not isinstance(tools, list):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, f"tools must be an array, not {kind(tools)}", param="tools"
        )
    if len(tools) > MAX_TOOLS:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            f"tools has {len(tools)} elements; it must have at most {MAX_TOOLS}",
            param="tools",
        )
    functions = tuple(_function(tool, f"tools[{place}]") for place, tool in enumerate(tools))
    names = [each.name for each in functions]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE,
                f"tools[{place}].name is {name!r}, as that of an earlier tool is",
                param=f"tools[{place}].name",
            )
    return functions


def _function(tool: Any, path: str) -> Function:
    if not isinstance(tool, dict):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, f"{path} must be an object, not {kind(tool)}", param=path
        )
    if tool.get("type") != "function":
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_VALUE,
            f'{path}.type must be "function": no other tools are served',
            param=f"{path}.type",
        )
    name = tool.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        code = ErrorCode.MISSING_REQUIRED_PARAMETER if name is None else ErrorCode.INVALID_VALUE
        raise ProtocolError(
            code,
            f"{path}.name must be 1 to 64 letters, digits or any of _ . : -",
            param=f"{path}.name",
        )
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE,
            f"{path}.parameters must be a JSON schema, not {kind(parameters)}",
            param=f"{path}.parameters",
        )
    description = tool.get("description")
    if description is not None and not isinstance(description, str):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE,
            f"{path}.description must be a string, not {kind(description)}",
            param=f"{path}.description",
        )
    return Function(
        name, description or "", parameters or _NO_PARAMETERS, tool.get("strict") is True
    )


def _wrong_choice(
    what: str, functions: tuple[Function, ...], param: str = "tool_choice"
) -> ProtocolError:
    names = ", ".join(each.name for each in functions) or "none is there"
    return ProtocolError(
        ErrorCode.INVALID_VALUE,
        f'{what}; it must be "auto", "none", "required" or {{"type": "function", "name": ...}} '
        f"with the name of a tool ({names})",
        param=param,
    )
