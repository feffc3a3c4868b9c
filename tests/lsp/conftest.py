from __future__ import annotations

import io

import pytest

from paceline.server.logs import configure_logging


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _quiet_logs() -> None:
    configure_logging("error", io.StringIO())
