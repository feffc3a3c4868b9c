"""The events of one output item, from its first character to its last.

One class for each kind of item, all with the same three steps: `open` once, `append` any number of
times, `close` once. `item` is the item as it stands in the response.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import UNSET

from paceline_protocol.events import (
    ContentPartAdded,
    ContentPartDone,
    DeltaTokens,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
)
from paceline_protocol.items import (
    FunctionCall,
    OutputMessage,
    OutputText,
    Reasoning,
    ReasoningText,
)

if TYPE_CHECKING:
    from msgspec import UnsetType

    from paceline_protocol.events import ServerEvent, SourcedToken
    from paceline_protocol.items import ItemStatus, Logprob, OutputItem

_CONTENT_INDEX = 0


@dataclass(slots=True)
class MessageBuilder:
    """A message with one text part."""

    item_id: str
    output_index: int
    stream_id: str | UnsetType
    status: ItemStatus = "in_progress"
    _texts: list[str] = field(default_factory=list)
    _logprobs: list[Logprob] = field(default_factory=list)

    @property
    def item(self) -> OutputItem:
        return OutputMessage(id=self.item_id, status=self.status, content=[self._part()])

    def open(self) -> list[ServerEvent]:
        return [
            OutputItemAdded(
                output_index=self.output_index,
                item=OutputMessage(id=self.item_id, status="in_progress", content=[]),
                stream_id=self.stream_id,
            ),
            ContentPartAdded(
                item_id=self.item_id,
                output_index=self.output_index,
                content_index=_CONTENT_INDEX,
                part=OutputText(text=""),
                stream_id=self.stream_id,
            ),
        ]

    def append(
        self,
        text: str,
        logprobs: list[Logprob] | None = None,
        tokens: list[SourcedToken] | None = None,
    ) -> list[ServerEvent]:
        """tokens: None where the request did not ask for them."""
        self._texts.append(text)
        self._logprobs.extend(logprobs or ())
        return [
            OutputTextDelta(
                item_id=self.item_id,
                output_index=self.output_index,
                content_index=_CONTENT_INDEX,
                delta=text,
                logprobs=logprobs or [],
                paceline=UNSET if tokens is None else DeltaTokens(tokens=tokens),
                stream_id=self.stream_id,
            )
        ]

    def close(self, status: ItemStatus) -> list[ServerEvent]:
        self.status = status
        part = self._part()
        return [
            OutputTextDone(
                item_id=self.item_id,
                output_index=self.output_index,
                content_index=_CONTENT_INDEX,
                text=part.text,
                logprobs=self._logprobs,
                stream_id=self.stream_id,
            ),
            ContentPartDone(
                item_id=self.item_id,
                output_index=self.output_index,
                content_index=_CONTENT_INDEX,
                part=part,
                stream_id=self.stream_id,
            ),
            OutputItemDone(
                output_index=self.output_index, item=self.item, stream_id=self.stream_id
            ),
        ]

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._texts), logprobs=self._logprobs or None)


@dataclass(slots=True)
class CallBuilder:
    """A call of a function. call_id: what its output will name."""

    item_id: str
    output_index: int
    stream_id: str | UnsetType
    call_id: str
    name: str
    status: ItemStatus = "in_progress"
    _parts: list[str] = field(default_factory=list)

    @property
    def item(self) -> OutputItem:
        return FunctionCall(
            id=self.item_id,
            call_id=self.call_id,
            name=self.name,
            arguments="".join(self._parts),
            status=self.status,
        )

    def open(self) -> list[ServerEvent]:
        return [
            OutputItemAdded(
                output_index=self.output_index, item=self.item, stream_id=self.stream_id
            )
        ]

    def append(self, text: str) -> list[ServerEvent]:
        self._parts.append(text)
        return [
            FunctionCallArgumentsDelta(
                item_id=self.item_id,
                output_index=self.output_index,
                delta=text,
                stream_id=self.stream_id,
            )
        ]

    def close(self, status: ItemStatus) -> list[ServerEvent]:
        self.status = status
        return [
            FunctionCallArgumentsDone(
                item_id=self.item_id,
                output_index=self.output_index,
                name=self.name,
                arguments="".join(self._parts),
                stream_id=self.stream_id,
            ),
            OutputItemDone(
                output_index=self.output_index, item=self.item, stream_id=self.stream_id
            ),
        ]


@dataclass(slots=True)
class ReasoningBuilder:
    """What the model thinks before it answers."""

    item_id: str
    output_index: int
    stream_id: str | UnsetType
    status: ItemStatus = "in_progress"
    _texts: list[str] = field(default_factory=list)

    @property
    def item(self) -> OutputItem:
        return Reasoning(
            id=self.item_id,
            content=[ReasoningText(text="".join(self._texts))] if self._texts else [],
            status=self.status,
        )

    def open(self) -> list[ServerEvent]:
        return [
            OutputItemAdded(
                output_index=self.output_index, item=self.item, stream_id=self.stream_id
            )
        ]

    def append(self, text: str) -> list[ServerEvent]:
        self._texts.append(text)
        return [
            ReasoningTextDelta(
                item_id=self.item_id,
                output_index=self.output_index,
                content_index=_CONTENT_INDEX,
                delta=text,
                stream_id=self.stream_id,
            )
        ]

    def close(self, status: ItemStatus) -> list[ServerEvent]:
        self.status = status
        return [
            ReasoningTextDone(
                item_id=self.item_id,
                output_index=self.output_index,
                content_index=_CONTENT_INDEX,
                text="".join(self._texts),
                stream_id=self.stream_id,
            ),
            OutputItemDone(
                output_index=self.output_index, item=self.item, stream_id=self.stream_id
            ),
        ]


ItemBuilder = MessageBuilder | CallBuilder | ReasoningBuilder
