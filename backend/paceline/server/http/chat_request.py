"""`POST /v1/chat/completions`: the body, and the same in our own message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paceline.server.http.bodies import convert, refuse_present
from paceline.server.http.options import (
    SamplingFields,
    StreamOptions,
    check_model,
    names_of,
    options_of,
    seeded,
)
from paceline.server.translation import LOGPROBS_INCLUDE
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.items import AtLeastOne, FunctionCall, FunctionCallOutput, MessageItem
from paceline_protocol.requests import ResponseCreate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline_protocol.items import InputItem

UNSERVED = {
    "functions": "send tools",
    "function_call": "send tool_choice",
    "audio": "only text is served",
    "web_search_options": "leave it out",
}
OUR_NAMES = {
    "input": "messages",
    "text.format.schema": "response_format.json_schema.schema",
    "text.format": "response_format",
}


class TextPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="text"):
    text: str


class RefusalPart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="refusal"):
    refusal: str


class CalledFunction(msgspec.Struct, frozen=True, kw_only=True):
    """arguments: JSON text; some clients send the object itself."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    function: CalledFunction
    id: str = ""
    type: Literal["function"] = "function"


class ChatMessageBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. tool_call_id: whose output a `tool` message is."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart | RefusalPart] | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class ChatRequest(SamplingFields, frozen=True, kw_only=True, omit_defaults=True):
    """The body. n: answers to the same messages. Other fields of OpenAI's are ignored where they
    would not change the answer, and refused by name where they would."""

    messages: list[ChatMessageBody]
    max_tokens: AtLeastOne | None = None
    max_completion_tokens: AtLeastOne | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None
    response_format: Any = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None


def read_chat(value: dict[str, Any], served_model: str) -> ChatRequest:
    """The checked body. Raises ProtocolError."""
    refuse_present(value, UNSERVED)
    if "messages" not in value and "input" in value:
        raise ProtocolError(
            ErrorCode.MISSING_REQUIRED_PARAMETER,
            "messages is missing; input belongs to /v1/responses",
            param="messages",
        )
    body = convert(value, ChatRequest)
    check_model(body.model, served_model)
    modalities = value.get("modalities")
    if modalities not in (None, ["text"]):
        raise ProtocolError(
            ErrorCode.UNSUPPORTED_PARAMETER, 'modalities must be ["text"]', param="modalities"
        )
    if not body.messages:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            "messages is empty; it must hold at least one message",
            param="messages",
        )
    if body.top_logprobs is not None and not body.logprobs:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            "top_logprobs is set without logprobs; logprobs must be true then",
            param="top_logprobs",
        )
    return body


def messages_of_chat(body: ChatRequest) -> tuple[ResponseCreate, ...]:
    """One message of ours for each choice, in lanes `0`, `1`, ... Raises ProtocolError."""
    items: list[InputItem] = []
    for place, message in enumerate(body.messages):
        items += _items(message, f"messages[{place}]")
    options = options_of(body)
    first = ResponseCreate(
        input=items,
        max_output_tokens=body.max_completion_tokens or body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_logprobs=body.top_logprobs,
        include=[LOGPROBS_INCLUDE] if body.logprobs else None,
        parallel_tool_calls=body.parallel_tool_calls,
        store=False,
        tools=_tools(body.tools),
        tool_choice=_tool_choice(body.tool_choice),
        text=_text(body.response_format),
        metadata=body.metadata,
    )
    return tuple(
        msgspec.structs.replace(first, stream_id=str(choice), paceline=seeded(options, choice))
        for choice in range(body.n or 1)
    )


def names_of_chat(body: ChatRequest) -> dict[str, str]:
    """Where paths of our own message begin otherwise in the client's body."""
    is_new = body.max_completion_tokens is not None
    names = names_of(body) | OUR_NAMES
    names["max_output_tokens"] = "max_completion_tokens" if is_new else "max_tokens"
    if _is_flat(body.response_format):
        names["text.format.schema"] = "response_format.schema"
    for place, tool in enumerate(body.tools if isinstance(body.tools, list) else ()):
        if _has_function(tool):
            for field in ("name", "description", "parameters", "strict"):
                names[f"tools[{place}].{field}"] = f"tools[{place}].function.{field}"
    if _has_function(body.tool_choice):
        names["tool_choice.name"] = "tool_choice.function.name"
    return names


def _items(message: ChatMessageBody, path: str) -> list[InputItem]:
    text = _plain(message.content)
    if message.role == "tool":
        if message.tool_call_id is None:
            raise ProtocolError(
                ErrorCode.MISSING_REQUIRED_PARAMETER,
                f"{path}.tool_call_id is missing; it must name the call that this is the output of",
                param=f"{path}.tool_call_id",
            )
        return [FunctionCallOutput(call_id=message.tool_call_id, output=text)]
    if message.role != "assistant":
        if message.content is None:
            raise ProtocolError(
                ErrorCode.MISSING_REQUIRED_PARAMETER,
                f"{path}.content is missing; it must be a string or an array of text parts",
                param=f"{path}.content",
            )
        return [MessageItem(role=message.role, content=text)]
    calls = [
        FunctionCall(
            call_id=call.id,
            name=call.function.name,
            arguments=call.function.arguments
            if isinstance(call.function.arguments, str)
            else msgspec.json.encode(call.function.arguments).decode(),
        )
        for call in message.tool_calls or ()
    ]
    if calls and not text:
        return [*calls]
    return [MessageItem(role="assistant", content=text), *calls]


def _plain(content: str | Sequence[TextPart | RefusalPart] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _tools(tools: Any) -> Any:
    """Chat's `{"type": "function", "function": {...}}` in the flat form of Responses."""
    if not isinstance(tools, list):
        return tools
    return [
        {"type": tool.get("type")} | tool["function"] if _has_function(tool) else tool
        for tool in tools
    ]


def _has_function(value: Any) -> bool:
    """Whether it is in chat's form; some clients send that of Responses."""
    return isinstance(value, dict) and isinstance(value.get("function"), dict)


def _is_flat(response_format: Any) -> bool:
    """Whether it has the form of `text.format`, with the schema at its top."""
    return (
        isinstance(response_format, dict)
        and "schema" in response_format
        and not isinstance(response_format.get("json_schema"), dict)
    )


def _tool_choice(choice: Any) -> Any:
    if _has_function(choice):
        return {"type": choice.get("type"), "name": choice["function"].get("name")}
    return choice


def _text(response_format: Any) -> Any:
    """Chat's `response_format` as `text.format` of Responses."""
    if response_format is None:
        return None
    if isinstance(response_format, dict) and isinstance(response_format.get("json_schema"), dict):
        inner = response_format["json_schema"]
        return {"format": {"type": response_format.get("type")} | inner}
    return {"format": response_format}
