"""The border between engine thread and event loop."""

from __future__ import annotations

import threading

import anyio
import anyio.to_thread
import pytest

from paceline.core.errors import EngineStoppedError, QueueFullError
from paceline.core.events import EngineEvent, EngineStatus, FinishEvent, StepResult, TokenEvent
from paceline.core.request import Request
from paceline.server.bridge import Bridge
from tests.fakes_engine import ScriptedEngine

pytestmark = pytest.mark.anyio


def _request(request_id: str) -> Request:
    return Request(request_id, prompt_ids=(1,), max_new_tokens=100)


async def test_events_reach_their_own_sink_on_the_loop_once_per_step() -> None:
    bridge = Bridge()
    engine = ScriptedEngine(bridge.deliver, lambda _: ["ab", "cd"])
    bridge.open(engine)
    engine.pause()
    engine.start()
    seen: dict[str, list[EngineEvent]] = {"a": [], "b": []}
    threads = set()
    done = anyio.Event()

    def sink(event: EngineEvent) -> None:
        seen[event.request_id].append(event)
        threads.add(threading.current_thread())
        if not bridge.num_routes:
            done.set()

    bridge.submit(_request("a"), sink)
    bridge.submit(_request("b"), sink)
    assert bridge.num_routes == 2
    engine.resume()
    await done.wait()
    await anyio.to_thread.run_sync(engine.stop, 10.0)
    for request_id, events in seen.items():
        text = "".join(event.text for event in events if isinstance(event, TokenEvent))
        assert text == "abcd"
        assert [isinstance(event, FinishEvent) for event in events] == [False] * 3 + [True]
        assert {event.request_id for event in events} == {request_id}
    assert threads == {threading.current_thread()}
    assert bridge.status.step == 3


async def test_a_refused_request_leaves_no_route() -> None:
    bridge = Bridge()
    engine = ScriptedEngine(bridge.deliver, lambda _: [])
    engine.is_full = True
    bridge.open(engine)
    with pytest.raises(QueueFullError):
        bridge.submit(_request("a"), lambda _: None)
    assert bridge.num_routes == 0


async def test_events_without_a_sink_and_after_the_end_are_dropped() -> None:
    bridge = Bridge()
    stray = StepResult((TokenEvent("nobody", ()),), EngineStatus(step=7))
    bridge.deliver(stray)
    bridge.cancel("nobody")
    with pytest.raises(EngineStoppedError):
        bridge.submit(_request("a"), lambda _: None)
    bridge.open(ScriptedEngine(bridge.deliver, lambda _: []))
    bridge.deliver(stray)
    await anyio.lowlevel.checkpoint()
    assert bridge.status.step == 7
    bridge.close()
    bridge.deliver(stray)


def test_a_step_after_the_loop_has_closed_harms_nobody() -> None:
    bridge = Bridge()

    async def open_and_leave() -> None:
        bridge.open(ScriptedEngine(bridge.deliver, lambda _: []))

    anyio.run(open_and_leave)
    bridge.deliver(StepResult((), EngineStatus()))
