"""Conversation items: what goes into a response and what comes out of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

Role = Literal["user", "assistant", "system", "developer"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative at a position. bytes: the token's bytes, also where they are no whole
    character. logprob: natural logarithm, under the target before any warping."""

    token: str
    logprob: float
    bytes: list[int]


class Logprob(msgspec.Struct, frozen=True, kw_only=True):
    """The emitted token at a position with its most probable alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class InputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="input_text"):
    """Text from outside."""

    text: str


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    """Text from the model. `annotations` is always empty; official clients want it there."""

    text: str
    annotations: list[Any] = msgspec.field(default_factory=list)
    logprobs: list[Logprob] | None = None


class Refusal(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal that another server wrote, sent back as history."""

    refusal: str


ContentPart = InputText | OutputText | Refusal


class MessageItem(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message", omit_defaults=True
):
    """A message of the conversation. On input `type` may be left out."""

    role: Role
    content: str | list[ContentPart]
    id: str | None = None
    status: ItemStatus | None = None


class FunctionCall(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="function_call"
):
    """The model called a function. arguments: JSON text, as the model wrote it."""

    call_id: str
    name: str
    arguments: str
    id: str | None = None
    status: ItemStatus | None = None


class FunctionCallOutput(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="function_call_output",
    omit_defaults=True,
):
    """What the called function returned."""

    call_id: str
    output: str | list[ContentPart]
    id: str | None = None
    status: ItemStatus | None = None


class ReasoningText(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning_text"
):
    """What the model wrote while it was thinking."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's thoughts before its answer. `summary` is always empty; official clients want it
    there. Sent back as history it adds nothing to the prompt."""

    id: str | None = None
    summary: list[Any] = msgspec.field(default_factory=list)
    content: list[ReasoningText] | None = None
    status: ItemStatus | None = None


InputItem = MessageItem | FunctionCall | FunctionCallOutput | Reasoning


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="message"):
    """The model's message."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


OutputItem = OutputMessage | FunctionCall | Reasoning

# Range notations that several messages share.
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
NonNegativeInt = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
