"""The OpenAPI document of the HTTP endpoints, made from the structures that check their bodies."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import msgspec

import paceline
from paceline.server.http.chat import FimRequest
from paceline.server.http.chat_request import ChatRequest
from paceline.server.http.completions import CompletionRequest
from paceline.server.http.infill import InfillRequest
from paceline_protocol.requests import ResponseCreate

_DESCRIPTION: Final = """\
One model behind the forms of chat completions, completions, responses, and fill-in-the-middle as
Mistral's and llama.cpp's clients ask for it. Bodies with `"stream": true` are answered with
server-sent events. Fields that are not listed are ignored unless they would change the answer;
those are refused by name. The AsyncAPI document describes the WebSocket at `/v1/responses`."""

_POSTS: Final[tuple[tuple[str, str, type[msgspec.Struct], str], ...]] = (
    ("/v1/responses", "createResponse", ResponseCreate, "A response, whole or as events."),
    ("/v1/chat/completions", "createChatCompletion", ChatRequest, "A chat's next message."),
    ("/v1/completions", "createCompletion", CompletionRequest, "A text's continuation."),
    ("/v1/fim/completions", "createFimCompletion", FimRequest, "The text between two others."),
    ("/infill", "infill", InfillRequest, "The same in llama.cpp's form."),
)
_ERRORS: Final = {
    "400": "The body is wrong; `error.param` is the path of what is.",
    "401": "The API key is missing or wrong.",
    "403": "The origin is not allowed.",
    "404": "The model or the previous response is not known.",
    "413": "The body is too large.",
    "429": "Too much is going on; try again later.",
    "500": "The server could not go on.",
    "503": "The server is shutting down.",
}


@cache
def openapi_document() -> dict[str, Any]:
    """The whole document in plain values."""
    classes = [cls for _, _, cls, _ in _POSTS]
    schemas, components = msgspec.json.schema_components(
        classes, ref_template="#/components/schemas/{name}"
    )
    components["Error"] = _error_schema()
    message = components["MessageItem"]  # its `type` may be left out
    message["required"] = [name for name in message["required"] if name != "type"]
    created = components["ResponseCreate"]
    created["properties"] = {
        name: each for name, each in created["properties"].items() if name != "type"
    } | {"stream": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None}}
    created["required"] = [name for name in created.get("required", ()) if name != "type"]
    paths: dict[str, Any] = {
        path: {"post": _post(name, schema, summary)}
        for (path, name, _, summary), schema in zip(_POSTS, schemas, strict=True)
    }
    paths["/v1/models"] = {"get": _get("listModels", "The one model that is served.")}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Paceline",
            "version": paceline.__version__,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8765"}],
        "security": [{}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(components.items())),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(name: str, schema: dict[str, Any], summary: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    "text/event-stream": {"schema": {"type": "string"}},
                },
            },
            **{status: _refusal(why) for status, why in _ERRORS.items()},
        },
    }


def _get(name: str, summary: str) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {
                "description": "The answer.",
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "401": _refusal(_ERRORS["401"]),
        },
    }


def _refusal(why: str) -> dict[str, Any]:
    reference = {"$ref": "#/components/schemas/Error"}
    return {"description": why, "content": {"application/json": {"schema": reference}}}


def _error_schema() -> dict[str, Any]:
    text_or_null = {"type": ["string", "null"]}
    return {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "code", "param"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "code": text_or_null,
                    "param": text_or_null,
                },
            }
        },
    }
