from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY_LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets")


@pytest.fixture(autouse=True)
def _logging_is_put_back() -> Iterator[None]:
    """A server under test takes over the process's logging; the next test gets it as it was."""
    loggers = [logging.getLogger(), *map(logging.getLogger, LIBRARY_LOGGERS)]
    before = [(each.level, each.propagate, list(each.handlers)) for each in loggers]
    yield
    for logger, (level, propagates, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.propagate = propagates
        logger.handlers[:] = handlers
