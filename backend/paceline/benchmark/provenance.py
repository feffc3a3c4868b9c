"""What every result file of a benchmark says about how it came to be."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("paceline", "torch", "transformers", "tokenizers", "numpy", "websockets", "uvicorn")


def provenance(command: str) -> dict[str, Any]:
    """Versions, commit and machine. command: how to run it again. The commit is known where the
    package is run from its repository."""
    # Installed, the package may lie inside a repository of somebody else's.
    is_checkout = _git("ls-files", Path(__file__).name) not in ("", "unknown")
    return {
        "command": command,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short=12", "HEAD") if is_checkout else None,
        "is_clean": _git("status", "--porcelain", "--untracked-files=no") == "" and is_checkout,
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": {
            "cpu": _cpu_name(),
            "num_cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
        },
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
