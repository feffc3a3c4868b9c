"""`POST /v1/completions`: raw text, no chat template."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from paceline.server.http.answer import DONE, frame
from paceline.server.http.bodies import convert
from paceline.server.http.chat_view import finish_reason
from paceline.server.http.endpoint import MAX_CHOICES, Ask
from paceline.server.http.options import (
    SamplingFields,
    StreamOptions,
    check_model,
    names_of,
    options_of,
    seeded,
)
from paceline.server.http.usage import usage_of
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.events import OutputTextDelta, ResponseCompleted, ResponseIncomplete
from paceline_protocol.items import AtLeastOne, NonNegativeInt, OutputMessage
from paceline_protocol.requests import CompletionCreate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.server.gateway import Gateway
    from paceline.server.prompts import TargetCodec
    from paceline_protocol.events import ErrorDetails, ServerEvent
    from paceline_protocol.items import Logprob
    from paceline_protocol.responses import Response

DEFAULT_MAX_TOKENS = 16
_WHY_NO_SCORES = "tokens of a prompt have no log-probabilities here, only generated ones have"


class CompletionRequest(SamplingFields, frozen=True, kw_only=True, omit_defaults=True):
    """The body. prompt: one text, one list of token ids, or a list of either. logprobs: how many
    alternatives beside each token. echo: the prompt comes before its completion."""

    prompt: str | list[str | NonNegativeInt | list[NonNegativeInt]]
    suffix: str | None = None
    max_tokens: AtLeastOne | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=128)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream_options: StreamOptions | None = None


def parse_completion(value: dict[str, Any], gateway: Gateway) -> Ask:
    """See `endpoint.Endpoint`."""
    _refuse_scoring(value)
    body = convert(value, CompletionRequest)
    model = gateway.session_settings.model
    check_model(body.model, model)
    num_choices = body.n or 1
    if body.best_of not in (None, num_choices):
        raise _unsupported("best_of", f"must be n, which is {num_choices}")
    if body.echo and body.logprobs is not None:
        raise _unsupported(
            "echo", f"is not served together with logprobs: {_WHY_NO_SCORES}; leave one of them out"
        )
    prompts = _prompts(body.prompt)
    if len(prompts) * num_choices > MAX_CHOICES:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            f"{len(prompts)} prompts with {num_choices} answers each are more than {MAX_CHOICES}",
            param="prompt",
        )
    options = options_of(body)
    messages = tuple(
        CompletionCreate(
            prompt=prompt,
            suffix=body.suffix,
            max_output_tokens=body.max_tokens or DEFAULT_MAX_TOKENS,
            temperature=body.temperature,
            top_p=body.top_p,
            top_logprobs=body.logprobs,
            paceline=seeded(options, choice),
            stream_id=str(place * num_choices + choice),
        )
        for place, prompt in enumerate(prompts)
        for choice in range(num_choices)
    )
    stream_options = body.stream_options
    view = CompletionView(
        model,
        choices_per_prompt=num_choices,
        echoes=[_text_of(message.prompt, gateway.codec) for message in messages]
        if body.echo
        else None,
        with_usage=bool(stream_options and stream_options.include_usage),
    )
    names = names_of(body) | {"max_output_tokens": "max_tokens", "top_logprobs": "logprobs"}
    return Ask(messages, view, bool(body.stream), names, body.client_key)


class CompletionView:
    """echoes: the prompt of each choice, to be shown before it; None to leave them out."""

    shows_failures = False

    def __init__(
        self,
        model: str,
        *,
        choices_per_prompt: int,
        echoes: Sequence[str] | None,
        with_usage: bool,
    ) -> None:
        self._answer_id = f"cmpl-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._model = model
        self._choices_per_prompt = choices_per_prompt
        self._echoes = echoes
        self._with_usage = with_usage
        self._num_shown: dict[int, int] = {}

    def on_event(self, index: int, event: ServerEvent) -> Iterable[bytes]:
        match event:
            case OutputTextDelta():
                shown = self._num_shown.get(index, 0)
                self._num_shown[index] = shown + len(event.delta)
                text = event.delta
                if shown == 0 and self._echoes is not None:
                    text = self._echoes[index] + text
                if text or event.logprobs:
                    yield self._chunk(index, text, _logprobs(event.logprobs, shown), None)
            case ResponseCompleted() | ResponseIncomplete():
                is_unshown = self._echoes is not None and index not in self._num_shown
                text = self._echoes[index] if is_unshown and self._echoes else ""
                yield self._chunk(index, text, None, finish_reason(event.response))

    def on_end(self, responses: Sequence[Response]) -> Iterable[bytes]:
        if self._with_usage:
            usage = usage_of(responses, self._choices_per_prompt)
            yield frame(self._head() | {"choices": [], "usage": usage})
        yield DONE

    def on_error(self, details: ErrorDetails) -> Iterable[bytes]:
        yield frame({"error": details})

    def body(self, responses: Sequence[Response]) -> Any:
        return self._head() | {
            "choices": [
                {
                    "index": index,
                    "text": (self._echoes[index] if self._echoes else "") + response.output_text,
                    "logprobs": _logprobs(_all_logprobs(response), 0),
                    "finish_reason": finish_reason(response),
                }
                for index, response in enumerate(responses)
            ],
            "usage": usage_of(responses, self._choices_per_prompt),
        }

    def _chunk(
        self, index: int, text: str, logprobs: dict[str, Any] | None, finish_reason: str | None
    ) -> bytes:
        choice = {
            "index": index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
        }
        chunk = self._head() | {"choices": [choice]}
        return frame(chunk | {"usage": None} if self._with_usage else chunk)

    def _head(self) -> dict[str, Any]:
        return {
            "id": self._answer_id,
            "object": "text_completion",
            "created": self._created,
            "model": self._model,
        }


def _prompts(
    given: str | list[str | NonNegativeInt | list[NonNegativeInt]],
) -> list[str | list[int]]:
    """The prompts of a body, one or many. Raises ProtocolError for a mixture."""
    if isinstance(given, str):
        return [given]
    if not given:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            "prompt is empty; it must be a text, token ids, or a list of either",
            param="prompt",
        )
    texts = [prompt for prompt in given if isinstance(prompt, str)]
    ids = [prompt for prompt in given if isinstance(prompt, int)]
    lists = [prompt for prompt in given if isinstance(prompt, list)]
    if len(ids) == len(given):
        return [ids]
    if len(texts) == len(given):
        return [*texts]
    if len(lists) == len(given):
        return [*lists]
    raise ProtocolError(
        ErrorCode.INVALID_TYPE,
        "prompt mixes texts and token ids; all of its elements must be of one kind",
        param="prompt",
    )


def _refuse_scoring(value: dict[str, Any]) -> None:
    """Raises ProtocolError for a body that asks for nothing but its own prompt, with or without
    `logprobs`: how clients have a text scored."""
    if value.get("echo") is True and value.get("max_tokens") == 0:
        raise _unsupported(
            "echo",
            f"with max_tokens 0 asks for the prompt's own score, which is not served: "
            f"{_WHY_NO_SCORES}; leave echo out and set max_tokens to 1 or more",
        )


def _text_of(prompt: str | list[int], codec: TargetCodec) -> str:
    return prompt if isinstance(prompt, str) else codec.decode(prompt)


def _all_logprobs(response: Response) -> list[Logprob]:
    return [
        logprob
        for item in response.output
        if isinstance(item, OutputMessage)
        for part in item.content
        for logprob in part.logprobs or ()
    ]


def _logprobs(logprobs: Sequence[Logprob], offset: int) -> dict[str, Any] | None:
    """The older form: parallel lists. offset: of the first token in the completion's text."""
    if not logprobs:
        return None
    offsets = []
    for logprob in logprobs:
        offsets.append(offset)
        offset += len(logprob.token)
    return {
        "tokens": [logprob.token for logprob in logprobs],
        "token_logprobs": [logprob.logprob for logprob in logprobs],
        "top_logprobs": [
            {logprob.token: logprob.logprob}
            | {other.token: other.logprob for other in logprob.top_logprobs}
            for logprob in logprobs
        ],
        "text_offset": offsets,
    }


def _unsupported(param: str, what: str) -> ProtocolError:
    return ProtocolError(ErrorCode.UNSUPPORTED_PARAMETER, f"{param} {what}", param=param)
