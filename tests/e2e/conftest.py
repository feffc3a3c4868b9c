from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PYTHON_PATH = ":".join(str(ROOT / each) for each in ("backend", "protocol", "clients/python"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def real_server() -> Iterator[str]:
    """`paceline serve` with the default target in float32; its address."""
    with serve_command("--dtype", "float32", "--kv-memory", "512MiB") as address:
        yield address


@contextlib.contextmanager
def serve_command(*arguments: str) -> Iterator[str]:
    """`paceline serve` on a free port, in a process of its own, ended by SIGTERM."""
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "serve"]
    with subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", "0", "--log-level", "warning", *arguments],
        env=os.environ | {"PYTHONPATH": PYTHON_PATH},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield _address(process)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if found := re.search(r"http://\S+", line):
            return found.group()
    raise AssertionError("the server ended before it served:\n" + "".join(lines))
