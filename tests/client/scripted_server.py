"""A small server on a real loopback socket whose answers follow from what it is asked.

`hold ...`: sends one word, then waits for a cancellation. `fail`: fails after one word. `refuse`:
answers with an error. `drop`: breaks the connection after one word. `flood N`: sends N deltas.
`cut N`: sends one word and ends as after N tokens, at the limit that was asked for.
Anything else is answered with its own words in upper case.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import msgspec
from msgspec import UNSET
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

from paceline_protocol import ErrorCode, ProtocolError, negotiate
from paceline_protocol import messages as m

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from websockets.http11 import Request, Response


class ScriptedServer:
    """received: every client event with the number of its connection, counted from 1."""

    def __init__(self, *, api_key: str | None = None) -> None:
        self.received: list[tuple[int, m.ClientEvent]] = []
        self.num_connections = 0
        self._running = 0
        self._changed = anyio.Event()
        self.drop_next_request = False
        self.connections: list[_Connection] = []
        self._api_key = api_key
        self._num_responses = 0
        self.url = ""

    def requests(self) -> list[m.ResponseCreate]:
        return [event for _, event in self.received if isinstance(event, m.ResponseCreate)]

    def cancellations(self) -> list[m.ResponseCancel]:
        return [event for _, event in self.received if isinstance(event, m.ResponseCancel)]

    def count_running(self, change: int) -> None:
        self._running += change
        self._changed.set()
        self._changed = anyio.Event()

    def next_response_id(self) -> str:
        self._num_responses += 1
        return f"resp_{self._num_responses}"

    async def until_idle(self) -> None:
        """Until no response runs."""
        while self._running:
            await self._changed.wait()

    def authorise(self, connection: ServerConnection, request: Request) -> Response | None:
        if self._api_key and request.headers.get("Authorization") != f"Bearer {self._api_key}":
            return connection.respond(401, "the API key is wrong\n")
        return None

    async def handle(self, socket: ServerConnection) -> None:
        self.num_connections += 1
        connection = _Connection(self, socket, self.num_connections)
        self.connections.append(connection)
        await connection.run()


class _Connection:
    def __init__(self, server: ScriptedServer, socket: ServerConnection, number: int) -> None:
        self.socket = socket
        self.held: set[str] = set()
        self._server = server
        self._number = number
        self._codec = negotiate([socket.subprotocol] if socket.subprotocol else []).codec
        self._cancelled: dict[str, anyio.Event] = {}
        self._lane_of: dict[str, str] = {}

    async def run(self) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                async for payload in self.socket:
                    try:
                        event = self._codec.decode_client(payload)
                    except ProtocolError as error:
                        await self.send(m.ErrorEvent.from_error(error))
                        continue
                    self._server.received.append((self._number, event))
                    if self._server.drop_next_request:
                        self._server.drop_next_request = False
                        self.socket.transport.abort()
                        return
                    await self._take(event, tasks)
                tasks.cancel_scope.cancel()
        except* ConnectionClosed:
            pass

    async def send(self, event: m.ServerEvent) -> None:
        await self.socket.send(self._codec.encode(event))

    async def _take(self, event: m.ClientEvent, tasks: anyio.abc.TaskGroup) -> None:
        match event:
            case m.ResponseCreate(previous_response_id=str(previous)) if previous not in self.held:
                await self.send(
                    m.ErrorEvent.of(
                        ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND,
                        f"previous_response_id is {previous!r}, which this connection lacks",
                        param="previous_response_id",
                        stream_id=event.stream_id,
                    )
                )
            case m.ResponseCreate() | m.CompletionCreate():
                lane = event.stream_id or ""
                self._cancelled[lane] = anyio.Event()
                tasks.start_soon(self._respond, event, lane)
            case m.ResponseCancel():
                lane = event.stream_id or self._lane_of.get(event.response_id or "", "")
                if lane in self._cancelled:
                    self._cancelled[lane].set()
                else:
                    await self.send(
                        m.ErrorEvent.of(
                            ErrorCode.RESPONSE_NOT_FOUND,
                            "no such response runs",
                            stream_id=event.stream_id,
                        )
                    )
            case m.TelemetrySubscribe(scope="server"):
                await self.send(
                    m.ErrorEvent.of(
                        ErrorCode.PERMISSION_DENIED,
                        "scope `server` needs the admin key",
                        param="scope",
                        stream_id=event.stream_id,
                    )
                )
            case m.TelemetrySubscribe():
                for number in range(3):
                    await self.send(
                        m.TelemetrySample(
                            scope="session",
                            time=float(number),
                            sessions=[],
                            sequence_number=number,
                            stream_id=event.stream_id or UNSET,
                        )
                    )

    async def _respond(self, request: m.ResponseCreate | m.CompletionCreate, lane: str) -> None:
        self._server.count_running(1)
        try:
            await self._stream(request, lane)
        finally:
            self._server.count_running(-1)

    async def _stream(self, request: m.ResponseCreate | m.CompletionCreate, lane: str) -> None:
        text = _asked(request)
        stream_id = lane or UNSET
        if text == "refuse":
            del self._cancelled[lane]
            await self.send(
                m.ErrorEvent.of(
                    ErrorCode.QUEUE_FULL, "64 requests wait already", stream_id=lane or None
                )
            )
            return
        response_id = self._server.next_response_id()
        self._lane_of[response_id] = lane
        item_id = response_id.replace("resp", "msg")

        def response(status: m.ResponseStatus, so_far: str = "") -> m.Response:
            content = [m.OutputText(text=so_far)]
            item = m.OutputMessage(id=item_id, status="completed", content=content)
            return m.Response(
                id=response_id,
                created_at=0.0,
                model="scripted",
                status=status,
                output=[item] if so_far else [],
                error=m.ResponseError(code="server_error", message="the script says so")
                if status == "failed"
                else None,
            )

        await self.send(m.ResponseCreated(response=response("in_progress"), stream_id=stream_id))
        said = ""
        for word in _words(text):
            await self.send(
                m.OutputTextDelta(
                    item_id=item_id,
                    output_index=0,
                    content_index=0,
                    delta=word,
                    stream_id=stream_id,
                )
            )
            said += word
        cancelled = self._cancelled[lane]
        if text == "drop":
            self.socket.transport.abort()
            return
        if text.startswith("hold"):
            await cancelled.wait()
        del self._cancelled[lane]
        self.held.add(response_id)
        end: m.TerminalEvent
        if text == "fail":
            end = m.ResponseFailed(response=response("failed", said), stream_id=stream_id)
        elif text.startswith("cut "):
            cut = msgspec.structs.replace(
                response("incomplete", said),
                incomplete_details=m.IncompleteDetails(reason="max_output_tokens"),
                max_output_tokens=request.max_output_tokens,
                usage=_usage(num_output=int(text[4:])),
            )
            end = m.ResponseIncomplete(response=cut, stream_id=stream_id)
        elif cancelled.is_set():
            end = m.ResponseIncomplete(response=response("cancelled", said), stream_id=stream_id)
        else:
            end = m.ResponseCompleted(response=response("completed", said), stream_id=stream_id)
        await self.send(end)


def _usage(*, num_output: int) -> m.ResponseUsage:
    return m.ResponseUsage(
        input_tokens=1,
        input_tokens_details=m.InputTokensDetails(cached_tokens=0),
        output_tokens=num_output,
        output_tokens_details=m.OutputTokensDetails(reasoning_tokens=0),
        total_tokens=1 + num_output,
    )


def _asked(request: m.ResponseCreate | m.CompletionCreate) -> str:
    if isinstance(request, m.CompletionCreate):
        assert isinstance(request.prompt, str), "the client sends text"
        return request.prompt
    if isinstance(request.input, str):
        return request.input
    last = (request.input or [m.MessageItem(role="user", content="")])[-1]
    assert isinstance(last, m.MessageItem)
    assert isinstance(last.content, str)
    return last.content


def _words(text: str) -> list[str]:
    if text.startswith("flood "):
        return [f"{number} " for number in range(int(text.split()[1]))]
    if text.split()[:1] in (["hold"], ["fail"], ["drop"], ["cut"]):
        return ["WORD"]
    return [f"{word} " for word in text.upper().split()]


def _select(connection: ServerConnection, offered: Sequence[Subprotocol]) -> Subprotocol | None:
    del connection
    chosen = negotiate(offered).subprotocol
    return None if chosen is None else Subprotocol(chosen)


@asynccontextmanager
async def scripted_server(*, api_key: str | None = None) -> AsyncIterator[ScriptedServer]:
    server = ScriptedServer(api_key=api_key)
    async with serve(
        server.handle,
        "127.0.0.1",
        0,
        select_subprotocol=_select,
        process_request=server.authorise,
    ) as listening:
        host, port = next(iter(listening.sockets)).getsockname()[:2]
        server.url = f"ws://{host}:{port}"
        yield server
