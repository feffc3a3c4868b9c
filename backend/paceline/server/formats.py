"""What a request says about the form of its answer, as one grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from paceline.core.request import Grammar, GrammarKind
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.faults import kind
from paceline_protocol.requests import ResponseCreate

if TYPE_CHECKING:
    from paceline_protocol.requests import CompletionCreate, GrammarOptions

_ANY_OBJECT = '{"type":"object"}'


class Format(msgspec.Struct, frozen=True):
    """A grammar, and the path in the message that asked for it."""

    grammar: Grammar
    param: str


def format_of(message: ResponseCreate | CompletionCreate) -> Format | None:
    """The grammar that the answer must follow, if any. Raises ProtocolError."""
    text = None
    if isinstance(message, ResponseCreate) and message.text is not None:
        text = _text_format(message.text)
    options = message.paceline.grammar if message.paceline is not None else None
    if options is None:
        return text
    if text is not None:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            "paceline.grammar and text.format both say what the answer looks like; send one",
            param="paceline.grammar",
        )
    return _native(options)


def _native(options: GrammarOptions) -> Format:
    path = "paceline.grammar"
    given = [name for name in options.__struct_fields__ if getattr(options, name) is not None]
    if len(given) != 1:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            f"{path} has {len(given)} fields; it must have exactly one of regex, choice, lark and "
            "json_schema",
            param=path,
        )
    path = f"{path}.{given[0]}"
    if options.regex is not None:
        return Format(Grammar(GrammarKind.REGEX, options.regex), path)
    if options.lark is not None:
        return Format(Grammar(GrammarKind.LARK, options.lark), path)
    if options.choice is not None:
        if not all(options.choice) or not options.choice:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE, f"{path} must hold texts, none empty", param=path
            )
        texts = " | ".join(msgspec.json.encode(each).decode() for each in options.choice)
        return Format(Grammar(GrammarKind.LARK, f"start: {texts}"), path)
    return Format(Grammar(GrammarKind.JSON_SCHEMA, _dumped(options.json_schema)), path)


def _text_format(text: object) -> Format | None:
    if not isinstance(text, dict):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, f"text must be an object, not {kind(text)}", param="text"
        )
    form = text.get("format")
    if form is None:
        return None
    path = "text.format"
    if not isinstance(form, dict):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, f"{path} must be an object, not {kind(form)}", param=path
        )
    match form.get("type"):
        case "text":
            return None
        case "json_object":
            return Format(Grammar(GrammarKind.JSON_SCHEMA, _ANY_OBJECT), path)
        case "json_schema":
            schema = form.get("schema")
            if not isinstance(schema, dict | bool):
                code = (
                    ErrorCode.MISSING_REQUIRED_PARAMETER
                    if schema is None
                    else ErrorCode.INVALID_TYPE
                )
                raise ProtocolError(
                    code, f"{path}.schema must be a JSON schema", param=f"{path}.schema"
                )
            return Format(Grammar(GrammarKind.JSON_SCHEMA, _dumped(schema)), f"{path}.schema")
        case _:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE,
                f"{path}.type must be `text`, `json_object` or `json_schema`",
                param=f"{path}.type",
            )


def _dumped(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()
