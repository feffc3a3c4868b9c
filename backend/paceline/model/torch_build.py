"""What the installed torch can compute on, told without importing it, which takes seconds."""

from __future__ import annotations

import ctypes
import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any


def why_no_cuda() -> str | None:
    """Why there can be no CUDA device here; None where torch itself has to be asked."""
    build = _build()
    if build is None or build.get("hip") is not None:
        return None
    if "cuda" in build and build["cuda"] is None:
        return f"the torch that is installed ({build.get('__version__')}) is one for CPUs"
    if sys.platform == "linux" and not _has_driver():
        return "this machine has no NVIDIA driver (libcuda.so.1)"
    return None


def _build() -> dict[str, Any] | None:
    """The names in torch's own `version.py`; None where they cannot be read."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        return runpy.run_path(str(Path(found.origin).with_name("version.py")))
    except Exception:  # another layout than we know: torch itself will tell
        return None


def _has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
