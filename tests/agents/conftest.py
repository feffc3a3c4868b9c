from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.conftest import serve_command

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def real_server() -> Iterator[str]:
    """`paceline serve` with the default target and no draft model; its address."""
    with serve_command("--drafter", "ngram", "--kv-memory", "512MiB") as address:
        yield address


@pytest.fixture(scope="session")
def crowded_server() -> Iterator[str]:
    """The same with memory for so few tokens that sequences preempt one another."""
    with serve_command("--drafter", "ngram", "--kv-memory", "24MiB") as address:
        yield address
