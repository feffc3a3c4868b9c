"""The engine's own thread: it steps while there is work and sleeps otherwise."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from paceline.core.errors import EngineStoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.events import EngineStatus, StepResult
    from paceline.core.limits import EngineLimits
    from paceline.core.request import Request
    from paceline.engine.engine import Engine

_log = logging.getLogger(__name__)


class EngineThread:
    """Runs an engine. `submit`, `cancel` and `status` may be called from any thread.

    deliver: called on the engine's thread with each step's result that has events; it must not
    block and must not raise.
    """

    def __init__(self, engine: Engine, deliver: Callable[[StepResult], None]) -> None:
        self._engine = engine
        self._deliver = deliver
        self._wake = threading.Condition()
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="paceline-engine", daemon=True)

    @property
    def limits(self) -> EngineLimits:
        return self._engine.limits

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        """See `Engine.submit`; also raises EngineStoppedError."""
        with self._wake:
            if self._is_stopping:
                raise EngineStoppedError("the engine has stopped and takes no more requests")
            self._engine.submit(request)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """See `Engine.cancel`."""
        with self._wake:
            self._engine.cancel(request_id)
            self._wake.notify()

    def status(self) -> EngineStatus:
        return self._engine.status()

    def watch(self, interval_s: float | None) -> None:
        """See `Engine.watch`."""
        self._engine.watch(interval_s)

    def stop(self, timeout_s: float) -> None:
        """End every open request with an error event, then the thread. Call it once."""
        with self._wake:
            self._is_stopping = True
            self._wake.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise EngineStoppedError(f"the engine's step did not end within {timeout_s} s")

    def _run(self) -> None:
        reason = "the server is shutting down"
        try:
            self._step_until_stopped()
        except Exception as error:
            # `Engine.step` contains the failures of a step; what comes through it is a fault of the
            # engine's own. Its books can't be trusted any more, but nobody may be left waiting.
            _log.exception("the engine stops")
            reason = f"the engine stopped: {type(error).__name__}: {error}"
        with self._wake:
            self._is_stopping = True
        self._deliver(self._engine.abort(reason))

    def _step_until_stopped(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._is_stopping or self._engine.has_work)
                if self._is_stopping:
                    return
            result = self._engine.step()
            if result.events:
                self._deliver(result)
