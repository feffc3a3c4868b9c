"""A server of one's own for the time of a benchmark."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from typing import IO, TYPE_CHECKING

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_STOP_TIMEOUT_S = 60.0
_LAST_CHARACTERS = 2000


@contextlib.contextmanager
def own_server(arguments: Sequence[str]) -> Iterator[str]:
    """`paceline serve` on a free port of this machine; its address, once it is ready.

    arguments: more of `paceline serve`. Raises ConfigError with the end of what it wrote if it does
    not begin to serve.
    """
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "serve"]
    command += ["--host", "127.0.0.1", "--port", "0", "--log-level", "warning", *arguments]
    # The same packages as here, installed or not.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            yield _address(process, errors)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _address(process: subprocess.Popen[str], errors: IO[str]) -> str:
    assert process.stdout is not None
    written = []
    for line in process.stdout:
        written.append(line)
        if found := re.search(r"http://\S+", line):
            return found.group()
    process.wait()
    errors.seek(0)
    said = (errors.read() or "".join(written)).strip()[-_LAST_CHARACTERS:]
    raise ConfigError(f"paceline serve ended before it served:\n{said}", field="target")
