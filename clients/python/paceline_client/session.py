"""A session: one connection to a server that comes back when it is needed, and what runs on it."""

from __future__ import annotations

import logging
import random
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from paceline_client.connection import Connection
from paceline_client.endpoint import DEFAULT_URL, CodecName, Endpoint
from paceline_client.errors import ConnectError, SessionClosedError
from paceline_client.history import History
from paceline_client.lanes import Lanes
from paceline_client.requests import Input, Options, completion_request, response_request
from paceline_client.streams import ResponseStream
from paceline_client.telemetry import TelemetryStream
from paceline_protocol.messages import ErrorEvent, TelemetrySample

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from typing import Unpack

    from anyio.abc import TaskGroup

    from paceline_client.errors import ConnectionLostError
    from paceline_client.requests import ResponseSettings
    from paceline_protocol.messages import Response, ServerEvent, TelemetryScope

logger = logging.getLogger("paceline_client")

DEFAULT_RECONNECT_DELAYS_S: Final = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
DEFAULT_MAX_LANES: Final = 16


class Session:
    """Made by `connect`. Belongs to the event loop that made it; any number of its tasks may use
    it at once.

    Nothing is sent before the returned iterator is iterated (or entered with `async with`).
    """

    def __init__(
        self,
        endpoint: Endpoint,
        tasks: TaskGroup,
        *,
        max_lanes: int,
        reconnect_delays_s: Sequence[float],
    ) -> None:
        self.lanes = Lanes(max_lanes)
        self.history = History()
        self.connection_number = 0
        self._endpoint = endpoint
        self._tasks = tasks
        self._reconnect_delays_s = reconnect_delays_s
        self._connection: Connection | None = None
        self._connecting = anyio.Lock()
        self._is_closed = False
        self._watchers: dict[str, TelemetryStream] = {}

    @property
    def url(self) -> str:
        """Of the socket."""
        return self._endpoint.url

    def respond(
        self,
        input: Input,
        *,
        instructions: str | None = None,
        previous: Response | str | None = None,
        max_output_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        top_logprobs: int | None = None,
        metadata: Mapping[str, str] | None = None,
        model: str | None = None,
        generate: bool = True,
        paceline: Options = None,
    ) -> ResponseStream:
        """Ask the model, as an async iterator over the response's events.

        input: text, or items. previous: the response (or its id) that this continues; the session
        sends its items again where the server doesn't hold it any more. instructions are those of
        this response alone. generate: False prepares the prompt's state without any output.
        paceline: `PacelineOptions` or a mapping with its fields.

        Leaving the loop early cancels the response. The iterator raises ResponseFailedError,
        RequestRefusedError, ConnectionLostError, ConnectError or SessionClosedError; this method
        raises ProtocolError (a ValueError) for options that are wrong in themselves.
        """
        request = response_request(
            input,
            instructions=instructions,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
            top_p=top_p,
            top_logprobs=top_logprobs,
            metadata=metadata,
            model=model,
            generate=generate,
            paceline=paceline,
        )
        previous_id = previous if previous is None or isinstance(previous, str) else previous.id
        return ResponseStream(self, request, previous_id)

    def complete(
        self,
        prompt: str,
        *,
        suffix: str | None = None,
        max_output_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        paceline: Options = None,
    ) -> ResponseStream:
        """Continue raw text, or fill in between `prompt` and `suffix`; as `respond` otherwise."""
        request = completion_request(
            prompt,
            suffix=suffix,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
            top_p=top_p,
            paceline=paceline,
        )
        return ResponseStream(self, request, None)

    async def ask(self, input: Input, **settings: Unpack[ResponseSettings]) -> Response:
        """The finished response; its text is `.output_text`. As `respond` otherwise."""
        return await self.respond(input, **settings).finish()

    def telemetry(
        self, scope: TelemetryScope = "session", *, interval_ms: int = 500
    ) -> TelemetryStream:
        """Telemetry samples as they come, as an async iterator; a slow reader gets the latest.
        One subscription for each scope: a second one ends the first."""
        return TelemetryStream(self, scope, interval_ms)

    async def connected(self) -> Connection:
        """The open connection; makes one if there is none. Raises ConnectError.

        Only a session that was connected before waits and tries again: a server that restarts
        comes back, one that never answered is more likely not there.
        """
        async with self._connecting:
            self._check_open()
            if self._connection is not None and self._connection.is_open:
                return self._connection
            delays_s = self._reconnect_delays_s if self._connection is not None else ()
            socket = None
            for delay_s in delays_s:
                await anyio.sleep(delay_s * random.uniform(0.75, 1.25))
                try:
                    socket = await self._endpoint.open()
                    break
                except ConnectError as error:
                    logger.info("reconnecting to %s: %s", self.url, error.reason)
            if socket is None:
                socket = await self._endpoint.open()
            try:
                self._check_open()
            except SessionClosedError:
                await socket.close()
                raise
            connection = Connection(
                socket, self._endpoint.codec, self._deliver, self._connection_lost
            )
            self._connection = connection
            self.connection_number += 1
            self._tasks.start_soon(connection.run)
            return connection

    def watch(self, route: str, stream: TelemetryStream) -> None:
        """Have the samples that name this route brought to a stream, in place of any other."""
        before = self._watchers.get(route)
        self._watchers[route] = stream
        if before is not None and before is not stream:
            before.fail(SessionClosedError())

    def unwatch(self, route: str, stream: TelemetryStream) -> None:
        if self._watchers.get(route) is stream:
            del self._watchers[route]

    def close(self) -> None:
        """Every open response ends with SessionClosedError; `connect` calls this."""
        self._is_closed = True
        failure = SessionClosedError()
        self.lanes.fail_all(failure)
        for stream in self._watchers.values():
            stream.fail(failure)
        self._watchers.clear()

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionClosedError

    def _deliver(self, event: ServerEvent) -> None:
        if self.lanes.deliver(event):
            return
        stream = self._watchers.get(event.stream_id) if event.stream_id else None
        match event:
            case TelemetrySample() if stream is not None:
                stream.push(event)
            case ErrorEvent() if stream is not None:
                stream.refuse(event)
            case ErrorEvent():
                logger.warning("the server says: %s", event.error.message)

    def _connection_lost(self, failure: ConnectionLostError) -> None:
        self.lanes.fail_all(failure)
        for stream in self._watchers.values():
            stream.fail(failure)
        self._watchers.clear()


@asynccontextmanager
async def connect(
    url: str = DEFAULT_URL,
    *,
    api_key: str | None = None,
    codec: CodecName = "json",
    max_lanes: int = DEFAULT_MAX_LANES,
    reconnect_delays_s: Sequence[float] = DEFAULT_RECONNECT_DELAYS_S,
) -> AsyncIterator[Session]:
    """Connect to a server: `async with connect() as session`. Runs on anyio's asyncio backend.

    url: with ws, http or no scheme, with or without the path. codec: `msgpack` for binary frames.
    max_lanes: responses that run at once; further ones wait (a server allows 16 by default).
    reconnect_delays_s: waits before each try to replace a connection that was lost.

    Raises ConnectError at once if no server answers, ValueError for what is no address.
    """
    endpoint = Endpoint.of(url, api_key=api_key, codec=codec)
    try:
        async with anyio.create_task_group() as tasks:
            session = Session(
                endpoint, tasks, max_lanes=max_lanes, reconnect_delays_s=reconnect_delays_s
            )
            try:
                await session.connected()
                yield session
            finally:
                session.close()
                tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Our own tasks raise nothing, so what is inside came from the caller's block alone.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise
