"""The addresses that generate, and those that say what is served."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from paceline.server.http.chat import parse_chat, parse_fim
from paceline.server.http.completions import parse_completion
from paceline.server.http.endpoint import Endpoint
from paceline.server.http.errors import Refusal, error_response
from paceline.server.http.infill import parse_infill
from paceline.server.http.openapi import openapi_document
from paceline.server.http.responses import parse_response
from paceline_protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from starlette.requests import Request

    from paceline.server.gateway import Gateway


def http_routes(gateway: Gateway) -> Sequence[Route]:
    """All of them; the WebSocket's own address is not among them."""
    models = _Models(gateway)
    generating = {
        "/v1/responses": parse_response,
        "/v1/chat/completions": parse_chat,
        "/v1/completions": parse_completion,
        "/v1/fim/completions": parse_fim,
        "/infill": parse_infill,
    }
    return [
        *(
            Route(path, Endpoint(gateway, parse), methods=["POST"])
            for path, parse in generating.items()
        ),
        Route("/v1/models", models.all, methods=["GET"]),
        Route("/openapi.json", _openapi, methods=["GET"]),
        Route("/v1/models/{name:path}", models.one, methods=["GET"]),
    ]


async def _openapi(request: Request) -> Response:
    return _json(openapi_document())


class _Models:
    """The one model that this server serves."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def all(self, request: Request) -> Response:
        denial = self._denial(request)
        return denial or _json({"object": "list", "data": [self._model()]})

    async def one(self, request: Request) -> Response:
        denial = self._denial(request)
        if denial is not None:
            return denial
        model = self._model()
        name = request.path_params["name"]
        if name == model["id"]:
            return _json(model)
        refusal = Refusal.of(
            ProtocolError(
                ErrorCode.MODEL_NOT_FOUND,
                f"model is {name[:200]!r}; this server serves {model['id']!r}",
                param="model",
            )
        )
        return error_response(refusal.status, refusal.details)

    def _denial(self, request: Request) -> Response | None:
        key = request.headers.get("x-api-key") or request.headers.get("api-key")
        denial = self._gateway.settings.access.check_key(request.headers, key)
        return None if denial is None else denial.response()

    def _model(self) -> dict[str, Any]:
        settings = self._gateway.session_settings
        return {
            "id": settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "paceline",
            "max_model_len": settings.limits.max_sequence_tokens,
        }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
