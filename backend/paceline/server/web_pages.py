"""The browser's chat and telemetry page: a few files, built with the package, served from memory.

They hold no secret, so no key is asked for; the socket that they open asks for one. What they may
load is restricted to this server: no text of a model can bring anything else in.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

WEB_FOLDER: Final = Path(__file__).parent / "web"
"""Where the build puts them (see `clients/web/hatch_build.py`)."""

_PAGES: Final = ("/", "/telemetry")
_SECURITY_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_COMPRESSIBLE: Final = ("text/", "application/", "image/svg")
_HINT: Final = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Paceline</title>
<h1>Paceline is running</h1>
<p>Its chat page is not part of this installation, because the package was built without it.
Build it with <code>npm ci &amp;&amp; npm run build</code> in <code>clients/web</code>
and start the server again.</p>
<p>Everything else works: connect to <code>/v1/responses</code>, or run
<code>paceline chat</code>.</p>
</html>
"""


@dataclass(frozen=True, slots=True)
class WebFile:
    """One file as it is sent. compressed: by gzip, None where that would not make it smaller."""

    content: bytes
    compressed: bytes | None
    media_type: str
    etag: str
    cache_control: str

    @classmethod
    def read(cls, path: Path, *, is_named_by_content: bool) -> WebFile:
        """is_named_by_content: another content would have another name, so it never gets stale."""
        content = path.read_bytes()
        media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        compressed = (
            gzip.compress(content, mtime=0) if media_type.startswith(_COMPRESSIBLE) else None
        )
        return cls(
            content,
            compressed if compressed is not None and len(compressed) < len(content) else None,
            media_type,
            f'"{hashlib.sha256(content).hexdigest()[:32]}"',
            "public, max-age=31536000, immutable" if is_named_by_content else "no-cache",
        )

    def response(self, headers: Mapping[str, str]) -> Response:
        """The answer to a request with these headers."""
        own = {
            **_SECURITY_HEADERS,
            "ETag": self.etag,
            "Cache-Control": self.cache_control,
            "Vary": "Accept-Encoding",
        }
        if headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=own)
        if self.compressed is not None and "gzip" in headers.get("accept-encoding", ""):
            own["Content-Encoding"] = "gzip"
            return Response(self.compressed, headers=own, media_type=self.media_type)
        return Response(self.content, headers=own, media_type=self.media_type)


def web_routes(folder: Path = WEB_FOLDER) -> list[Route]:
    """Routes of everything in the folder, read now; of a hint when nothing was built."""
    if not (folder / "index.html").is_file():
        return [Route("/", _hint, methods=["GET"])]
    routes = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file():
            continue
        name = path.relative_to(folder).as_posix()
        file = WebFile.read(path, is_named_by_content=name.startswith("assets/"))
        addresses = _PAGES if name == "index.html" else (f"/{name}",)
        routes += [Route(address, _answer(file), methods=["GET"]) for address in addresses]
    return routes


def _answer(file: WebFile) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return file.response(request.headers)

    return endpoint


async def _hint(request: Request) -> Response:
    return HTMLResponse(_HINT, headers={**_SECURITY_HEADERS, "Cache-Control": "no-cache"})
