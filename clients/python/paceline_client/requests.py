"""From what callers write to requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

import msgspec

from paceline_protocol.faults import as_protocol_error
from paceline_protocol.messages import (
    CompletionCreate,
    InputItem,
    MessageItem,
    PacelineOptions,
    ResponseCreate,
)

if TYPE_CHECKING:
    from paceline_protocol.messages import Response

Input = str | Sequence[InputItem | Mapping[str, Any]]
Options = PacelineOptions | Mapping[str, Any] | None

Request = TypeVar("Request", ResponseCreate, CompletionCreate)


class TurnSettings(TypedDict, total=False):
    """What `Session.respond` takes and a conversation holds for all its turns; see there."""

    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_logprobs: int | None
    metadata: Mapping[str, str] | None
    model: str | None
    paceline: Options


class ResponseSettings(TurnSettings, total=False):
    """What `Session.respond` takes beside the input; see there."""

    instructions: str | None
    previous: Response | str | None
    generate: bool


class CompletionSettings(TypedDict, total=False):
    """What `Session.complete` takes beside the prompt; see there."""

    suffix: str | None
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    paceline: Options


def response_request(
    input: Input,
    *,
    instructions: str | None,
    max_output_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_logprobs: int | None,
    metadata: Mapping[str, str] | None,
    model: str | None,
    generate: bool,
    paceline: Options,
) -> ResponseCreate:
    """Raises ProtocolError."""
    return _checked(
        ResponseCreate(
            input=input if isinstance(input, str) else [_item(item) for item in input],
            instructions=instructions,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
            top_p=top_p,
            top_logprobs=top_logprobs,
            include=None if top_logprobs is None else ["message.output_text.logprobs"],
            metadata=None if metadata is None else dict(metadata),
            model=model,
            generate=None if generate else False,
            paceline=_options(paceline),
        )
    )


def completion_request(
    prompt: str,
    *,
    suffix: str | None,
    max_output_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    paceline: Options,
) -> CompletionCreate:
    """Raises ProtocolError."""
    return _checked(
        CompletionCreate(
            prompt=prompt,
            suffix=suffix,
            max_output_tokens=max_output_tokens,
            temperature=temperature,
            top_p=top_p,
            paceline=_options(paceline),
        )
    )


def input_items(request: ResponseCreate) -> list[InputItem]:
    """A request's input as items."""
    match request.input:
        case None:
            return []
        case str(text):
            return [MessageItem(role="user", content=text)]
        case items:
            return items


def _checked(request: Request) -> Request:
    """Constructors check nothing; a trip through plain values does what a server would do."""
    value = msgspec.to_builtins(request, str_keys=True)
    try:
        return msgspec.convert(value, type(request), str_keys=True)
    except msgspec.ValidationError as error:
        raise as_protocol_error(error, type(request), value) from None


def _options(options: Options) -> PacelineOptions | None:
    if options is None or isinstance(options, PacelineOptions):
        return options
    # Built by name, not checked: that happens with the whole request, where paths are complete.
    value = {"type": "response.create", "paceline": dict(options)}
    try:
        return msgspec.convert(value, ResponseCreate, str_keys=True).paceline
    except msgspec.ValidationError as error:
        raise as_protocol_error(error, ResponseCreate, value) from None


def _item(item: InputItem | Mapping[str, Any]) -> InputItem:
    if not isinstance(item, Mapping):
        return item
    value = {"type": "response.create", "input": [{"type": "message", **item}]}
    try:
        items = msgspec.convert(value, ResponseCreate, str_keys=True).input
    except msgspec.ValidationError as error:
        raise as_protocol_error(error, ResponseCreate, value) from None
    assert isinstance(items, list)
    return items[0]
