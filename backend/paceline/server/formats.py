"""What a request says about the form of its answer, as one grammar.

How long a grammar takes to compile grows with its size, in places with the square of it, and no
request may keep the server busy for long with that. So sizes are bounded here: up to these bounds
even what is written to be slow takes seconds at most, and what people write takes milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from paceline.core.request import Grammar, GrammarKind
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.faults import kind
from paceline_protocol.requests import ResponseCreate

if TYPE_CHECKING:
    from paceline_protocol.requests import CompletionCreate, GrammarOptions

MAX_REGEX_CHARACTERS: Final = 16_384
"""Of a regular expression, and of all patterns in a schema together."""
MAX_LARK_CHARACTERS: Final = 16_384
MAX_SCHEMA_CHARACTERS: Final = 131_072
"""Of one schema as JSON, and of all choices together."""
MAX_SCHEMA_OBJECTS: Final = 5_000
"""JSON objects that one schema is made of: about as many as it has subschemas."""
MAX_CHOICES: Final = 10_000

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
        _bound(len(options.regex), MAX_REGEX_CHARACTERS, "characters", path)
        return Format(Grammar(GrammarKind.REGEX, options.regex), path)
    if options.lark is not None:
        _bound(len(options.lark), MAX_LARK_CHARACTERS, "characters", path)
        return Format(Grammar(GrammarKind.LARK, options.lark), path)
    if options.choice is not None:
        return Format(_choice(options.choice, path), path)
    return Format(schema_grammar(options.json_schema, path), path)


def _choice(texts: list[str], path: str) -> Grammar:
    if not all(texts) or not texts:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE, f"{path} must hold texts, none empty", param=path
        )
    _bound(len(texts), MAX_CHOICES, "texts", path)
    _bound(sum(map(len, texts)), MAX_SCHEMA_CHARACTERS, "characters", path)
    # One terminal instead of as many rules: it becomes one automaton, however many there are.
    listed = " | ".join(msgspec.json.encode(each).decode() for each in dict.fromkeys(texts))
    return Grammar(GrammarKind.LARK, f"start: CHOICE\nCHOICE: {listed}")


def schema_grammar(schema: Any, path: str) -> Grammar:
    """The grammar of JSON that fits a schema. Raises ProtocolError for one that is too large."""
    text = msgspec.json.encode(schema).decode()
    check_schema_size(len(text), schema, path)
    return Grammar(GrammarKind.JSON_SCHEMA, text)


def check_schema_size(num_characters: int, schema: Any, path: str) -> None:
    """num_characters: of the schema as JSON. Raises ProtocolError."""
    _bound(num_characters, MAX_SCHEMA_CHARACTERS, "characters as JSON", path)
    num_objects, num_pattern = _measures(schema)
    _bound(num_objects, MAX_SCHEMA_OBJECTS, "JSON objects in it", path)
    _bound(num_pattern, MAX_REGEX_CHARACTERS, "characters in its patterns", path)


def _measures(schema: Any) -> tuple[int, int]:
    """How many objects a schema is made of, and the characters of its regular expressions; what
    only looks like one counts as well."""
    num_objects = num_pattern = 0
    left = [schema]
    while left:
        each = left.pop()
        if isinstance(each, list):
            left.extend(each)
        elif isinstance(each, dict):
            left.extend(each.values())
            num_objects += 1
            pattern, named = each.get("pattern"), each.get("patternProperties")
            num_pattern += len(pattern) if isinstance(pattern, str) else 0
            num_pattern += sum(map(len, named)) if isinstance(named, dict) else 0
    return num_objects, num_pattern


def _bound(count: int, most: int, what: str, path: str) -> None:
    if count > most:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            f"{path} has {count} {what}; it must have at most {most}",
            param=path,
        )


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
            return Format(schema_grammar(schema, f"{path}.schema"), f"{path}.schema")
        case _:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE,
                f"{path}.type must be `text`, `json_object` or `json_schema`",
                param=f"{path}.type",
            )
