"""The Grafana dashboard asks for series that `/metrics` has."""

from __future__ import annotations

import json
import re
from pathlib import Path

from paceline.core.events import EngineStatus
from paceline.core.statistics import SpeculationStatus
from paceline.server.metrics import Metrics

DASHBOARD = Path(__file__).parents[2] / "ops" / "grafana" / "paceline.json"


def test_every_series_of_the_dashboard_is_exported() -> None:
    status = EngineStatus(speculation=SpeculationStatus(0.0, 1.0, 1.0, 8))
    metrics = Metrics("m", 8192, lambda: status, lambda: 0)
    exported = set(re.findall(r"^([a-z_]+:?[a-z0-9_]+)", metrics.render().decode(), re.MULTILINE))
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked: set[str] = set()
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            asked |= set(re.findall(r"\b(?:vllm:|paceline_)[a-z0-9_]+", target["expr"]))
    assert len(asked) > 20
    assert asked <= exported, asked - exported
