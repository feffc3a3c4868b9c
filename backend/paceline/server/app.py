"""The ASGI application: which path is answered by what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.requests import Request

    from paceline.server.gateway import Gateway


def build_app(gateway: Gateway, pages: Iterable[Route] = ()) -> Starlette:
    """Routes are tried in this order. pages: the browser's, from `web_routes`; they come last."""
    endpoints = _Endpoints(gateway)
    return Starlette(
        routes=[
            WebSocketRoute("/v1/responses", gateway.endpoint),
            Route("/v1/responses", endpoints.upgrade_required, methods=["GET"]),
            Route("/v1/models", endpoints.models, methods=["GET"]),
            Route("/healthz", endpoints.health, methods=["GET"]),
            Route("/readyz", endpoints.ready, methods=["GET"]),
            *pages,
        ]
    )


class _Endpoints:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def upgrade_required(self, request: Request) -> Response:
        """A plain GET where a WebSocket is spoken."""
        return _json(
            {
                "error": {
                    "type": "invalid_request_error",
                    "code": "upgrade_required",
                    "message": "this address speaks WebSocket; send an upgrade request",
                    "param": None,
                }
            },
            status=426,
            headers={"Upgrade": "websocket", "Connection": "Upgrade"},
        )

    async def models(self, request: Request) -> Response:
        """The one model that this server serves."""
        denial = self._gateway.settings.access.check_key(request.headers)
        if denial is not None:
            return denial.response()
        settings = self._gateway.session_settings
        return _json(
            {
                "object": "list",
                "data": [
                    {
                        "id": settings.model,
                        "object": "model",
                        "created": 0,
                        "owned_by": "paceline",
                        "max_model_len": settings.limits.max_sequence_tokens,
                    }
                ],
            }
        )

    async def health(self, request: Request) -> Response:
        """Whether the process is of any use: its event loop turns and its engine runs."""
        if not self._gateway.status.is_running:
            return _json({"status": "the engine has stopped"}, status=503)
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Whether new connections are welcome."""
        if self._gateway.is_draining:
            return _json({"status": "draining"}, status=503)
        if not self._gateway.status.is_running:
            return _json({"status": "the engine has stopped"}, status=503)
        return _json({"status": "ready"})


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        headers=headers,
        media_type="application/json",
    )
