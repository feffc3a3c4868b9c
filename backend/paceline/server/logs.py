"""Structured logs: one JSON object a line on standard error, our own and the libraries' alike.

Fields are bound where they are known: `session_id` by the gateway, `response_id` per response,
`step` by the bridge. Text of prompts and answers is never a field unless the operator asks for it.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from typing import TextIO

    from structlog.typing import Processor


def configure_logging(level: str = "info", stream: TextIO | None = None) -> None:
    """Route structlog and the standard library's loggers into one JSON stream.

    `level` is debug, info, warning or error. uvicorn's own lines about accepted requests hold the
    path with its query, so below a warning it stays silent.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "websockets"):
        library_logger = logging.getLogger(name)
        library_logger.handlers.clear()
        library_logger.propagate = True
        library_logger.setLevel(logging.WARNING)
