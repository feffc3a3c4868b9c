"""What a server counts, read from its `/metrics`: steps, where their time went, drafts by depth."""

from __future__ import annotations

import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from prometheus_client.parser import text_string_to_metric_families

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

STAGES = ("draft", "verify", "sample", "other")
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Counters:
    """Counts since the server began, or between two readings.

    num_steps: of the engine. stage_seconds: by stage, see STAGES. passed, examined: drafted
    tokens by depth, by the token rule. ledger_level_s, ledger_capacity_s, break_even_rows: as of
    the later reading; None where the server doesn't say.
    """

    num_steps: float
    stage_seconds: tuple[float, ...]
    passed: tuple[float, ...]
    examined: tuple[float, ...]
    ledger_level_s: float | None
    ledger_capacity_s: float | None
    break_even_rows: float | None

    def since(self, earlier: Counters) -> Counters:
        """What was counted between an earlier reading and this one."""
        return Counters(
            self.num_steps - earlier.num_steps,
            _less(self.stage_seconds, earlier.stage_seconds),
            _less(self.passed, earlier.passed),
            _less(self.examined, earlier.examined),
            self.ledger_level_s,
            self.ledger_capacity_s,
            self.break_even_rows,
        )

    def plus(self, other: Counters) -> Counters:
        """Both together; the ledger at its higher level."""
        levels = [
            level for level in (self.ledger_level_s, other.ledger_level_s) if level is not None
        ]
        return Counters(
            self.num_steps + other.num_steps,
            _more(self.stage_seconds, other.stage_seconds),
            _more(self.passed, other.passed),
            _more(self.examined, other.examined),
            max(levels, default=None),
            other.ledger_capacity_s,
            other.break_even_rows,
        )


def read_counters(socket_url: str) -> Counters:
    """Blocks for a few milliseconds. socket_url: of the server's WebSocket.

    Raises ConfigError if what answers there isn't a Paceline server.
    """
    url = metrics_url(socket_url)
    try:
        # A server on this machine must not be sought behind a proxy.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=_TIMEOUT_S) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError) as error:
        raise ConfigError(f"{url} does not answer: {error}", field="url") from error
    return parse_counters(text)


def metrics_url(socket_url: str) -> str:
    """The address of `/metrics` beside a socket's."""
    parts = urlsplit(socket_url)
    scheme = "https" if parts.scheme == "wss" else "http"
    return urlunsplit((scheme, parts.netloc, "/metrics", "", ""))


def parse_counters(text: str) -> Counters:
    """From Prometheus' text format. Raises ConfigError if the engine's series are not there."""
    single: dict[str, float] = {}
    stages: dict[str, float] = {}
    by_depth: dict[str, dict[int, float]] = {"passed": {}, "examined": {}}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            match sample.name:
                case "paceline_stage_seconds_total":
                    stages[sample.labels["stage"]] = sample.value
                case "paceline_passed_tokens_per_pos_total":
                    by_depth["passed"][int(sample.labels["position"])] = sample.value
                case "paceline_examined_tokens_per_pos_total":
                    by_depth["examined"][int(sample.labels["position"])] = sample.value
                case name:
                    single[name] = sample.value
    if "paceline_steps_total" not in single:
        raise ConfigError("the server's metrics are not those of Paceline", field="url")
    return Counters(
        single["paceline_steps_total"],
        tuple(stages.get(stage, 0.0) for stage in STAGES),
        _dense(by_depth["passed"]),
        _dense(by_depth["examined"]),
        single.get("paceline_ledger_level_seconds"),
        single.get("paceline_ledger_capacity_seconds"),
        single.get("paceline_break_even_rows"),
    )


def _dense(counts: dict[int, float]) -> tuple[float, ...]:
    return tuple(counts.get(depth, 0.0) for depth in range(max(counts, default=-1) + 1))


def _less(later: Sequence[float], earlier: Sequence[float]) -> tuple[float, ...]:
    return tuple(a - b for a, b in zip(later, earlier, strict=True))


def _more(first: Sequence[float], second: Sequence[float]) -> tuple[float, ...]:
    return tuple(a + b for a, b in zip(first, second, strict=True))
