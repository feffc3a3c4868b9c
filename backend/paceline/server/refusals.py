"""What a request may ask for that this server does not do, in one table each.

The rule: a field that would change the answer and is not served is refused by name; one that would
not is ignored. Ignoring the first kind would be a silent lie, refusing the second would lock out
clients that send it always.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.requests import PacelineOptions, ResponseCreate

if TYPE_CHECKING:
    from paceline_protocol.requests import CompletionCreate

OPTION_NAMES: Final = frozenset(field.name for field in msgspec.structs.fields(PacelineOptions))


def refuse_unserved(message: ResponseCreate | CompletionCreate) -> None:
    """Raises ProtocolError for the first field that would change the answer and is not served."""
    if isinstance(message, ResponseCreate):
        _refuse_openai_fields(message)


def _refuse_openai_fields(message: ResponseCreate) -> None:
    if message.background not in (None, False):
        raise _unsupported(
            "background",
            "is not served; leave it out and wait for the answer, or read it as a stream",
        )
    if message.conversation is not None:
        raise _unsupported("conversation", "is not served; use previous_response_id")
    if message.prompt is not None:
        raise _unsupported("prompt", "is not served; send instructions and input")


def _unsupported(param: str, what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.UNSUPPORTED_PARAMETER, f"{param} {what}", param=param)
