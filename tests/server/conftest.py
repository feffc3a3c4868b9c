from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest
from blockbuster import blockbuster_ctx

from paceline.server.logs import configure_logging

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def no_blocking() -> Iterator[None]:
    """A blocking call of ours on the event loop fails the test."""
    with blockbuster_ctx("paceline"):
        yield


@pytest.fixture
def log_stream() -> Iterator[io.StringIO]:
    """What the server logs, a JSON object a line."""
    stream = io.StringIO()
    configure_logging("info", stream)
    yield stream
    configure_logging("error", io.StringIO())


@pytest.fixture(autouse=True)
def _quiet_logs() -> None:
    configure_logging("error", io.StringIO())
