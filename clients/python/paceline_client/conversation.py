"""A conversation: turns that follow one another without the caller keeping books."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Unpack

    from paceline_client.requests import Input, TurnSettings
    from paceline_client.session import Session
    from paceline_client.streams import ResponseStream
    from paceline_protocol.messages import Response


class Conversation:
    """Each `respond` continues after the last response that ended; cancelled and cut ones count,
    failed ones don't. One turn at a time."""

    def __init__(
        self,
        session: Session,
        *,
        instructions: str | None = None,
        **settings: Unpack[TurnSettings],
    ) -> None:
        """settings: those of `Session.respond`, for every turn."""
        self.instructions = instructions
        self._session = session
        self._settings = settings
        self._previous: Response | None = None
        self._stream: ResponseStream | None = None

    @property
    def previous(self) -> Response | None:
        """What the next turn continues; None at the start."""
        stream = self._stream
        if stream is not None and stream.is_done and stream.response is not None:
            if stream.response.status in {"completed", "incomplete", "cancelled"}:
                self._previous = stream.response
            self._stream = None
        return self._previous

    def respond(self, input: Input) -> ResponseStream:
        """The next turn."""
        self._stream = self._session.respond(
            input, instructions=self.instructions, previous=self.previous, **self._settings
        )
        return self._stream

    def forget(self) -> None:
        """Start anew."""
        self._stream = None
        self._previous = None
