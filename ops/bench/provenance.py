"""Result files of the benchmarks: one JSON document each, which says how it came to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.benchmark.provenance import provenance

RESULTS = Path(__file__).parent / "results"


def write_result(name: str, command: str, result: dict[str, Any]) -> Path:
    """`results/<name>.json` with its provenance."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"provenance": provenance(command), "result": result}
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return path
