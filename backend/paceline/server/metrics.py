"""`/metrics` in Prometheus format.

What vLLM exports too has its names, labels and buckets here, so that dashboards made for it work;
what only we have is named `paceline_*`. Counts come from the engine's status when they are asked
for, latencies from the events as they pass.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from paceline.core.events import FinishEvent, FinishReason, TokenEvent
from paceline.core.statistics import STEP_TOKEN_BUCKETS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from paceline.core.events import EngineEvent, EngineStatus
    from paceline.core.request import Request

CONTENT_TYPE = CONTENT_TYPE_LATEST
FIRST_TOKEN_BUCKETS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
REQUEST_BUCKETS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_LABELS = ("model_name", "engine")
_ENGINE = "0"
# vLLM's words for how a request ended.
_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CANCELLED: "abort",
    FinishReason.ERROR: "error",
}


def count_buckets(most: int) -> list[float]:
    """1, 2, 5, 10, 20, 50 and so on, up to `most`."""
    buckets: list[float] = []
    scale = 1
    while True:
        for mantissa in (1, 2, 5):
            if mantissa * scale > most:
                return buckets or [1]
            buckets.append(mantissa * scale)
        scale *= 10


@dataclass(slots=True)
class _Open:
    submitted_at: float
    last_token_at: float | None = None


class Metrics:
    """Used from the event loop only. status: the engine's newest. num_sessions: open connections.
    max_model_len: the largest number of tokens that a request can have."""

    def __init__(
        self,
        model: str,
        max_model_len: int,
        status: Callable[[], EngineStatus],
        num_sessions: Callable[[], int],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model = model
        self._clock = clock
        self._open: dict[str, _Open] = {}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_StatusCollector(model, status, num_sessions))
        tokens = count_buckets(max_model_len)
        histogram = self._histogram
        self._first_token = histogram(
            "time_to_first_token_seconds", "Time to first token.", FIRST_TOKEN_BUCKETS
        )
        self._between = histogram(
            "inter_token_latency_seconds", "Time between outputs of a request.", TOKEN_BUCKETS
        )
        self._per_token = histogram(
            "request_time_per_output_token_seconds",
            "Decode time per output token of a request.",
            TOKEN_BUCKETS,
        )
        self._whole = histogram(
            "e2e_request_latency_seconds", "From arrival to the end.", REQUEST_BUCKETS
        )
        self._queue = histogram("request_queue_time_seconds", "Time waiting.", REQUEST_BUCKETS)
        self._inference = histogram(
            "request_inference_time_seconds", "Time running.", REQUEST_BUCKETS
        )
        self._prefill = histogram(
            "request_prefill_time_seconds", "Time computing the prompt.", REQUEST_BUCKETS
        )
        self._decode = histogram(
            "request_decode_time_seconds", "Time from the first token on.", REQUEST_BUCKETS
        )
        self._prompt = histogram("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self._output = histogram("request_generation_tokens", "Tokens generated.", tokens)
        self._max_tokens = histogram("request_params_max_tokens", "max_output_tokens.", tokens)
        self._number = histogram("request_params_n", "Answers per request.", (1, 2, 5, 10, 20))
        self._success = Counter(
            "vllm:request_success",
            "Finished requests by reason.",
            (*_LABELS, "finished_reason"),
            registry=self.registry,
        )

    def on_submit(self, request: Request) -> None:
        """The engine has taken a request."""
        self._open[request.request_id] = _Open(self._clock())
        self._max_tokens.observe(request.max_new_tokens)
        self._number.observe(1)

    def on_events(self, events: Iterable[EngineEvent]) -> None:
        """A step's events."""
        now = self._clock()
        for event in events:
            match event:
                case TokenEvent():
                    self._on_tokens(event, now)
                case FinishEvent():
                    self._on_finish(event, now)

    def render(self) -> bytes:
        """The exposition, of type `CONTENT_TYPE`."""
        return generate_latest(self.registry)

    def _on_tokens(self, event: TokenEvent, now: float) -> None:
        known = self._open.get(event.request_id)
        if known is None:
            return
        if known.last_token_at is None:
            self._first_token.observe(now - known.submitted_at)
        else:
            self._between.observe(now - known.last_token_at)
        known.last_token_at = now

    def _on_finish(self, event: FinishEvent, now: float) -> None:
        known = self._open.pop(event.request_id, None)
        self._success.labels(self._model, _ENGINE, _REASONS[event.reason]).inc()
        if known is None:
            return
        summary, usage = event.summary, event.usage
        queue_s, running_s = summary.queue_ms / 1e3, summary.generation_ms / 1e3
        self._whole.observe(now - known.submitted_at)
        self._queue.observe(queue_s)
        self._inference.observe(running_s)
        self._prompt.observe(usage.num_prompt)
        self._output.observe(usage.num_output)
        if summary.time_to_first_token_ms is None:
            return
        prefill_s = max(0.0, summary.time_to_first_token_ms / 1e3 - queue_s)
        decode_s = max(0.0, running_s - prefill_s)
        self._prefill.observe(prefill_s)
        self._decode.observe(decode_s)
        if usage.num_output > 1:
            self._per_token.observe(decode_s / (usage.num_output - 1))

    def _histogram(self, name: str, text: str, buckets: Iterable[float]) -> Histogram:
        made = Histogram(
            f"vllm:{name}", text, _LABELS, buckets=tuple(buckets), registry=self.registry
        )
        return made.labels(self._model, _ENGINE)


class _StatusCollector(Collector):
    """Gauges and counters that the engine keeps itself."""

    def __init__(
        self, model: str, status: Callable[[], EngineStatus], num_sessions: Callable[[], int]
    ) -> None:
        self._labels = (model, _ENGINE)
        self._status = status
        self._num_sessions = num_sessions

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        totals, speculation = status.totals, status.speculation
        used = status.num_blocks - status.num_free_blocks - status.num_cached_blocks
        usage = used / status.num_blocks if status.num_blocks else 0.0
        yield self._gauge("vllm:num_requests_running", "Requests in the batch.", status.num_running)
        yield self._gauge("vllm:num_requests_waiting", "Requests waiting.", status.num_waiting)
        yield self._gauge("vllm:kv_cache_usage_perc", "K/V blocks in use, 1 is all.", usage)
        for name, text, value in (
            ("vllm:prefix_cache_queries", "Prompt tokens looked up.", totals.num_prompt_tokens),
            ("vllm:prefix_cache_hits", "Tokens found.", totals.num_cached_prompt_tokens),
            ("vllm:num_preemptions", "Preempted requests.", totals.num_preemptions),
            ("vllm:prompt_tokens", "Prompt tokens taken in.", totals.num_prompt_tokens),
            ("vllm:generation_tokens", "Tokens generated.", totals.num_output_tokens),
            ("vllm:spec_decode_num_drafts", "Verified drafts.", totals.num_drafts),
            ("vllm:spec_decode_num_draft_tokens", "Drafted tokens.", totals.num_drafted),
            ("vllm:spec_decode_num_accepted_tokens", "Accepted tokens.", totals.num_accepted),
            ("paceline_examined_tokens", "Drafted tokens tested.", totals.num_examined),
            ("paceline_passed_tokens", "Tested tokens that passed.", totals.num_passed),
            ("paceline_session_gate_flips", "Session gates moved.", totals.num_session_flips),
            ("paceline_load_gate_flips", "The load gate moved.", totals.num_load_flips),
            ("paceline_steps", "Engine steps.", status.step),
        ):
            yield self._counter(name, text, value)
        yield self._positions(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Accepted tokens by position.",
            totals.accepted_per_position,
        )
        yield self._positions(
            "paceline_examined_tokens_per_pos",
            "Tested tokens by position.",
            totals.examined_per_position,
        )
        yield self._positions(
            "paceline_passed_tokens_per_pos",
            "Tested tokens that passed by position.",
            totals.passed_per_position,
        )
        yield self._stages(status)
        yield self._step_tokens(totals.step_token_counts, totals.step_token_sum)
        yield self._gauge("paceline_sessions", "Open connections.", self._num_sessions())
        yield self._gauge("paceline_step_rows", "Rows of the last target pass.", status.num_rows)
        yield self._gauge(
            "paceline_step_seconds", "Measured time of the last step.", status.times.total_ms / 1e3
        )
        for name, text, milliseconds in (
            (
                "paceline_predicted_step_seconds",
                "Predicted time of the last step.",
                speculation.predicted_step_ms,
            ),
            (
                "paceline_ledger_level_seconds",
                "Time that speculation has cost beyond its allowance.",
                speculation.ledger_level_ms,
            ),
            (
                "paceline_ledger_capacity_seconds",
                "Most that it may.",
                speculation.ledger_capacity_ms,
            ),
        ):
            if milliseconds is not None:
                yield self._gauge(name, text, milliseconds / 1e3)
        if speculation.break_even_rows is not None:
            yield self._gauge(
                "paceline_break_even_rows",
                "Rows above which drafting cannot pay.",
                speculation.break_even_rows,
            )
        yield self._gates(status)

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(name, text, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _positions(self, name: str, text: str, counts: Iterable[int]) -> Metric:
        family = CounterMetricFamily(name, text, labels=(*_LABELS, "position"))
        for position, count in enumerate(counts):
            family.add_metric((*self._labels, str(position)), count)
        return family

    def _stages(self, status: EngineStatus) -> Metric:
        totals = status.totals
        family = CounterMetricFamily(
            "paceline_stage_seconds", "Time by stage of the step.", labels=(*_LABELS, "stage")
        )
        for stage, seconds in (
            ("draft", totals.draft_seconds),
            ("verify", totals.verify_seconds),
            ("sample", totals.sample_seconds),
            ("other", totals.other_seconds),
        ):
            family.add_metric((*self._labels, stage), seconds)
        return family

    def _step_tokens(self, counts: Iterable[int], total: int) -> Metric:
        family = HistogramMetricFamily(
            "vllm:iteration_tokens_total", "Tokens per engine step.", labels=_LABELS
        )
        buckets, running = [], 0
        for bound, count in zip((*STEP_TOKEN_BUCKETS, None), counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound is None else f"{float(bound)}", float(running)))
        family.add_metric(self._labels, buckets, total)
        return family

    def _gates(self, status: EngineStatus) -> Metric:
        """Only while somebody watches: the engine writes sessions down for telemetry alone."""
        family = GaugeMetricFamily(
            "paceline_session_gates", "Active sessions by gate.", labels=(*_LABELS, "gate")
        )
        for gate in ("on", "off", "probing"):
            count = sum(each.active and each.gate.value == gate for each in status.sessions)
            family.add_metric((*self._labels, gate), count)
        return family
