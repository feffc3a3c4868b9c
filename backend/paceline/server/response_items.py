"""The events of one output item, from its first character to its last.

One class for each kind of item, all with the same three steps: `open` once, `append` any number of
times, `close` once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
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
class ItemBuilder(ABC):
    """What all kinds have in common: an item is added, grows, and is done."""

    item_id: str
    output_index: int
    stream_id: str | UnsetType
    status: ItemStatus = field(default="in_progress", init=False)
    _texts: list[str] = field(default_factory=list, init=False)

    @property
    @abstractmethod
    def item(self) -> OutputItem:
        """The item as it stands in the response."""

    @property
    def text(self) -> str:
        """All that was appended."""
        return "".join(self._texts)

    def open(self) -> list[ServerEvent]:
        added = OutputItemAdded(
            output_index=self.output_index, item=self._new_item(), stream_id=self.stream_id
        )
        return [added, *self._begin_content()]

    def close(self, status: ItemStatus) -> list[ServerEvent]:
        self.status = status
        done = OutputItemDone(
            output_index=self.output_index, item=self.item, stream_id=self.stream_id
        )
        return [*self._end_content(), done]

    def _new_item(self) -> OutputItem:
        """The item as it is announced."""
        return self.item

    def _begin_content(self) -> list[ServerEvent]:
        """What follows the announcement."""
        return []

    @abstractmethod
    def _end_content(self) -> list[ServerEvent]:
        """What precedes the end of the item."""


@dataclass(slots=True)
class MessageBuilder(ItemBuilder):
    """A message with one text part."""

    _logprobs: list[Logprob] = field(default_factory=list, init=False)

    @property
    def item(self) -> OutputItem:
        return OutputMessage(id=self.item_id, status=self.status, content=[self._part()])

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

    def _new_item(self) -> OutputItem:
        return OutputMessage(id=self.item_id, status=self.status, content=[])

    def _begin_content(self) -> list[ServerEvent]:
        return [
            ContentPartAdded(
                item_id=self.item_id,
                output_index=self.output_index,
                content_index=_CONTENT_INDEX,
                part=OutputText(text=""),
                stream_id=self.stream_id,
            )
        ]

    def _end_content(self) -> list[ServerEvent]:
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
        ]

    def _part(self) -> OutputText:
        return OutputText(text=self.text, logprobs=self._logprobs or None)


@dataclass(slots=True)
class CallBuilder(ItemBuilder):
    """A call of a function. call_id: what its output will name."""

    call_id: str
    name: str

    @property
    def item(self) -> OutputItem:
        return FunctionCall(
            id=self.item_id,
            call_id=self.call_id,
            name=self.name,
            arguments=self.text,
            status=self.status,
        )

    def append(self, text: str) -> list[ServerEvent]:
        self._texts.append(text)
        return [
            FunctionCallArgumentsDelta(
                item_id=self.item_id,
                output_index=self.output_index,
                delta=text,
                stream_id=self.stream_id,
            )
        ]

    def _end_content(self) -> list[ServerEvent]:
        return [
            FunctionCallArgumentsDone(
                item_id=self.item_id,
                output_index=self.output_index,
                name=self.name,
                arguments=self.text,
                stream_id=self.stream_id,
            )
        ]


@dataclass(slots=True)
class ReasoningBuilder(ItemBuilder):
    """What the model thinks before it answers."""

    @property
    def item(self) -> OutputItem:
        content = [ReasoningText(text=self.text)] if self._texts else []
        return Reasoning(id=self.item_id, content=content, status=self.status)

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

    def _end_content(self) -> list[ServerEvent]:
        return [
            ReasoningTextDone(
                item_id=self.item_id,
                output_index=self.output_index,
                content_index=_CONTENT_INDEX,
                text=self.text,
                stream_id=self.stream_id,
            )
        ]
