"""What every result file of a benchmark says about how it came to be."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("paceline", "torch", "transformers", "tokenizers", "numpy", "websockets", "uvicorn")


def provenance(command: str) -> dict[str, Any]:
    """Versions, commit and machine. command: how to run it again."""
    return {
        "command": command,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _git("rev-parse", "--short=12", "HEAD"),
        "is_clean": _git("status", "--porcelain", "--untracked-files=no") == "",
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "machine": {
            "cpu": _cpu_name(),
            "num_cores": os.cpu_count(),
            "system": f"{platform.system()} {platform.machine()}",
        },
    }


def write_result(name: str, command: str, result: dict[str, Any]) -> Path:
    """`results/<name>.json` with its provenance."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"provenance": provenance(command), "result": result}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path


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
