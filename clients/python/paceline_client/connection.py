"""One socket while it lives: a task that reads, a task that writes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import anyio
from websockets.exceptions import ConnectionClosed

from paceline_client.errors import ConnectionLostError
from paceline_protocol import Codec, ProtocolError, UnknownEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from websockets.asyncio.client import ClientConnection

    from paceline_protocol.messages import ClientEvent, ServerEvent

_CLOSE_TIMEOUT_S = 2.0


class Connection:
    """Moves messages; knows nothing of lanes and responses.

    deliver: called for every server event, in order. lost: called once, when nothing more can
    come. What waits to be written is bounded by the caller: at most one request and one
    cancellation for each open response.
    """

    def __init__(
        self,
        socket: ClientConnection,
        codec: Codec,
        deliver: Callable[[ServerEvent], None],
        lost: Callable[[ConnectionLostError], None],
    ) -> None:
        self._socket = socket
        self._codec = codec
        self._deliver = deliver
        self._lost = lost
        self._outgoing, self._to_write = anyio.create_memory_object_stream[str | bytes](math.inf)
        self._failure: ConnectionLostError | None = None

    @property
    def is_open(self) -> bool:
        return self._failure is None

    def send(self, message: ClientEvent) -> None:
        """Have a message written; never waits. Raises ConnectionLostError."""
        if self._failure is not None:
            raise self._failure
        self._outgoing.send_nowait(self._codec.encode(message))

    async def close(self) -> None:
        """Close the socket; `run` then ends."""
        await self._socket.close()

    async def run(self) -> None:
        """Read and write until the connection ends, from whichever side. Never raises."""
        failure = ConnectionLostError(None, "")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write)
                failure = await self._read()
                tasks.cancel_scope.cancel()
        finally:
            self._failure = failure
            self._outgoing.close()
            self._to_write.close()
            self._lost(failure)
            with anyio.move_on_after(_CLOSE_TIMEOUT_S, shield=True):
                await self._socket.close()

    async def _read(self) -> ConnectionLostError:
        try:
            async for payload in self._socket:
                event = self._codec.decode_server(payload)
                if not isinstance(event, UnknownEvent):
                    self._deliver(event)
        except ConnectionClosed:
            pass
        except ProtocolError as error:
            return ConnectionLostError(1007, f"the server sent what is no message: {error}")
        return ConnectionLostError(self._socket.close_code, self._socket.close_reason or "")

    async def _write(self) -> None:
        async for payload in self._to_write:
            try:
                await self._socket.send(payload)
            except ConnectionClosed:
                return  # the reader says why
