"""uvicorn's sans-I/O WebSocket protocol, with an end for peers that do not read.

Four things that the class we build on leaves open:

* A close frame waits until the peer has read what lies before it, so a server can never tell a slow
  reader why it goes. Here it is queued at once, behind what is already buffered.
* Closing flushes the buffer first, for ever if nobody reads. Here the connection is dropped when
  the peer has not answered the close frame within `close_timeout`.
* After a frame over the limit the socket is closed with bytes still unread, and the kernel answers
  with a reset that can overtake the close frame. Here the rest is read and thrown away until the
  peer is quiet, so that it sees 1009 and its reason.
* A handshake that the application refuses with an HTTP response counts as one that it forgot to
  complete, and is logged as an error. Here it is complete.

The buffers of socket and transport are kept small: text is a trickle, a connection that does not
read costs little memory then, and what waits is merged in the outbox instead of queueing here.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

if TYPE_CHECKING:
    from asyncio import BaseTransport

    from uvicorn._types import ASGISendEvent
    from websockets.frames import Frame

WRITE_HIGH_WATER_BYTES = 32 * 1024
SEND_BUFFER_BYTES = 64 * 1024
CLOSE_TIMEOUT_S = 5.0
QUIET_S = 0.5


class WebSocketTransport(WebSocketsSansIOProtocol):
    """One WebSocket connection; built by uvicorn for every upgraded request."""

    _give_up_at: float

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self.close_timeout = CLOSE_TIMEOUT_S
        self.transport.set_write_buffer_limits(high=WRITE_HIGH_WATER_BYTES)
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)

    async def send(self, message: ASGISendEvent) -> None:
        is_close = message["type"] == "websocket.close"
        if is_close:
            self.writable.set()
        if self.close_sent and message["type"] in ("websocket.send", "websocket.close"):
            raise ClientDisconnected  # closed by us for a violation; the app will hear of it
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and self.close_sent:
            self.handshake_complete = True
        if is_close:
            self._drop_after_timeout()

    def data_received(self, data: bytes) -> None:
        if self.conn.parser_exc is not None:
            self.conn.receive_data(data)  # after a violation: read on, keep nothing
            self._close_when_quiet()
            return
        super().data_received(data)

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is None:
            self.transport.close()
            return
        code, reason = self.conn.close_sent.code, self.conn.close_sent.reason
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": reason})
        self.transport.write(b"".join(self.conn.data_to_send()))
        self.close_sent = True
        if self.read_paused:
            self.read_paused = False
            self.transport.resume_reading()
        self._give_up_at = self.loop.time() + self.close_timeout
        self._close_when_quiet()

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self._drop_after_timeout()

    def handle_close(self, event: Frame) -> None:
        super().handle_close(event)
        if self.transport.is_closing():
            self._drop_after_timeout()

    def _close_when_quiet(self) -> None:
        if self.disconnected:
            return
        if self.close_timer is not None:
            self.close_timer.cancel()
        quiet_at = self.loop.time() + QUIET_S
        self.close_timer = self.loop.call_at(min(quiet_at, self._give_up_at), self.transport.abort)

    def _drop_after_timeout(self) -> None:
        if self.disconnected:
            return
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_later(self.close_timeout, self.transport.abort)
