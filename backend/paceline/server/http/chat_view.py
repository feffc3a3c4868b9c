"""Responses in the form of chat completions, whole or as a stream of chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.server.http.answer import DONE, frame
from paceline.server.http.usage import usage_of
from paceline_protocol.events import (
    FunctionCallArgumentsDelta,
    OutputItemAdded,
    OutputTextDelta,
    ReasoningTextDelta,
    ResponseCompleted,
    ResponseCreated,
    ResponseIncomplete,
)
from paceline_protocol.items import FunctionCall, OutputMessage, Reasoning

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline_protocol.events import ErrorDetails, ServerEvent
    from paceline_protocol.items import Logprob
    from paceline_protocol.responses import Response


class ChatView:
    """answer_id: of all chunks. created: seconds since 1970. with_usage: a last chunk without
    choices has the token counts, and every other one says null."""

    shows_failures = False

    def __init__(self, answer_id: str, model: str, created: int, *, with_usage: bool) -> None:
        self._answer_id = answer_id
        self._model = model
        self._created = created
        self._with_usage = with_usage
        # For each choice the place of each call among its calls, by output index.
        self._calls: dict[int, dict[int, int]] = {}

    def on_event(self, index: int, event: ServerEvent) -> Iterable[bytes]:
        match event:
            case ResponseCreated():
                yield self._chunk(index, {"role": "assistant", "content": ""})
            case OutputTextDelta():
                if event.delta or event.logprobs:
                    yield self._chunk(index, {"content": event.delta}, _logprobs(event.logprobs))
            case ReasoningTextDelta():
                yield self._chunk(index, {"reasoning_content": event.delta})
            case OutputItemAdded(item=FunctionCall() as call):
                calls = self._calls.setdefault(index, {})
                place = calls.setdefault(event.output_index, len(calls))
                yield self._chunk(index, {"tool_calls": [{"index": place} | _call(call)]})
            case FunctionCallArgumentsDelta():
                place = self._calls[index][event.output_index]
                part = {"index": place, "function": {"arguments": event.delta}}
                yield self._chunk(index, {"tool_calls": [part]})
            case ResponseCompleted() | ResponseIncomplete():
                yield self._chunk(index, {}, finish_reason=finish_reason(event.response))

    def on_end(self, responses: Sequence[Response]) -> Iterable[bytes]:
        if self._with_usage:
            yield frame(
                self._head("chat.completion.chunk")
                | {
                    "choices": [],
                    "usage": usage_of(responses, len(responses)),
                }
            )
        yield DONE

    def on_error(self, details: ErrorDetails) -> Iterable[bytes]:
        yield frame({"error": details})

    def body(self, responses: Sequence[Response]) -> Any:
        return self._head("chat.completion") | {
            "choices": [
                {
                    "index": index,
                    "message": _message(response),
                    "logprobs": _logprobs(_all_logprobs(response)),
                    "finish_reason": finish_reason(response),
                }
                for index, response in enumerate(responses)
            ],
            "usage": usage_of(responses, len(responses)),
        }

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = self._head("chat.completion.chunk") | {"choices": [choice]}
        return frame(chunk | {"usage": None} if self._with_usage else chunk)

    def _head(self, kind: str) -> dict[str, Any]:
        return {
            "id": self._answer_id,
            "object": kind,
            "created": self._created,
            "model": self._model,
        }


def finish_reason(response: Response) -> str:
    """Why a choice ended, in chat's words."""
    if response.status != "completed":
        return "length"
    has_calls = any(isinstance(item, FunctionCall) for item in response.output)
    return "tool_calls" if has_calls else "stop"


def _message(response: Response) -> dict[str, Any]:
    calls = [item for item in response.output if isinstance(item, FunctionCall)]
    texts = [item for item in response.output if isinstance(item, OutputMessage)]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": response.output_text if texts or not calls else None,
        "refusal": None,
    }
    thoughts = [
        part.text
        for item in response.output
        if isinstance(item, Reasoning)
        for part in item.content or ()
    ]
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    return message


def _call(call: FunctionCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def _all_logprobs(response: Response) -> list[Logprob]:
    return [
        logprob
        for item in response.output
        if isinstance(item, OutputMessage)
        for part in item.content
        for logprob in part.logprobs or ()
    ]


def _logprobs(logprobs: Sequence[Logprob]) -> dict[str, Any] | None:
    return {"content": logprobs, "refusal": None} if logprobs else None
