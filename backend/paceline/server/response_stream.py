"""The events of one response, in the order that the protocol promises.

    created, in_progress,
        [ item: added, deltas ..., dones ] ...
    completed | incomplete | failed

An item opens with its first character; a completed response has at least one. Sequence numbers are
the outbox's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from paceline.server.response_items import CallBuilder, MessageBuilder, ReasoningBuilder
from paceline.server.tool_calls.pieces import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    PlainText,
    ReasoningPiece,
    TextPiece,
)
from paceline_protocol.events import (
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    SourcedToken,
)
from paceline_protocol.responses import IncompleteDetails

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from msgspec import UnsetType

    from paceline.core.events import CommittedToken
    from paceline.server.response_items import ItemBuilder
    from paceline.server.tool_calls.pieces import OutputParser, Piece
    from paceline_protocol.events import ServerEvent
    from paceline_protocol.items import ItemStatus, Logprob
    from paceline_protocol.responses import (
        PacelineSummary,
        Response,
        ResponseError,
        ResponseUsage,
    )


class ResponseStream:
    """Builds events for one response; every method returns those to send now.

    response: the object with status `in_progress` and no output. new_id: a fresh id with the given
    prefix. with_tokens: text deltas carry their tokens. logprob_of: where log-probabilities were
    asked for, the wire's form of a token's; None for a token that has none. parser: splits the
    text. `begin` is called once and first, exactly one of the `finish_*` once and last.
    """

    def __init__(
        self,
        response: Response,
        *,
        new_id: Callable[[str], str],
        stream_id: str | None,
        with_tokens: bool,
        logprob_of: Callable[[CommittedToken], Logprob | None] | None = None,
        parser: OutputParser | None = None,
    ) -> None:
        self._response = response
        self._new_id = new_id
        self._stream_id: str | UnsetType = UNSET if stream_id is None else stream_id
        self._with_tokens = with_tokens
        self._logprob_of = logprob_of
        self._parser: OutputParser = parser or PlainText()
        self._texts: list[str] = []
        self._unsent_tokens: list[SourcedToken] = []
        self._unsent_logprobs: list[Logprob] = []
        self._items: list[ItemBuilder] = []
        self._is_item_open = False

    @property
    def text(self) -> str:
        """All that the model wrote so far, markers and all."""
        return "".join(self._texts)

    def begin(self) -> list[ServerEvent]:
        """The request was taken and goes to the engine."""
        return [
            ResponseCreated(response=self._response, stream_id=self._stream_id),
            ResponseInProgress(response=self._response, stream_id=self._stream_id),
        ]

    def append(self, text: str, tokens: Sequence[CommittedToken]) -> list[ServerEvent]:
        """Committed tokens and the text that became certain with them."""
        if self._with_tokens:
            self._unsent_tokens.extend(
                SourcedToken(id=token.token_id, text=token.text, source=token.source.value)
                for token in tokens
            )
        if self._logprob_of is not None:
            found = (self._logprob_of(token) for token in tokens)
            self._unsent_logprobs.extend(logprob for logprob in found if logprob is not None)
        if not text:
            return []
        self._texts.append(text)
        return self._take(self._parser.push(text))

    def finish_completed(
        self, usage: ResponseUsage, summary: PacelineSummary, now: float
    ) -> list[ServerEvent]:
        """The model or a stop string ended the answer."""
        events = self._close_output("completed", is_answered=True)
        response = self._final(status="completed", usage=usage, paceline=summary, completed_at=now)
        return [*events, ResponseCompleted(response=response, stream_id=self._stream_id)]

    def finish_empty(
        self, usage: ResponseUsage, summary: PacelineSummary, now: float
    ) -> list[ServerEvent]:
        """A prompt was prepared and no output was asked for."""
        response = msgspec.structs.replace(
            self._response, status="completed", usage=usage, paceline=summary, completed_at=now
        )
        return [ResponseCompleted(response=response, stream_id=self._stream_id)]

    def finish_at_limit(self, usage: ResponseUsage, summary: PacelineSummary) -> list[ServerEvent]:
        """The token limit or the end of the context cut the answer off."""
        events = self._close_output("incomplete", is_answered=True)
        response = self._final(
            status="incomplete",
            usage=usage,
            paceline=summary,
            incomplete_details=IncompleteDetails(reason="max_output_tokens"),
        )
        return [*events, ResponseIncomplete(response=response, stream_id=self._stream_id)]

    def finish_cancelled(
        self, usage: ResponseUsage | None, summary: PacelineSummary | None
    ) -> list[ServerEvent]:
        """The client ended it. None: it never reached the engine."""
        events = self._close_output("incomplete", is_answered=False)
        response = self._final(status="cancelled", usage=usage, paceline=summary)
        return [*events, ResponseIncomplete(response=response, stream_id=self._stream_id)]

    def finish_failed(
        self,
        error: ResponseError,
        usage: ResponseUsage | None,
        summary: PacelineSummary | None,
    ) -> list[ServerEvent]:
        """It could not go on, or the server goes away. None: it never reached the engine."""
        events = self._close_output("incomplete", is_answered=False)
        response = self._final(status="failed", error=error, usage=usage, paceline=summary)
        return [*events, ResponseFailed(response=response, stream_id=self._stream_id)]

    def _take(self, pieces: Iterable[Piece]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        for piece in pieces:
            match piece:
                case TextPiece(text):
                    message = self._message(events)
                    events += message.append(text, self._take_logprobs(), self._take_tokens())
                case ReasoningPiece(text):
                    reasoning = self._reasoning(events)
                    events += reasoning.append(text)
                case CallBegun(name):
                    events += self._close("completed")
                    call = CallBuilder(
                        self._new_id("fc"),
                        len(self._items),
                        self._stream_id,
                        self._new_id("call"),
                        name,
                    )
                    events += self._begin(call)
                case ArgumentsPiece(text):
                    call_or_other = self._items[-1]
                    assert isinstance(call_or_other, CallBuilder)
                    events += call_or_other.append(text)
                case CallEnded():
                    events += self._close("completed")
        return events

    def _message(self, events: list[ServerEvent]) -> MessageBuilder:
        """The open message, or a new one."""
        if self._is_item_open and isinstance(self._items[-1], MessageBuilder):
            return self._items[-1]
        events += self._close("completed")
        message = MessageBuilder(self._new_id("msg"), len(self._items), self._stream_id)
        events += self._begin(message)
        return message

    def _reasoning(self, events: list[ServerEvent]) -> ReasoningBuilder:
        """The open thought, or a new one."""
        if self._is_item_open and isinstance(self._items[-1], ReasoningBuilder):
            return self._items[-1]
        events += self._close("completed")
        reasoning = ReasoningBuilder(self._new_id("rs"), len(self._items), self._stream_id)
        events += self._begin(reasoning)
        return reasoning

    def _begin(self, item: ItemBuilder) -> list[ServerEvent]:
        self._items.append(item)
        self._is_item_open = True
        return item.open()

    def _close(self, status: ItemStatus) -> list[ServerEvent]:
        """End the open item, if there is one."""
        if not self._is_item_open:
            return []
        self._is_item_open = False
        item = self._items[-1]
        if not isinstance(item, MessageBuilder):
            return item.close(status)
        # Tokens without text (an end token, say) still belong to the story of the response.
        last: list[ServerEvent] = []
        if self._unsent_tokens or self._unsent_logprobs:
            last = item.append("", self._take_logprobs(), self._take_tokens())
        return [*last, *item.close(status)]

    def _close_output(self, status: ItemStatus, *, is_answered: bool) -> list[ServerEvent]:
        """End the output. is_answered: an answer of nothing is an empty message."""
        events = self._take(self._parser.finish())
        if is_answered and not self._items:
            self._message(events)
        return events + self._close(status)

    def _take_tokens(self) -> list[SourcedToken] | None:
        if not self._with_tokens:
            return None
        tokens, self._unsent_tokens = self._unsent_tokens, []
        return tokens

    def _take_logprobs(self) -> list[Logprob]:
        logprobs, self._unsent_logprobs = self._unsent_logprobs, []
        return logprobs

    def _final(self, **changes: object) -> Response:
        output = [item.item for item in self._items]
        return msgspec.structs.replace(self._response, output=output, **changes)
