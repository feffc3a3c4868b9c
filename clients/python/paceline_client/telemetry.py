"""Telemetry samples as an async iterator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline_client.buffers import EventBuffer, latest
from paceline_client.errors import refusal
from paceline_protocol.messages import TelemetrySubscribe, TelemetryUnsubscribe

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from paceline_client.connection import Connection
    from paceline_client.session import Session
    from paceline_protocol.messages import ErrorEvent, TelemetrySample, TelemetryScope


class TelemetryStream:
    """Subscribes when iterated first, unsubscribes when left. Only the newest sample waits.

    Raises RequestRefusedError (scope `server` without the admin key), ConnectionLostError,
    ConnectError, SessionClosedError.
    """

    def __init__(self, session: Session, scope: TelemetryScope, interval_ms: int) -> None:
        self._session = session
        self._scope: TelemetryScope = scope
        self._interval_ms = interval_ms
        self._route = f"telemetry-{scope}"
        self._samples: EventBuffer[TelemetrySample] = EventBuffer(latest, high_water=1)
        self._connection: Connection | None = None
        self._is_closed = False

    def push(self, sample: TelemetrySample) -> None:
        self._samples.push(sample)

    def refuse(self, event: ErrorEvent) -> None:
        self._samples.fail(refusal(event))

    def fail(self, failure: Exception) -> None:
        self._samples.fail(failure)

    def close(self) -> None:
        """Unsubscribe."""
        if self._is_closed:
            return
        self._is_closed = True
        self._session.unwatch(self._route, self)
        if self._connection is not None and self._connection.is_open:
            self._connection.send(TelemetryUnsubscribe(scope=self._scope, stream_id=self._route))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TelemetrySample:
        if self._is_closed:
            raise StopAsyncIteration
        if self._connection is None:
            self._connection = await self._session.connected()
            self._session.watch(self._route, self)
            self._connection.send(
                TelemetrySubscribe(
                    scope=self._scope, interval_ms=self._interval_ms, stream_id=self._route
                )
            )
        return await self._samples.next()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
