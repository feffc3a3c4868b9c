"""The ASGI application: which path is answered by what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute

from paceline.server.http.errors import http_exception
from paceline.server.http.routes import http_routes
from paceline.server.metrics import CONTENT_TYPE

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
            *http_routes(gateway),
            Route("/healthz", endpoints.health, methods=["GET"]),
            Route("/health", endpoints.health, methods=["GET"]),
            Route("/readyz", endpoints.ready, methods=["GET"]),
            Route("/metrics", endpoints.metrics, methods=["GET"]),
            *pages,
        ],
        middleware=_cross_origin(gateway),
        exception_handlers={HTTPException: http_exception},
    )


def _cross_origin(gateway: Gateway) -> list[Middleware]:
    """Pages of the operator's other origins may use the HTTP endpoints too. Pure ASGI; sockets pass
    it untouched."""
    origins = sorted(gateway.settings.access.allowed_origins)
    if not origins:
        return []
    cors = Middleware(
        CORSMiddleware, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"]
    )
    return [cors]


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

    async def health(self, request: Request) -> Response:
        """Whether the process is of any use: its event loop turns and its engine runs."""
        if not self._gateway.status.is_running:
            return _json({"status": "the engine has stopped"}, status=503)
        return _json({"status": "ok"})

    async def metrics(self, request: Request) -> Response:
        """For Prometheus; no key, as it asks for none. It tells counts and times, no texts."""
        return Response(self._gateway.metrics.render(), media_type=CONTENT_TYPE)

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
