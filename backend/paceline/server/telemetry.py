"""Telemetry samples: the engine's status in the words of the wire.

A subscription is a task that wakes at its interval and puts the newest sample into the outbox,
where it replaces one that has not been read yet. Nothing is queued: a slow reader gets fewer
samples, never older ones.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import anyio
from msgspec import UNSET

from paceline.core.events import WatchedStep
from paceline_protocol.events import TelemetrySample
from paceline_protocol.telemetry import ServerTelemetry, SessionTelemetry

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.events import EngineStatus
    from paceline.core.statistics import SessionStatus
    from paceline.server.bridge import Bridge
    from paceline_protocol.requests import TelemetryScope, TelemetrySubscribe


RATE_WINDOW_S = 2.0
"""Over so long the server's tokens per second are taken, as a session's are."""


def key_prefix(session_id: str) -> str:
    """What the speculation keys of a connection's lanes begin with."""
    return f"{session_id}/"


def session_telemetry(status: SessionStatus) -> SessionTelemetry:
    """One lane. Its key is `<session>/<lane>`; other keys are sessions without lanes."""
    session_id, has_lane, lane = status.key.partition("/")
    return SessionTelemetry(
        session_id=session_id,
        lane=lane if has_lane and lane else None,
        active=status.active,
        gate=status.gate.value,
        reason=status.reason,
        drafter=status.drafter,
        acceptance=status.acceptance,
        accepted_per_position=list(status.accepted_per_position),
        examined_per_position=list(status.examined_per_position),
        passed_per_position=list(status.passed_per_position),
        gamma_histogram=list(status.gamma_histogram),
        tokens_per_step=status.tokens_per_step,
        tokens_per_second=status.tokens_per_second,
        time_to_first_token_ms=status.time_to_first_token_ms,
        draft_ms=status.draft_ms,
        verify_ms=status.verify_ms,
        sample_ms=status.sample_ms,
        other_ms=status.other_ms,
    )


def server_telemetry(
    status: EngineStatus, num_sessions: int, tokens_per_second: float | None
) -> ServerTelemetry:
    """The engine as a whole. Of its steps the one that the sessions' times are shares of."""
    speculation = status.speculation
    step = status.watched_step or WatchedStep(
        status.num_rows, status.times, speculation.predicted_step_ms
    )
    times = step.times
    return ServerTelemetry(
        num_sessions=num_sessions,
        num_running=status.num_running,
        num_waiting=status.num_waiting,
        num_blocks=status.num_blocks,
        num_free_blocks=status.num_free_blocks,
        num_cached_blocks=status.num_cached_blocks,
        num_rows=step.num_rows,
        tokens_per_second=tokens_per_second,
        draft_ms=times.draft_ms,
        verify_ms=times.verify_ms,
        sample_ms=times.sample_ms,
        other_ms=times.other_ms,
        measured_step_ms=times.total_ms or None,
        predicted_step_ms=step.predicted_ms,
        break_even_rows=speculation.break_even_rows,
    )


class TelemetryFeed:
    """One subscription. `run` goes on until it is cancelled.

    put: takes each sample. num_sessions: connections that are open now.
    """

    def __init__(
        self,
        message: TelemetrySubscribe,
        session_id: str,
        bridge: Bridge,
        put: Callable[[TelemetrySample], None],
        num_sessions: Callable[[], int],
    ) -> None:
        self._message = message
        self._session_id = session_id
        self._bridge = bridge
        self._put = put
        self._num_sessions = num_sessions
        self._counts: deque[tuple[float, int]] = deque()

    @property
    def scope(self) -> TelemetryScope:
        return self._message.scope

    async def run(self) -> None:
        """A sample now, and then one at each interval."""
        interval_s = self._message.interval_ms / 1e3
        with self._bridge.watching(interval_s):
            while True:
                self._put(self.sample())
                await anyio.sleep(interval_s)

    def sample(self) -> TelemetrySample:
        """As of now. Sessions that are idle stand as of their last step."""
        status = self._bridge.current_status()
        is_server = self.scope == "server"
        prefix = key_prefix(self._session_id)
        sessions = [
            session_telemetry(session)
            for session in status.sessions
            if is_server or session.key.startswith(prefix)
        ]
        server = None
        if is_server:
            server = server_telemetry(status, self._num_sessions(), self._tokens_per_second(status))
        stream_id = self._message.stream_id
        return TelemetrySample(
            stream_id=UNSET if stream_id is None else stream_id,
            scope=self.scope,
            time=time.time(),
            sessions=sessions,
            ledger_level_ms=status.speculation.ledger_level_ms,
            ledger_capacity_ms=status.speculation.ledger_capacity_ms,
            server=server,
        )

    def _tokens_per_second(self, status: EngineStatus) -> float | None:
        """Over the last RATE_WINDOW_S, and at least since the sample before."""
        now, tokens = anyio.current_time(), status.totals.num_output_tokens
        counts = self._counts
        counts.append((now, tokens))
        while len(counts) > 2 and now - counts[1][0] >= RATE_WINDOW_S:
            counts.popleft()
        since, before = counts[0]
        return (tokens - before) / (now - since) if now > since else None
