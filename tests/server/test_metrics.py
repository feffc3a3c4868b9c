"""`/metrics`: the format, the names that dashboards look for, and the numbers behind them."""

from __future__ import annotations

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from paceline.core.events import (
    CommittedToken,
    EngineStatus,
    FinishEvent,
    FinishReason,
    SpeculationSummary,
    StepTimes,
    TokenEvent,
    TokenSource,
    Usage,
)
from paceline.core.request import Request
from paceline.core.statistics import EngineTotals, SpeculationStatus
from paceline.server.metrics import Metrics, count_buckets
from tests.server.serving import ask, serving

TOTALS = EngineTotals(
    num_prompt_tokens=100,
    num_cached_prompt_tokens=40,
    num_output_tokens=77,
    num_drafts=9,
    num_drafted=30,
    num_examined=20,
    num_passed=12,
    num_accepted=13,
    accepted_per_position=(7, 6) + (0,) * 14,
    passed_per_position=(7, 5) + (0,) * 14,
    step_token_counts=(5, 2) + (0,) * 11 + (1,),
    step_token_sum=20_000,
    draft_seconds=0.5,
)
STATUS = EngineStatus(
    step=8,
    num_running=3,
    num_waiting=2,
    num_blocks=100,
    num_free_blocks=40,
    num_cached_blocks=10,
    num_rows=34,
    times=StepTimes(1.0, 20.0, 3.0, 1.0),
    totals=TOTALS,
    speculation=SpeculationStatus(5.0, 90.0, 24.0, 22),
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def read(metrics: Metrics) -> dict[str, float]:
    """Samples by name, with the labels that tell them apart."""
    values = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("model_name") == "m"
            assert labels.pop("engine") == "0"
            extra = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            values[f"{sample.name}{{{extra}}}" if extra else sample.name] = sample.value
    return values


def make(clock: Clock | None = None) -> Metrics:
    return Metrics("m", 8192, lambda: STATUS, lambda: 4, clock=clock or Clock())


def test_the_engines_counts() -> None:
    values = read(make())
    expected = {
        "vllm:num_requests_running": 3,
        "vllm:num_requests_waiting": 2,
        "vllm:kv_cache_usage_perc": 0.5,
        "vllm:prompt_tokens_total": 100,
        "vllm:prefix_cache_hits_total": 40,
        "vllm:generation_tokens_total": 77,
        "vllm:spec_decode_num_drafts_total": 9,
        "vllm:spec_decode_num_draft_tokens_total": 30,
        "vllm:spec_decode_num_accepted_tokens_total": 13,
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=1}": 6,
        "paceline_passed_tokens_per_pos_total{position=1}": 5,
        "vllm:iteration_tokens_total_bucket{le=1.0}": 5,
        "vllm:iteration_tokens_total_bucket{le=8.0}": 7,
        "vllm:iteration_tokens_total_bucket{le=+Inf}": 8,
        "vllm:iteration_tokens_total_sum": 20_000,
        "paceline_passed_tokens_total": 12,
        "paceline_stage_seconds_total{stage=draft}": 0.5,
        "paceline_sessions": 4,
        "paceline_step_seconds": pytest.approx(0.025),
        "paceline_predicted_step_seconds": pytest.approx(0.024),
        "paceline_ledger_level_seconds": pytest.approx(0.005),
        "paceline_break_even_rows": 22,
    }
    assert {name: values[name] for name in expected} == expected


def test_latencies_of_a_request() -> None:
    clock = Clock()
    metrics = make(clock)
    metrics.on_submit(Request("r", (1, 2), 64))
    tokens = (CommittedToken(1, "a", TokenSource.PLAIN),)
    clock.now = 0.05
    metrics.on_events([TokenEvent("r", tokens)])
    clock.now = 0.30
    metrics.on_events([TokenEvent("r", tokens)])
    clock.now = 0.4
    summary = SpeculationSummary(time_to_first_token_ms=50.0, queue_ms=10.0, generation_ms=390.0)
    end = FinishEvent("r", FinishReason.CANCELLED, Usage(2, 0, 2), summary)
    metrics.on_events([end])
    values = read(metrics)
    assert values["vllm:time_to_first_token_seconds_sum"] == pytest.approx(0.05)
    assert values["vllm:time_to_first_token_seconds_bucket{le=0.06}"] == 1
    assert values["vllm:time_to_first_token_seconds_bucket{le=0.04}"] == 0
    assert values["vllm:inter_token_latency_seconds_sum"] == pytest.approx(0.25)
    assert values["vllm:e2e_request_latency_seconds_sum"] == pytest.approx(0.4)
    assert values["vllm:request_queue_time_seconds_sum"] == pytest.approx(0.01)
    assert values["vllm:request_prefill_time_seconds_sum"] == pytest.approx(0.04)
    assert values["vllm:request_decode_time_seconds_sum"] == pytest.approx(0.35)
    assert values["vllm:request_time_per_output_token_seconds_sum"] == pytest.approx(0.35)
    assert values["vllm:request_success_total{finished_reason=abort}"] == 1
    assert values["vllm:request_params_max_tokens_sum"] == 64


def test_events_of_unknown_requests_do_not_matter() -> None:
    metrics = make()
    metrics.on_events([TokenEvent("x", ())])
    assert read(metrics)["vllm:time_to_first_token_seconds_count"] == 0


def test_buckets_of_token_counts() -> None:
    assert count_buckets(100) == [1, 2, 5, 10, 20, 50, 100]
    assert count_buckets(8192)[-1] == 5000
    assert count_buckets(0) == [1]


@pytest.mark.anyio
async def test_served_over_http_and_fed_by_sockets() -> None:
    async with serving() as server, server.connect() as client:
        await ask(client, "hello")
        async with httpx.AsyncClient() as http:
            answer = await http.get(f"{server.http_url}/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'vllm:request_success_total{engine="0",finished_reason="stop"' in answer.text
    assert "vllm:e2e_request_latency_seconds_count" in answer.text
