"""The border between the engine's thread and the event loop. The only file that knows both.

    engine thread                          | event loop
    Engine.step() -> StepResult            |
        deliver(result) -- one call_soon_threadsafe per step --> route(result)
                                           |     events to the sink of their request
        EngineThread.submit / cancel  <----|---- submit / cancel (never block)

A process border would replace this file and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

from paceline.core.errors import EngineStoppedError
from paceline.core.events import EngineStatus, FinishEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.events import EngineEvent, StepResult
    from paceline.core.limits import EngineLimits
    from paceline.core.request import Request

    Sink = Callable[[EngineEvent], None]


class EnginePort(Protocol):
    """What the server needs of an engine that runs in a thread of its own."""

    @property
    def limits(self) -> EngineLimits:
        """What the engine can hold."""

    def start(self) -> None:
        """Begin to step."""

    def submit(self, request: Request) -> None:
        """Any thread. Raises RequestError or EngineStoppedError."""

    def cancel(self, request_id: str) -> None:
        """Any thread; takes effect at the next step, unknown ids are ignored."""

    def status(self) -> EngineStatus:
        """Any thread; the state after the last step."""

    def watch(self, interval_s: float | None) -> None:
        """Any thread; how often the status holds sessions, see `Engine.watch`."""

    def stop(self, timeout_s: float) -> None:
        """End every open request, then the thread."""


class Observer(Protocol):
    """Sees all requests and events pass, on the event loop; must not block."""

    def on_submit(self, request: Request) -> None:
        """The engine has taken a request."""

    def on_events(self, events: Sequence[EngineEvent]) -> None:
        """What one step told."""


class Bridge:
    """Routes steps to sinks. `deliver` is called on the engine's thread, all else on the loop's.

    Build it, give `deliver` to the engine, then call `open` on the loop before the first submit.
    """

    def __init__(self) -> None:
        self._engine: EnginePort | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._sinks: dict[str, Sink] = {}
        self._intervals: list[float] = []
        self._observers: list[Observer] = []
        self.status = EngineStatus()

    def open(self, engine: EnginePort) -> None:
        """Connect the engine to the running event loop."""
        self._engine = engine
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Whatever the engine still delivers is dropped."""
        self._loop = None

    @property
    def num_routes(self) -> int:
        """Requests whose `FinishEvent` has not come yet."""
        return len(self._sinks)

    def deliver(self, result: StepResult) -> None:
        """On the engine's thread, once per step. Never blocks, never raises."""
        loop = self._loop
        if loop is None:
            return
        try:
            loop.call_soon_threadsafe(self._route, result)
        except RuntimeError:
            return  # the loop has just closed; nobody listens

    def submit(self, request: Request, sink: Sink) -> None:
        """Submit a request; its events go to `sink`, on the loop, until its `FinishEvent`.

        Raises:
            RequestError: the engine refuses it; nothing was submitted.
            EngineStoppedError: there is no engine to take it.
        """
        if self._engine is None or self._loop is None:
            raise EngineStoppedError("the engine is not running")
        self._sinks[request.request_id] = sink
        try:
            self._engine.submit(request)
        except BaseException:
            del self._sinks[request.request_id]
            raise
        for observer in self._observers:
            observer.on_submit(request)

    def observe(self, observer: Observer) -> None:
        """Tell it of every request that the engine takes, and of every step's events."""
        self._observers.append(observer)

    def current_status(self) -> EngineStatus:
        """The engine's own, which is newer than `status` where a step had nothing to tell."""
        return self.status if self._engine is None else self._engine.status()

    @contextlib.contextmanager
    def watching(self, interval_s: float) -> Iterator[None]:
        """While the block runs the engine's status holds its sessions, at least so often."""
        self._intervals.append(interval_s)
        self._watch()
        try:
            yield
        finally:
            self._intervals.remove(interval_s)
            self._watch()

    def _watch(self) -> None:
        if self._engine is not None:
            self._engine.watch(min(self._intervals, default=None))

    def cancel(self, request_id: str) -> None:
        """End a request at the next step boundary."""
        if self._engine is not None:
            self._engine.cancel(request_id)

    def _route(self, result: StepResult) -> None:
        self.status = result.status
        for observer in self._observers:
            observer.on_events(result.events)
        for event in result.events:
            sink = (
                self._sinks.pop(event.request_id, None)
                if isinstance(event, FinishEvent)
                else self._sinks.get(event.request_id)
            )
            if sink is not None:
                sink(event)
