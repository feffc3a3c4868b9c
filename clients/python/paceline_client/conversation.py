"""A conversation: turns that follow one another without the caller keeping books."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline_client.requests import Input, Options
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
        max_output_tokens: int | None = None,
        temperature: float | None = None,
        top_p: float | None = None,
        paceline: Options = None,
    ) -> None:
        self.instructions = instructions
        self._session = session
        self._max_output_tokens = max_output_tokens
        self._temperature = temperature
        self._top_p = top_p
        self._paceline = paceline
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
            input,
            instructions=self.instructions,
            previous=self.previous,
            max_output_tokens=self._max_output_tokens,
            temperature=self._temperature,
            top_p=self._top_p,
            paceline=self._paceline,
        )
        return self._stream

    def forget(self) -> None:
        """Start anew."""
        self._stream = None
        self._previous = None
