"""Everything that the client raises on purpose, in one tree.

PacelineClientError
+-- ConnectError              no connection came about; `url` says where to
|   +-- AuthenticationError   the server wants another key, or another origin
|   +-- ServerBusyError       the server takes no more connections now
+-- ConnectionLostError       the connection ended under an open response
+-- SessionClosedError        used after its `async with` block ended
+-- RequestRefusedError       the server answered with an `error` event
|   +-- PreviousResponseNotFoundError   it doesn't hold that response (any more)
|   +-- QueueFullError                  too many requests wait; try again later
+-- ResponseFailedError       a response began and failed; `response` holds what there is
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline_protocol import ErrorCode

if TYPE_CHECKING:
    from paceline_protocol.messages import ErrorEvent, Response


class PacelineClientError(Exception):
    """Root of the tree."""


class ConnectError(PacelineClientError):
    """No connection came about. `url` is where to, `reason` why not, in one line."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no connection to {url}: {reason}")
        self.url = url
        self.reason = reason


class AuthenticationError(ConnectError):
    """The server refused who we are (401, 403)."""


class ServerBusyError(ConnectError):
    """The server is there and takes no connection now (429, 503)."""


class ConnectionLostError(PacelineClientError):
    """The connection ended while a response was open. The session connects anew when it is used
    again. `code` and `reason` are those of the WebSocket close; code is None if there was none."""

    def __init__(self, code: int | None, reason: str) -> None:
        shown = f" ({code}{': ' + reason if reason else ''})" if code is not None else ""
        super().__init__(f"the connection to the server was lost{shown}")
        self.code = code
        self.reason = reason


class SessionClosedError(PacelineClientError):
    """The session's `async with` block has ended."""

    def __init__(self) -> None:
        super().__init__("the session is closed")


class RequestRefusedError(PacelineClientError):
    """The server refused a request.

    code: an `ErrorCode`, as text because a newer server may know more. param: the path of what is
    wrong in the request, or None. status: the HTTP status that would fit.
    """

    def __init__(self, event: ErrorEvent) -> None:
        super().__init__(event.error.message)
        self.code = event.error.code
        self.message = event.error.message
        self.param = event.error.param
        self.status = event.status


class PreviousResponseNotFoundError(RequestRefusedError):
    """The server doesn't hold the previous response, and the client doesn't remember its items."""


class QueueFullError(RequestRefusedError):
    """Too many requests wait; try again later."""


class ResponseFailedError(PacelineClientError):
    """The response failed on the server. `response.output_text` holds the text until then."""

    def __init__(self, response: Response) -> None:
        error = response.error
        super().__init__("the response failed" if error is None else error.message)
        self.response = response


def refusal(event: ErrorEvent) -> RequestRefusedError:
    """The exception for an `error` event."""
    match event.error.code:
        case ErrorCode.PREVIOUS_RESPONSE_NOT_FOUND:
            return PreviousResponseNotFoundError(event)
        case ErrorCode.QUEUE_FULL:
            return QueueFullError(event)
        case _:
            return RequestRefusedError(event)
