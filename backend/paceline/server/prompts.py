"""From the items of a request to the messages that a chat template takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from paceline.model.chat import ChatMessage, EncodedChat
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    MessageItem,
    Reasoning,
    Refusal,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from paceline.core.request import Grammar
    from paceline.model.fill_in_middle import EncodedInfill
    from paceline_protocol.items import ContentPart, InputItem

    class GrammarPort(Protocol):
        """The part of `sampling.grammar.GrammarCompiler` that the server uses."""

        def compile(self, grammar: Grammar) -> None: ...

    class TargetCodec(Protocol):
        """The part of `model.tokenizer.TextCodec` that the server uses."""

        name: str
        eos_token_ids: frozenset[int]

        @property
        def grammars(self) -> GrammarPort: ...

        def decode(self, ids: Sequence[int]) -> str: ...

        def token_bytes(self, token_id: int) -> bytes: ...

        def encode_prompt(self, text: str) -> list[int]: ...

        def encode_infill(self, prefix: str, suffix: str, *, max_tokens: int) -> EncodedInfill: ...

        def encode_chat(
            self, messages: Sequence[ChatMessage], *, previous: EncodedChat | None = None
        ) -> EncodedChat: ...


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """messages: instructions first, then the conversation. previous: the turn that it may continue
    with its ids kept."""

    messages: tuple[ChatMessage, ...]
    previous: EncodedChat | None = None


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text; no template."""

    text: str


@dataclass(frozen=True, slots=True)
class IdsPrompt:
    """Token ids as they are."""

    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class InfillPrompt:
    """What stands before and behind a gap. max_tokens: room for both; what does not fit is left out
    at the far ends."""

    prefix: str
    suffix: str
    max_tokens: int


Prompt = ChatPrompt | TextPrompt | IdsPrompt | InfillPrompt


def encode(
    prompt: Prompt, codec: TargetCodec, grammar: Grammar | None = None
) -> EncodedChat | EncodedInfill:
    """Token ids of a prompt; `grammar` is checked and made ready. CPU work, for a worker thread.
    Raises RequestError."""
    if grammar is not None:
        codec.grammars.compile(grammar)
    if isinstance(prompt, TextPrompt):
        return EncodedChat(tuple(codec.encode_prompt(prompt.text)), prompt.text)
    if isinstance(prompt, IdsPrompt):
        return EncodedChat(prompt.ids, "")
    if isinstance(prompt, InfillPrompt):
        return codec.encode_infill(prompt.prefix, prompt.suffix, max_tokens=prompt.max_tokens)
    return codec.encode_chat(prompt.messages, previous=prompt.previous)


def readable(prompt: Prompt) -> str:
    """The prompt for people, for logs."""
    if isinstance(prompt, TextPrompt):
        return prompt.text
    if isinstance(prompt, IdsPrompt):
        return f"{len(prompt.ids)} token ids"
    if isinstance(prompt, InfillPrompt):
        return f"{prompt.prefix}[gap]{prompt.suffix}"
    return "\n".join(f"{message.role}: {message.content}" for message in prompt.messages)


def messages_of(given: str | Sequence[InputItem] | None) -> tuple[ChatMessage, ...]:
    """Messages of a request's `input`; none when there is nothing in it.

    Function calls and their outputs become text that any template can show. Reasoning items, which
    other servers send back as history, add nothing.

    Raises ProtocolError when every message is empty.
    """
    if given is None or isinstance(given, str):
        return (ChatMessage("user", given),) if given else ()
    messages = tuple(message for item in given if (message := _message(item)) is not None)
    if messages and not any(message.content for message in messages):
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            "input holds no text; at least one message must have some",
            param="input",
        )
    return messages


def _message(item: InputItem) -> ChatMessage | None:
    match item:
        case MessageItem():
            return ChatMessage(item.role, _text(item.content))
        case FunctionCall():
            call = {"name": item.name, "arguments": item.arguments}
            return ChatMessage("assistant", msgspec.json.encode(call).decode())
        case FunctionCallOutput():
            return ChatMessage("tool", _text(item.output), tool_call_id=item.call_id)
        case Reasoning():
            return None


def _text(content: str | Sequence[ContentPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)
