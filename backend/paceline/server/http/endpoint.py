"""What all endpoints that generate have in common: from an HTTP request to its answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog
from starlette.datastructures import Headers

from paceline.server.http.answer import Answer
from paceline.server.http.bodies import ClientLeft, decode_object, read_body
from paceline.server.http.client_names import ClientNames
from paceline.server.http.errors import Refusal, error_response
from paceline_protocol.errors import ErrorCode, ProtocolError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from starlette.types import Receive, Scope, Send

    from paceline.server.gateway import Gateway
    from paceline.server.http.answer import View
    from paceline.server.http.exchange import Exchange
    from paceline_protocol.events import ServerEvent
    from paceline_protocol.requests import CompletionCreate, ResponseCreate

log: structlog.stdlib.BoundLogger = structlog.get_logger("paceline.server")

MAX_CHOICES = 128


@dataclass(frozen=True, slots=True)
class Ask:
    """What a body asks for.

    messages: one for each response, each in a lane of its own if there are several. view: shows the
    responses. names: see `ClientNames`.
    client_key: what the client calls itself, so that what speculation learns outlives the request.
    watch: makes the function that sees each event first and may cancel; responses may then end as
    cancelled.
    """

    messages: tuple[ResponseCreate | CompletionCreate, ...]
    view: View
    is_stream: bool
    names: dict[str, str]
    client_key: str | None = None
    watch: Callable[[Exchange], Callable[[ServerEvent], None]] | None = None


class Endpoint:
    """An ASGI application that answers POSTs.

    parse: from the body in plain values to what it asks for; raises ProtocolError with paths in the
    client's body.
    """

    def __init__(self, gateway: Gateway, parse: Callable[[dict[str, Any], Gateway], Ask]) -> None:
        self._gateway = gateway
        self._parse = parse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._serve(scope, receive, send)
        except ClientLeft:
            return
        except Refusal as refusal:
            response = error_response(refusal.status, refusal.details, refusal.headers)
            await response(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises Refusal or ClientLeft as long as nothing has been sent."""
        headers = Headers(scope=scope)
        key = headers.get("x-api-key") or headers.get("api-key")
        denial = self._gateway.check(headers, scope["scheme"], key)
        if denial is not None:
            raise Refusal.of(ProtocolError(denial.code, denial.message))
        with self._gateway.counted():
            body = await read_body(receive, self._gateway.settings.max_message_bytes)
            try:
                ask = self._parse(decode_object(body), self._gateway)
            except ProtocolError as error:
                raise Refusal.of(error) from None
            await self._answer(ask, headers, receive, send)

    async def _answer(self, ask: Ask, headers: Headers, receive: Receive, send: Send) -> None:
        exchange = self._gateway.open_exchange(_session_id(headers, ask.client_key))
        answer = Answer(
            exchange,
            ask.view,
            send,
            lanes=[message.stream_id for message in ask.messages],
            is_stream=ask.is_stream,
            slow_reader_s=self._gateway.settings.slow_reader_s,
            names=ClientNames(ask.names),
            on_progress=None if ask.watch is None else ask.watch(exchange),
        )
        refusals: list[Refusal] = []

        async def write() -> None:
            try:
                await answer.write()
            except Refusal as refusal:
                refusals.append(refusal)
            except Exception:
                log.exception("internal error", session_id=exchange.session.session_id)
                if answer.has_started:
                    raise
                error = ProtocolError(ErrorCode.SERVER_ERROR, "the server made a mistake")
                refusals.append(Refusal.of(error))

        with self._gateway.watched(exchange):
            await exchange.run(ask.messages, receive, write)
        if refusals:
            raise refusals[0]


def _session_id(headers: Headers, client_key: str | None) -> str | None:
    """The same for all requests of a client that names itself; never the same for two API keys."""
    name = headers.get("x-session-id") or client_key
    if not name:
        return None
    owner = headers.get("authorization", "")
    digest = hashlib.blake2b(f"{owner}\0{name}".encode(errors="surrogateescape"), digest_size=12)
    return f"http_{digest.hexdigest()}"
