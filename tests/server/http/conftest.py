from __future__ import annotations

from typing import TYPE_CHECKING

import httpx
import pytest

from tests.server.serving import serving

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.server.serving import Server


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving() as server:
        yield server


@pytest.fixture
async def http(server: Server) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.http_url, timeout=30) as client:
        yield client
