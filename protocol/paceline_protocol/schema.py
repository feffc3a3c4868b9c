"""The AsyncAPI document and the golden vectors, generated from the message classes.

python -m paceline_protocol.schema            writes them beside the package
python -m paceline_protocol.schema --check    exits with 1 and names what is out of date
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import inspect

import paceline_protocol
from paceline_protocol.codecs import JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL
from paceline_protocol.messages import CLIENT_EVENTS, SERVER_EVENTS
from paceline_protocol.subprotocols import KEY_SUBPROTOCOL_PREFIX
from paceline_protocol.vectors import CLIENT_VECTORS, SERVER_VECTORS, Vector

ASYNCAPI_VERSION: Final = "3.1.0"

_DESCRIPTION = f"""\
The OpenAI Responses WebSocket vocabulary with Paceline's additions: `response.cancel`,
`completion.create`, `telemetry.subscribe`, and a `paceline` object on requests and responses.

Without a subprotocol, or with `{JSON_SUBPROTOCOL}`, every message is JSON in a text frame. With
`{MSGPACK_SUBPROTOCOL}` the same messages are MessagePack in binary frames. A key travels in the
`Authorization` header or, from browsers, as a second offered subprotocol
`{KEY_SUBPROTOCOL_PREFIX}<base64url of the key>`.

A client event that breaks the schema is answered with an `error` event that names the code and the
path of the field; the connection lives on."""


def asyncapi_document() -> dict[str, Any]:
    """The whole document in plain values."""
    client, components = msgspec.json.schema_components(
        CLIENT_EVENTS, ref_template="#/components/schemas/{name}"
    )
    server, server_components = msgspec.json.schema_components(
        SERVER_EVENTS, ref_template="#/components/schemas/{name}"
    )
    for name in server_components.keys() - components.keys():
        components[name] = server_components[name]
    _require_what_is_always_sent(components, set(server_components) - set(_names(CLIENT_EVENTS)))
    components["MessageItem"]["required"].remove("type")
    schemas = {name: _plain_schema(components[name]) for name in sorted(components)}
    channel = "#/channels/responses"
    return {
        "asyncapi": ASYNCAPI_VERSION,
        "info": {
            "title": "Paceline",
            "version": paceline_protocol.PROTOCOL_VERSION,
            "description": _DESCRIPTION,
            "license": {
                "name": "Apache-2.0",
                "url": "https://www.apache.org/licenses/LICENSE-2.0",
            },
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "127.0.0.1:8765",
                "protocol": "ws",
                "description": "What `paceline serve` opens by default.",
            }
        },
        "channels": {
            "responses": {
                "address": "/v1/responses",
                "description": "One connection; any number of responses, in lanes.",
                "messages": {
                    _tag(cls): {"$ref": f"#/components/messages/{cls.__name__}"}
                    for cls in (*CLIENT_EVENTS, *SERVER_EVENTS)
                },
                "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
            }
        },
        "operations": {
            "receiveClientEvents": {
                "action": "receive",
                "summary": "What a client may send.",
                "channel": {"$ref": channel},
                "messages": [{"$ref": f"{channel}/messages/{_tag(cls)}"} for cls in CLIENT_EVENTS],
            },
            "sendServerEvents": {
                "action": "send",
                "summary": "What the server sends.",
                "channel": {"$ref": channel},
                "messages": [{"$ref": f"{channel}/messages/{_tag(cls)}"} for cls in SERVER_EVENTS],
            },
        },
        "components": {
            "messages": {
                cls.__name__: _message(cls, schema, (*CLIENT_VECTORS, *SERVER_VECTORS))
                for cls, schema in zip(
                    (*CLIENT_EVENTS, *SERVER_EVENTS), (*client, *server), strict=True
                )
            },
            "schemas": schemas,
        },
    }


def generated_files() -> dict[str, str]:
    """Path relative to the folder beside the package, and content, of everything generated."""
    return {
        "asyncapi.json": _text(asyncapi_document()),
        "vectors/client_events.json": _text([vector.written() for vector in CLIENT_VECTORS]),
        "vectors/server_events.json": _text([vector.written() for vector in SERVER_VECTORS]),
    }


def outdated(directory: Path) -> list[str]:
    """Names of generated files that are missing or differ from what the classes say now."""
    return [
        name
        for name, content in generated_files().items()
        if not (directory / name).is_file()
        or (directory / name).read_text(encoding="utf-8") != content
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m paceline_protocol.schema")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when outdated")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path(__file__).resolve().parent.parent,
        help="folder of the generated files (default: the one that holds the package)",
    )
    options = parser.parse_args(arguments)
    stale = outdated(options.directory)
    if options.check:
        for name in stale:
            sys.stderr.write(f"{options.directory / name} is out of date\n")
        if stale:
            sys.stderr.write("run `python -m paceline_protocol.schema` to write it anew\n")
        return 1 if stale else 0
    for name, content in generated_files().items():
        path = options.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return 0


def _message(
    cls: type[msgspec.Struct], schema: dict[str, Any], vectors: tuple[Vector, ...]
) -> dict[str, Any]:
    return {
        "name": _tag(cls),
        "title": cls.__name__,
        "summary": _first_sentence(cls),
        "payload": schema,
        "examples": [
            {"name": vector.name, "payload": msgspec.to_builtins(vector.message, str_keys=True)}
            for vector in vectors
            if type(vector.message) is cls
        ],
    }


def _require_what_is_always_sent(components: dict[str, Any], names: set[str]) -> None:
    """A default lets a client leave a field out. The server writes every field of its own
    classes, except those that are unset, so there a default means nothing to the reader."""
    for info in inspect.multi_type_info(SERVER_EVENTS):
        for struct in _structs(info):
            name = struct.cls.__name__
            if name not in names:
                continue
            always = [struct.tag_field] if struct.tag_field else []
            always += [
                field.encode_name
                for field in msgspec.structs.fields(struct.cls)
                if field.default is not msgspec.UNSET
            ]
            components[name]["required"] = always
            for described in components[name]["properties"].values():
                described.pop("default", None)


def _structs(info: inspect.Type) -> list[inspect.StructType]:
    match info:
        case inspect.StructType():
            return [info, *(found for field in info.fields for found in _structs(field.type))]
        case inspect.UnionType(types=types):
            return [found for member in types for found in _structs(member)]
        case inspect.ListType(item_type=item) | inspect.Metadata(type=item):
            return _structs(item)
        case _:
            return []


def _names(classes: tuple[type[msgspec.Struct], ...]) -> set[str]:
    return {
        struct.cls.__name__
        for info in inspect.multi_type_info(classes)
        for struct in _structs(info)
    }


def _plain_schema(schema: Any) -> Any:
    """AsyncAPI's `discriminator` is a bare property name with another meaning; the constant
    `type` of each alternative says the same."""
    if isinstance(schema, dict):
        return {
            key: _plain_schema(value)
            for key, value in schema.items()
            if not (key == "discriminator" and isinstance(value, dict))
        }
    if isinstance(schema, list):
        return [_plain_schema(value) for value in schema]
    if isinstance(schema, str):
        return " ".join(schema.split()) if "\n" in schema else schema
    return schema


def _first_sentence(cls: type[msgspec.Struct]) -> str:
    text = " ".join((cls.__doc__ or "").split())
    sentence, dot, _ = text.partition(". ")
    return (sentence + dot).strip()


def _tag(cls: type[msgspec.Struct]) -> str:
    return str(cls.__struct_config__.tag)


def _text(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.exit(main())
