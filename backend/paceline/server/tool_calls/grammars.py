"""The grammar of answers that hold tool calls.

A call that must come, arguments that must fit a schema, and a single call instead of several are
promises, so they are kept by a grammar and not by hope. Where a request asks for none of these the
model writes freely and the parser reads what it wrote.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paceline.core.request import Grammar, GrammarKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.server.tool_calls.dialects import Dialect
    from paceline.server.tool_calls.tools import Function, Tools

_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_TEXT = r"TEXT: /(.|\n)*/"
_PLAIN = r"PLAIN: /[ \t\r\n]*([^ \t\r\n{](.|\n)*)?/"


def tools_grammar(
    tools: Tools,
    dialect: Dialect,
    marker_ids: Mapping[str, int],
    otherwise: str | None = None,
) -> Grammar | None:
    """The grammar for a request with tools; None where nothing has to be kept.

    marker_ids: markers that are special tokens, with their ids. otherwise: the JSON schema of an
    answer that is no call.
    """
    is_strict = any(each.is_strict for each in tools.callable_functions)
    if not (tools.is_required or is_strict or not tools.is_parallel or otherwise):
        return None
    marker = _marker(dialect.begins[0], marker_ids)
    body = _body(tools, dialect, marker_ids, is_strict)
    repeats = tools.is_parallel and not dialect.has_arrays
    rules: list[str] = []
    if tools.is_required or otherwise is not None:
        one = body if _is_unannounced(dialect) else f"{marker} {body}"
        rules.append(f"call: {one}")
        calls = 'call ("\\n" call)*' if repeats and not _is_unannounced(dialect) else "call"
        rules.append(f"calls: {calls}")
        if tools.is_required or otherwise is None:
            rules.insert(0, "start: calls")
        else:
            rules.insert(0, "start: calls | answer")
            rules.append(f"answer: %json {_styled(json.loads(otherwise))}")
    elif _is_unannounced(dialect):
        rules += ["start: PLAIN | call", f"call: {body}", _PLAIN]
    else:
        is_token = marker.startswith("<[")
        head = f"head: TEXT {marker}" if is_token else f"head[lazy]: TEXT {marker}"
        start = "start: (head body)* tail" if repeats else "start: head body | tail"
        rules += [start, head, f"body: {body}", "tail: TEXT", _TEXT]
    return Grammar(GrammarKind.LARK, "\n".join(rules))


def _is_unannounced(dialect: Dialect) -> bool:
    return dialect.is_bare and dialect.end is None


def _body(tools: Tools, dialect: Dialect, marker_ids: Mapping[str, int], is_strict: bool) -> str:
    """What stands behind the marker that announces calls."""
    schema = _one_call(tools.callable_functions, dialect)
    if dialect.has_arrays:
        schema = {
            "type": "array",
            "items": {key: each for key, each in schema.items() if key != "$defs"},
            "minItems": 1,
            "$defs": schema["$defs"],
        }
        if not tools.is_parallel:
            schema["maxItems"] = 1
        return f"%json {_styled(schema, is_lenient=not is_strict)}"
    call = f"%json {_styled(schema, is_lenient=not is_strict)}"
    if dialect.end is None:
        return call
    return f'"\\n" {call} "\\n" {_marker(dialect.end, marker_ids)}'


def _one_call(functions: tuple[Function, ...], dialect: Dialect) -> dict[str, Any]:
    """The schema of one call of any of the functions; definitions of all stand at its root."""
    calls, definitions = [], {}
    for place, function in enumerate(functions):
        parameters = dict(function.parameters)
        prefix = f"f{place}_"
        for key in ("$defs", "definitions"):
            for name, schema in dict(parameters.pop(key, {})).items():
                definitions[prefix + name] = _renamed(schema, prefix)
        calls.append(
            {
                "type": "object",
                "properties": {
                    "name": {"const": function.name},
                    dialect.arguments_key: _renamed(parameters, prefix),
                },
                "required": ["name", dialect.arguments_key],
                "additionalProperties": False,
            }
        )
    return {"anyOf": calls, "$defs": definitions}


def _renamed(schema: Any, prefix: str) -> Any:
    """A schema whose references name the definitions of its own function."""
    if isinstance(schema, list):
        return [_renamed(each, prefix) for each in schema]
    if not isinstance(schema, dict):
        return schema
    renamed = {key: _renamed(each, prefix) for key, each in schema.items()}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        for root in ("#/$defs/", "#/definitions/"):
            if reference.startswith(root):
                renamed["$ref"] = f"#/$defs/{prefix}{reference.removeprefix(root)}"
    return renamed


def _marker(text: str, marker_ids: Mapping[str, int]) -> str:
    token_id = marker_ids.get(text)
    return json.dumps(text) if token_id is None else f"<[{token_id}]>"


def _styled(schema: dict[str, Any] | bool, *, is_lenient: bool = False) -> str:
    if isinstance(schema, bool):
        return json.dumps(schema)
    style = _STYLE | ({"lenient": True} if is_lenient else {})
    return json.dumps({"x-guidance": style} | schema)
