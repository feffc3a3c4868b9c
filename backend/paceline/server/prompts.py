"""From the items of a request to the messages that a chat template takes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.core.errors import RequestError
from paceline.model.chat import ChatMessage, ChatToolCall, EncodedChat
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.items import (
    FunctionCall,
    FunctionCallOutput,
    MessageItem,
    Reasoning,
    Refusal,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any, Protocol

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

        @property
        def chat_template(self) -> str | None: ...

        @property
        def opens_thoughts(self) -> bool: ...

        def special_ids(self, texts: Iterable[str]) -> dict[str, int]: ...

        def encode_chat(
            self,
            messages: Sequence[ChatMessage],
            *,
            previous: EncodedChat | None = None,
            tools: Sequence[Mapping[str, Any]] = (),
        ) -> EncodedChat: ...


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """messages: instructions first, then the conversation. previous: the turn that it may continue
    with its ids kept. tools: functions as the template takes them."""

    messages: tuple[ChatMessage, ...]
    previous: EncodedChat | None = None
    tools: tuple[dict[str, Any], ...] = ()


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
    """Token ids of a prompt. CPU work, for a worker thread. Raises RequestError.

    grammar: compiled here as well, so that its faults are told before anything is submitted, and
    `Engine.submit`, which runs on the event loop, finds it ready.
    """
    try:
        return _encode(prompt, codec, grammar)
    except RecursionError as error:
        # What nests without a bound of its own is a schema, of a tool or of the answer's format.
        has_tools = isinstance(prompt, ChatPrompt) and prompt.tools
        raise RequestError(
            "a schema is nested too deeply; flatten it", field="tools" if has_tools else "grammar"
        ) from error


def _encode(
    prompt: Prompt, codec: TargetCodec, grammar: Grammar | None
) -> EncodedChat | EncodedInfill:
    if grammar is not None:
        codec.grammars.compile(grammar)
    if isinstance(prompt, TextPrompt):
        return EncodedChat(tuple(codec.encode_prompt(prompt.text)), prompt.text)
    if isinstance(prompt, IdsPrompt):
        return EncodedChat(prompt.ids, "")
    if isinstance(prompt, InfillPrompt):
        return codec.encode_infill(prompt.prefix, prompt.suffix, max_tokens=prompt.max_tokens)
    return codec.encode_chat(prompt.messages, previous=prompt.previous, tools=prompt.tools)


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

    Function calls belong to the assistant's message before them. Reasoning items add nothing.

    Raises ProtocolError when every message is empty.
    """
    if given is None or isinstance(given, str):
        return (ChatMessage("user", given),) if given else ()
    messages: list[ChatMessage] = []
    for item in given:
        message = _message(item)
        if message is None:
            continue
        last = messages[-1] if messages else None
        if message.tool_calls and last is not None and last.role == "assistant":
            messages[-1] = replace(last, tool_calls=last.tool_calls + message.tool_calls)
        else:
            messages.append(message)
    if messages and not any(message.content or message.tool_calls for message in messages):
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            "input holds no text; at least one message must have some",
            param="input",
        )
    return tuple(messages)


def _message(item: InputItem) -> ChatMessage | None:
    match item:
        case MessageItem():
            return ChatMessage(item.role, _text(item.content))
        case FunctionCall():
            call = ChatToolCall(item.name, item.arguments or "{}", item.call_id)
            return ChatMessage("assistant", "", tool_calls=(call,))
        case FunctionCallOutput():
            return ChatMessage("tool", _text(item.output), tool_call_id=item.call_id)
        case Reasoning():
            return None


def _text(content: str | Sequence[ContentPart]) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.refusal if isinstance(part, Refusal) else part.text for part in content)
