"""The pages as files: addresses, caching, compression and what they may load."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import httpx
import pytest
from starlette.applications import Starlette

from paceline.server.web_pages import web_routes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio

SCRIPT = b"console.log('hello')\n" * 200


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>Paceline</title>")
    (tmp_path / "assets" / "main-1a2b.js").write_bytes(SCRIPT)
    (tmp_path / "assets" / "dot.png").write_bytes(b"\x89PNG")
    return tmp_path


def client(folder: Path) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=Starlette(routes=web_routes(folder)))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


@pytest.mark.parametrize("path", ["/", "/telemetry"])
async def test_every_page_is_the_app(folder: Path, path: str) -> None:
    async with client(folder) as http:
        response = await http.get(path)
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "Paceline" in response.text
    assert response.headers["cache-control"] == "no-cache"


async def test_nothing_from_elsewhere_may_run_or_frame_it(folder: Path) -> None:
    async with client(folder) as http:
        response = await http.get("/")
    policy = dict(
        part.strip().split(" ", 1)
        for part in response.headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert response.headers["x-content-type-options"] == "nosniff"


async def test_files_named_by_their_content_are_kept_for_good(folder: Path) -> None:
    async with client(folder) as http:
        response = await http.get("/assets/main-1a2b.js")
    assert response.content == SCRIPT
    assert "immutable" in response.headers["cache-control"]
    assert response.headers["content-type"].startswith("text/javascript")


async def test_text_is_compressed_for_those_who_accept_it(folder: Path) -> None:
    async with client(folder) as http:
        compressed = await http.get("/assets/main-1a2b.js", headers={"Accept-Encoding": "gzip"})
        plain = await http.get("/assets/main-1a2b.js", headers={"Accept-Encoding": "identity"})
    assert compressed.headers["content-encoding"] == "gzip"
    assert int(compressed.headers["content-length"]) == len(gzip.compress(SCRIPT))
    assert "content-encoding" not in plain.headers
    assert compressed.content == plain.content == SCRIPT


async def test_pictures_are_sent_as_they_are(folder: Path) -> None:
    async with client(folder) as http:
        response = await http.get("/assets/dot.png", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in response.headers
    assert response.content == b"\x89PNG"


async def test_what_the_browser_has_is_not_sent_again(folder: Path) -> None:
    async with client(folder) as http:
        first = await http.get("/")
        again = await http.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""


@pytest.mark.parametrize("path", ["/assets/../../app.py", "/assets/%2e%2e/%2e%2e/app.py", "/x"])
async def test_nothing_else_is_served(folder: Path, path: str) -> None:
    async with client(folder) as http:
        response = await http.get(path)
    assert response.status_code == 404


async def test_without_a_build_the_root_says_what_to_do(tmp_path: Path) -> None:
    async with client(tmp_path / "absent") as http:
        response = await http.get("/")
    assert response.status_code == 200
    assert "npm run build" in response.text
