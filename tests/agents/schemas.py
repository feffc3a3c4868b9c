"""Ten schemas of the kinds that programs ask for, all bounded, so that every answer can end."""

from __future__ import annotations

from typing import Any


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(limit: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": limit}


_COLOUR = {"enum": ["red", "green", "blue"]}

SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": _object(name=_text(12), city=_text(12)),
    "nested": _object(
        user=_object(
            name=_text(10),
            home=_object(street=_text(12), number={"type": "integer", "minimum": 1, "maximum": 99}),
        )
    ),
    "enums": _object(colour=_COLOUR, mood={"enum": ["good", "bad"]}, none={"type": "null"}),
    "bounds": _object(
        age={"type": "integer", "minimum": 0, "maximum": 130},
        share={"type": "number", "minimum": 0, "maximum": 1},
        is_new={"type": "boolean"},
    ),
    "array": _object(tags={"type": "array", "items": _COLOUR, "minItems": 1, "maxItems": 4}),
    "array of objects": _object(
        points={
            "type": "array",
            "items": _object(
                x={"type": "integer", "minimum": -9, "maximum": 9},
                y={"type": "integer", "minimum": -9, "maximum": 9},
            ),
            "maxItems": 3,
        }
    ),
    "union": _object(
        value={
            "anyOf": [
                {"type": "integer", "minimum": 0, "maximum": 999},
                _text(8),
                {"type": "null"},
                _object(kind={"const": "none"}),
            ]
        }
    ),
    "unicode": _object(
        **{"größe": {"enum": ["klein", "groß", "très grand", "大きい", "🚴"]}, "名前": _text(6)}
    ),
    "definitions": {
        "$defs": {"Point": _object(x={"enum": [0, 1]}, y={"enum": [0, 1]})},
        **_object(start={"$ref": "#/$defs/Point"}, end={"$ref": "#/$defs/Point"}),
    },
    "pattern": _object(
        day={"type": "string", "pattern": "^[0-9]{4}-[01][0-9]-[0-3][0-9]$"},
        code={"type": "string", "pattern": "^[A-Z]{2,4}$"},
    ),
}
