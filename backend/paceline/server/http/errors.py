"""Error bodies as OpenAI clients read them: `{"error": {message, type, code, param}}`."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

import msgspec
from starlette.responses import HTMLResponse
from starlette.responses import Response as HttpResponse

from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.events import ErrorDetails

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    from paceline_protocol.responses import ResponseError

RETRY_AFTER_S = "1"
_PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}
_NO_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Not found · Paceline</title>
<h1>There is no page here</h1>
<p><code>{path}</code> is no address of this server.
Go to the <a href="/">chat</a> or to the <a href="/telemetry">telemetry</a>;
<a href="/openapi.json">/openapi.json</a> lists what programs may ask.</p>
</html>
"""


class Refusal(Exception):
    """The request ends with this error instead of an answer."""

    def __init__(self, status: int, details: ErrorDetails) -> None:
        super().__init__(details.message)
        self.status = status
        self.details = details

    @classmethod
    def of(cls, error: ProtocolError) -> Refusal:
        return cls(
            error.status,
            ErrorDetails(
                type=error.type, code=error.code.value, message=error.message, param=error.param
            ),
        )

    @classmethod
    def of_failure(cls, error: ResponseError | None) -> Refusal:
        """A response that the engine could not finish."""
        code = ErrorCode(error.type) if error and error.type else ErrorCode.SERVER_ERROR
        message = error.message if error else "the engine could not go on with this response"
        return cls.of(ProtocolError(code, message))

    @classmethod
    def shutting_down(cls) -> Refusal:
        return cls.of(ProtocolError(ErrorCode.SERVER_SHUTTING_DOWN, "the server is shutting down"))

    @property
    def headers(self) -> dict[str, str]:
        """What the status asks for beside the body."""
        return {"Retry-After": RETRY_AFTER_S} if self.status in (429, 503) else {}


def error_body(details: ErrorDetails) -> bytes:
    return msgspec.json.encode({"error": details})


def error_response(
    status: int, details: ErrorDetails, headers: Mapping[str, str] | None = None
) -> HttpResponse:
    return HttpResponse(
        error_body(details),
        status_code=status,
        headers=dict(headers or {}),
        media_type="application/json",
    )


async def http_exception(request: Request, error: Exception) -> HttpResponse:
    """Starlette's own refusals (unknown address, wrong method) in the same form; a page that is not
    there as a page, where a person asked for one."""
    exception: HTTPException = error  # type: ignore[assignment]
    if exception.status_code == 404 and _is_for_a_person(request):
        page = _NO_PAGE.format(path=html.escape(request.url.path))
        return HTMLResponse(page, status_code=404, headers=_PAGE_HEADERS)
    codes = {404: "unknown_url", 405: "method_not_allowed"}
    details = ErrorDetails(
        type="invalid_request_error",
        code=codes.get(exception.status_code, "http_error"),
        message=f"{request.method} {request.url.path}: {exception.detail}",
    )
    return error_response(exception.status_code, details, exception.headers)


def _is_for_a_person(request: Request) -> bool:
    """Browsers ask for HTML when an address is typed; clients of the API do not."""
    wants_html = "text/html" in request.headers.get("accept", "")
    return request.method == "GET" and wants_html and not request.url.path.startswith("/v1/")
