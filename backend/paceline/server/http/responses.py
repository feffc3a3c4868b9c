"""`POST /v1/responses`: the events of the WebSocket as server-sent events, or the last one's
response as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from paceline.server.http.answer import frame
from paceline.server.http.client_names import ClientNames
from paceline.server.http.endpoint import Ask
from paceline.server.refusals import OPTION_NAMES
from paceline_protocol.codecs import client_event
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.requests import ResponseCreate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.server.gateway import Gateway
    from paceline_protocol.events import ErrorDetails, ServerEvent
    from paceline_protocol.responses import Response


def parse_response(value: dict[str, Any], gateway: Gateway) -> Ask:
    """See `endpoint.Endpoint`. Sampling parameters may stand beside `paceline` here, where clients
    of other servers put them."""
    is_stream = value.get("stream")
    if not isinstance(is_stream, bool | None):
        raise ProtocolError(ErrorCode.INVALID_TYPE, "stream must be true or false", param="stream")
    misplaced = [name for name in value if name in OPTION_NAMES - {"include"}]
    body = {name: each for name, each in value.items() if name not in misplaced}
    if misplaced:
        options = body.get("paceline") or {}
        if not isinstance(options, dict):
            raise ProtocolError(
                ErrorCode.INVALID_TYPE, "paceline must be an object", param="paceline"
            )
        body["paceline"] = options | {name: value[name] for name in misplaced}
    body.pop("stream_id", None)
    names = {f"paceline.{name}": name for name in misplaced}
    try:
        message = client_event(body | {"type": "response.create"})
    except ProtocolError as error:
        ClientNames(names).put_into(error)
        raise
    assert isinstance(message, ResponseCreate)
    key = value.get("prompt_cache_key") or value.get("user")
    return Ask(
        (message,), ResponsesView(), bool(is_stream), names, key if isinstance(key, str) else None
    )


class ResponsesView:
    """Events as they are."""

    shows_failures = True

    def __init__(self) -> None:
        self._num_sent = 0

    def on_event(self, index: int, event: ServerEvent) -> Iterable[bytes]:
        self._num_sent += 1
        yield frame(event, str(event.__struct_config__.tag))

    def on_end(self, responses: Sequence[Response]) -> Iterable[bytes]:
        return ()

    def on_error(self, details: ErrorDetails) -> Iterable[bytes]:
        plain = msgspec.structs.asdict(details) | {
            "type": "error",
            "sequence_number": self._num_sent,
        }
        yield frame(plain, "error")

    def body(self, responses: Sequence[Response]) -> Any:
        return responses[0]
