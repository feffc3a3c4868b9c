"""Telemetry over real sockets: who may see what, how often, and that nothing piles up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import anyio
import pytest

from paceline.core.events import (
    EngineStatus,
    FinishEvent,
    FinishReason,
    Gate,
    SpeculationSummary,
    StepTimes,
    Usage,
    WatchedStep,
)
from paceline.core.statistics import EngineTotals, SessionStatus, SpeculationStatus
from paceline.server.outbox import Outbox
from paceline.server.shell import gen_ai_attributes
from paceline.server.telemetry import TelemetryFeed, server_telemetry, session_telemetry
from paceline_protocol.events import TelemetrySample
from paceline_protocol.requests import TelemetrySubscribe
from tests.server.serving import ask, receive, serving

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

    from paceline.server.bridge import Bridge

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("no_blocking")]


def status_of(key: str, **changes: Any) -> SessionStatus:
    values: dict[str, Any] = {
        "key": key,
        "active": True,
        "gate": Gate.OFF,
        "reason": "off: acceptance 0.31 over 64 examined",
        "drafter": "model",
        "acceptance": 0.31,
        "accepted_per_position": (3, 1),
        "examined_per_position": (9, 3),
        "passed_per_position": (3, 1),
        "gamma_histogram": (5, 0, 9),
        "tokens_per_step": 1.2,
        "tokens_per_second": 40.0,
        "time_to_first_token_ms": 12.0,
        "draft_ms": 1.0,
        "verify_ms": 2.0,
        "sample_ms": 3.0,
        "other_ms": 4.0,
    }
    return SessionStatus(**(values | changes))


async def subscribe(client: ClientConnection, **fields: Any) -> dict[str, Any]:
    """The first thing that comes back."""
    await client.send(json.dumps({"type": "telemetry.subscribe", "interval_ms": 50} | fields))
    return await receive(client)


async def next_sample(client: ClientConnection) -> dict[str, Any]:
    while (event := await receive(client))["type"] != "telemetry.sample":
        pass
    return event


def test_a_lane_in_words_of_the_wire() -> None:
    sample = session_telemetry(status_of("sess_7/draft lane"))
    assert (sample.session_id, sample.lane) == ("sess_7", "draft lane")
    assert (sample.gate, sample.acceptance) == ("off", 0.31)
    assert (sample.accepted_per_position, sample.gamma_histogram) == ([3, 1], [5, 0, 9])
    assert session_telemetry(status_of("sess_7/")).lane is None
    assert session_telemetry(status_of("a program")).session_id == "a program"


def test_the_server_in_words_of_the_wire() -> None:
    status = EngineStatus(
        num_running=3,
        num_rows=34,
        times=StepTimes(1.0, 2.0, 3.0, 4.0),
        speculation=SpeculationStatus(1.5, 90.0, 9.5, 22),
    )
    sample = server_telemetry(status, 5, 120.0)
    assert (sample.num_sessions, sample.num_running, sample.num_rows) == (5, 3, 34)
    assert (sample.measured_step_ms, sample.predicted_step_ms) == (10.0, 9.5)
    assert sample.break_even_rows == 22
    assert server_telemetry(EngineStatus(), 0, None).measured_step_ms is None


def test_the_server_s_step_is_the_one_that_the_sessions_have_shares_of() -> None:
    status = EngineStatus(
        num_rows=34,
        times=StepTimes(1.0, 2.0, 3.0, 4.0),
        speculation=SpeculationStatus(predicted_step_ms=9.5),
        watched_step=WatchedStep(400, StepTimes(0.0, 316.0, 1.0, 2.0), 300.0),
    )
    sample = server_telemetry(status, 5, None)
    assert (sample.num_rows, sample.verify_ms) == (400, 316.0)
    assert (sample.measured_step_ms, sample.predicted_step_ms) == (319.0, 300.0)


async def test_the_server_s_speed_is_over_two_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now, tokens = 50.0, 0
    monkeypatch.setattr(anyio, "current_time", lambda: now)

    class Stub:
        def current_status(self) -> EngineStatus:
            return EngineStatus(totals=EngineTotals(num_output_tokens=tokens))

    message = TelemetrySubscribe(scope="server", interval_ms=500)
    bridge = cast("Bridge", Stub())
    feed = TelemetryFeed(message, "sess_1", bridge, lambda sample: None, lambda: 1)
    told = []
    for number in range(12):
        sample = feed.sample()
        assert sample.server is not None
        told.append(sample.server.tokens_per_second)
        now += 0.5
        tokens += 50 if number < 6 else 10  # 100 a second, then 20
    assert told[0] is None
    assert told[1:7] == pytest.approx([100.0] * 6)
    assert told[8] == pytest.approx(60.0), "half of two seconds fast, half slow"
    assert told[-1] == pytest.approx(20.0)


async def test_a_session_sees_its_own_lanes_alone() -> None:
    async with serving() as server, server.connect() as client:
        first = await subscribe(client, stream_id="t")
        assert first["type"] == "telemetry.sample"
        assert (first["scope"], first["sessions"], first["stream_id"]) == ("session", [], "t")
        await ask(client, "hello")
        key = server.engine.submitted[0].speculation_key
        server.engine.sessions = (status_of(key), status_of("sess_of_another/"))
        while not (sample := await next_sample(client))["sessions"]:
            pass
        assert [each["session_id"] for each in sample["sessions"]] == [key.partition("/")[0]]
        assert sample["sessions"][0]["reason"] == "off: acceptance 0.31 over 64 examined"
        assert "server" not in sample or sample["server"] is None


async def test_an_admin_sees_everything() -> None:
    async with serving() as server, server.connect() as client:
        server.engine.sessions = (status_of("a/"), status_of("b/"))
        sample = await subscribe(client, scope="server")
        assert [each["session_id"] for each in sample["sessions"]] == ["a", "b"]
        assert sample["server"]["num_sessions"] == 1
        assert sample["server"]["num_blocks"] == 1024


async def test_with_an_admin_key_only_who_holds_it_sees_the_server() -> None:
    async with serving(api_key="user", admin_key="boss") as server:
        headers = {"Authorization": "Bearer user"}
        async with server.connect(additional_headers=headers) as client:
            refusal = await subscribe(client, scope="server", stream_id="s")
            assert (refusal["type"], refusal["error"]["code"]) == ("error", "permission_denied")
            assert (refusal["error"]["param"], refusal["stream_id"]) == ("scope", "s")
            assert (await subscribe(client))["scope"] == "session"
        headers = {"Authorization": "Bearer boss"}
        async with server.connect(additional_headers=headers) as client:
            assert (await subscribe(client, scope="server"))["server"] is not None


async def test_unsubscribing_ends_it_and_the_engine_stops_writing_sessions_down() -> None:
    async with serving() as server, server.connect() as client:
        await subscribe(client)
        await client.send(json.dumps({"type": "telemetry.unsubscribe"}))
        events = await ask(client, "hello")
        rest = [event["type"] for event in events]
        assert rest[rest.index("response.created") :].count("telemetry.sample") == 0
        await server.wait_until(lambda: server.engine.watch_intervals[-1:] == [None])
        assert server.engine.watch_intervals[0] == 0.05


async def test_a_second_subscription_replaces_the_first() -> None:
    async with serving() as server, server.connect() as client:
        await subscribe(client, stream_id="one")
        await client.send(
            json.dumps({"type": "telemetry.subscribe", "interval_ms": 60, "stream_id": "two"})
        )
        while (await next_sample(client))["stream_id"] != "two":
            pass
        assert [(await next_sample(client))["stream_id"] for _ in range(4)] == ["two"] * 4


def test_only_the_latest_sample_of_a_scope_waits() -> None:
    outbox = Outbox(1 << 20)
    for number in range(5):
        outbox.put_sample(TelemetrySample(scope="session", time=float(number), sessions=[]))
    sample = outbox.take()
    assert isinstance(sample, TelemetrySample)
    assert sample.time == 4.0
    assert outbox.take() is None


def test_totals_have_a_place_for_each_bucket() -> None:
    totals = EngineTotals()
    assert len(totals.accepted_per_position) == 16
    assert len(totals.step_token_counts) == 14


def test_logs_have_the_names_of_the_semantic_conventions() -> None:
    event = FinishEvent("resp_1", FinishReason.STOP, Usage(7, 3, 5), SpeculationSummary())
    attributes = gen_ai_attributes(event)
    assert attributes["gen_ai.usage.input_tokens"] == 7
    assert attributes["gen_ai.usage.output_tokens"] == 5
    assert attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert "error.type" not in attributes


async def test_operators_can_forbid_forced_speculation() -> None:
    async with (
        serving(allow_forced_speculation=False) as server,
        server.connect() as client,
    ):
        [refusal] = await ask(client, "hello", paceline={"speculation": "on"})
        assert refusal["error"]["param"] == "paceline.speculation"
        assert (await ask(client, "hello", paceline={"speculation": "auto"}))[-1]["type"] == (
            "response.completed"
        )
