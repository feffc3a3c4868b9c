"""From the bytes of a request's body to a checked structure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from paceline.server.http.errors import Refusal
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.events import ErrorDetails
from paceline_protocol.faults import as_protocol_error, json_fault, kind, refuse_misplaced_option

if TYPE_CHECKING:
    from starlette.types import Receive

S = TypeVar("S", bound=msgspec.Struct)


class ClientLeft(Exception):
    """The client closed the connection before its request was complete."""


async def read_body(receive: Receive, max_bytes: int) -> bytes:
    """The whole body. Raises Refusal (413) or ClientLeft."""
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        part: bytes = message.get("body", b"")
        num_bytes += len(part)
        if num_bytes > max_bytes:
            raise Refusal(
                413,
                ErrorDetails(
                    type="invalid_request_error",
                    code="request_too_large",
                    message=f"the body is larger than {max_bytes} bytes, which is the server's "
                    "limit",
                ),
            )
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)


def decode_object(body: bytes) -> dict[str, Any]:
    """The body's JSON object in plain values. Raises ProtocolError."""
    if not body.strip():
        raise ProtocolError(
            ErrorCode.INVALID_JSON,
            "the body is empty; it must be a JSON object with what this address takes, which "
            "/openapi.json describes",
        )
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise ProtocolError(ErrorCode.INVALID_JSON, "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise ProtocolError(
            ErrorCode.INVALID_JSON, f"the body is not valid JSON: {json_fault(body, error)}"
        ) from None
    if not isinstance(value, dict):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, f"the body must be a JSON object, not {kind(value)}"
        )
    return value


def convert(value: dict[str, Any], cls: type[S]) -> S:
    """Plain values as a structure. Raises ProtocolError that names the field."""
    refuse_misplaced_option(value, cls)
    try:
        return msgspec.convert(value, cls, str_keys=True)
    except msgspec.ValidationError as error:
        raise as_protocol_error(error, cls, value) from None
    except RecursionError:
        raise ProtocolError(ErrorCode.INVALID_VALUE, "the body is nested too deeply") from None


def refuse_present(value: dict[str, Any], unserved: dict[str, str]) -> None:
    """Raises ProtocolError for the first field that would change the answer and is not served.

    unserved: from the field to what to do instead. null, false, 0 and empty values ask for nothing.
    """
    for name, instead in unserved.items():
        if value.get(name):
            raise ProtocolError(
                ErrorCode.UNSUPPORTED_PARAMETER, f"{name} is not served; {instead}", param=name
            )
