"""The events of one response, in the order that the protocol promises.

    created, in_progress,
        [ output_item.added, content_part.added, output_text.delta ...,
          output_text.done, content_part.done, output_item.done ],
    completed | incomplete | failed

The bracket opens with the first text and is missing when there never was any. Sequence numbers are
the outbox's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from paceline_protocol.events import (
    ContentPartAdded,
    ContentPartDone,
    DeltaTokens,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ResponseCompleted,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    SourcedToken,
)
from paceline_protocol.items import OutputMessage, OutputText
from paceline_protocol.responses import IncompleteDetails

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec import UnsetType

    from paceline.core.events import CommittedToken
    from paceline_protocol.events import ServerEvent
    from paceline_protocol.items import ItemStatus
    from paceline_protocol.responses import (
        PacelineSummary,
        Response,
        ResponseError,
        ResponseUsage,
    )

_OUTPUT_INDEX = 0
_CONTENT_INDEX = 0


class ResponseStream:
    """Builds events for one response; every method returns those to send now.

    response: the object with status `in_progress` and no output. with_tokens: text deltas carry
    their tokens. `begin` is called once and first, exactly one of the `finish_*` once and last.
    """

    def __init__(
        self, response: Response, *, item_id: str, stream_id: str | None, with_tokens: bool
    ) -> None:
        self._response = response
        self._item_id = item_id
        self._stream_id: str | UnsetType = UNSET if stream_id is None else stream_id
        self._with_tokens = with_tokens
        self._texts: list[str] = []
        self._unsent_tokens: list[SourcedToken] = []
        self._is_item_open = False

    @property
    def text(self) -> str:
        """All text so far."""
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
        if not text:
            return []
        return [*self._open_item(), self._delta(text)]

    def finish_completed(
        self, usage: ResponseUsage, summary: PacelineSummary, now: float
    ) -> list[ServerEvent]:
        """The model or a stop string ended the answer."""
        events = [*self._open_item(), *self._close_item("completed")]
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
        events = [*self._open_item(), *self._close_item("incomplete")]
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
        """The client (or a server that goes away) ended it. None: it never reached the engine."""
        events = self._close_item("incomplete")
        response = self._final(status="cancelled", usage=usage, paceline=summary)
        return [*events, ResponseIncomplete(response=response, stream_id=self._stream_id)]

    def finish_failed(
        self,
        error: ResponseError,
        usage: ResponseUsage | None,
        summary: PacelineSummary | None,
    ) -> list[ServerEvent]:
        """The engine could not go on with it."""
        events = self._close_item("incomplete")
        response = self._final(status="failed", error=error, usage=usage, paceline=summary)
        return [*events, ResponseFailed(response=response, stream_id=self._stream_id)]

    def _open_item(self) -> list[ServerEvent]:
        if self._is_item_open:
            return []
        self._is_item_open = True
        return [
            OutputItemAdded(
                output_index=_OUTPUT_INDEX,
                item=OutputMessage(id=self._item_id, status="in_progress", content=[]),
                stream_id=self._stream_id,
            ),
            ContentPartAdded(
                item_id=self._item_id,
                output_index=_OUTPUT_INDEX,
                content_index=_CONTENT_INDEX,
                part=OutputText(text=""),
                stream_id=self._stream_id,
            ),
        ]

    def _delta(self, text: str) -> OutputTextDelta:
        self._texts.append(text)
        tokens, self._unsent_tokens = self._unsent_tokens, []
        return OutputTextDelta(
            item_id=self._item_id,
            output_index=_OUTPUT_INDEX,
            content_index=_CONTENT_INDEX,
            delta=text,
            paceline=DeltaTokens(tokens=tokens) if self._with_tokens else UNSET,
            stream_id=self._stream_id,
        )

    def _close_item(self, status: ItemStatus) -> list[ServerEvent]:
        if not self._is_item_open:
            return []
        # Tokens without text (an end token, say) still belong to the story of the response.
        last: list[ServerEvent] = [self._delta("")] if self._unsent_tokens else []
        message = self._message(status)
        return [
            *last,
            OutputTextDone(
                item_id=self._item_id,
                output_index=_OUTPUT_INDEX,
                content_index=_CONTENT_INDEX,
                text=self.text,
                stream_id=self._stream_id,
            ),
            ContentPartDone(
                item_id=self._item_id,
                output_index=_OUTPUT_INDEX,
                content_index=_CONTENT_INDEX,
                part=message.content[0],
                stream_id=self._stream_id,
            ),
            OutputItemDone(output_index=_OUTPUT_INDEX, item=message, stream_id=self._stream_id),
        ]

    def _message(self, status: ItemStatus) -> OutputMessage:
        return OutputMessage(id=self._item_id, status=status, content=[OutputText(text=self.text)])

    def _final(self, **changes: object) -> Response:
        status: ItemStatus = "completed" if changes["status"] == "completed" else "incomplete"
        output = [self._message(status)] if self._is_item_open else []
        return msgspec.structs.replace(self._response, output=output, **changes)
