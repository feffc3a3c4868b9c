"""`POST /infill`, as llama.cpp's editor plugins use it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

import anyio
import msgspec
from msgspec import Meta

from paceline.server.http.answer import frame
from paceline.server.http.bodies import convert
from paceline.server.http.endpoint import Ask
from paceline.server.http.options import SamplingFields, check_model, names_of, options_of
from paceline_protocol.events import OutputTextDelta, ResponseCompleted, ResponseIncomplete
from paceline_protocol.requests import CompletionCreate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from paceline.server.gateway import Gateway
    from paceline.server.http.exchange import Exchange
    from paceline_protocol.events import ErrorDetails, ServerEvent
    from paceline_protocol.responses import Response


class ExtraText(msgspec.Struct, frozen=True, kw_only=True):
    """Text from elsewhere that helps: another file, the clipboard."""

    text: str
    filename: str | None = None


class InfillRequest(SamplingFields, frozen=True, kw_only=True, omit_defaults=True):
    """The body. prompt: what already stands on the cursor's line; it continues the prefix.
    n_predict: -1 leaves the length open, 0 only prepares the prompt. t_max_predict_ms: once there
    is a whole line, how long the filling may go on. response_fields: only these of the answer, as
    flat keys such as `timings/predicted_ms`. Everything about sampling orders and caches is
    ignored: the cache is always on."""

    input_prefix: str
    input_suffix: str = ""
    input_extra: list[ExtraText] | None = None
    prompt: str = ""
    n_predict: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    n_cmpl: Annotated[int, Meta(ge=1, le=16)] | None = None
    t_max_predict_ms: Annotated[float, Meta(ge=0)] | None = None
    response_fields: list[str] | None = None
    id_slot: int | None = None


def parse_infill(value: dict[str, Any], gateway: Gateway) -> Ask:
    """See `endpoint.Endpoint`."""
    model = gateway.session_settings.model
    body = convert(value, InfillRequest)
    check_model(body.model, model)
    extra = "".join(f"{each.filename or ''}\n{each.text}\n\n" for each in body.input_extra or ())
    is_warm_up = body.n_predict == 0
    limit = body.n_predict if body.n_predict and body.n_predict > 0 else None
    messages = tuple(
        CompletionCreate(
            prompt=extra + body.input_prefix + body.prompt,
            suffix=body.input_suffix,
            max_output_tokens=1 if is_warm_up else limit,
            temperature=body.temperature,
            top_p=body.top_p,
            paceline=options_of(body),
            stream_id=str(choice),
        )
        for choice in range(body.n_cmpl or 1)
    )
    view = InfillView(model, is_warm_up=is_warm_up, fields=body.response_fields)
    names = names_of(body) | {
        "prompt": "input_prefix",
        "suffix": "input_suffix",
        "max_output_tokens": "n_predict",
    }
    watch = None
    if body.t_max_predict_ms:
        watch = _time_limit(body.t_max_predict_ms, [message.stream_id for message in messages])
    slot = None if body.id_slot is None or body.id_slot < 0 else f"slot {body.id_slot}"
    return Ask(messages, view, bool(body.stream), names, body.client_key or slot, watch)


def _time_limit(
    milliseconds: float, lanes: Sequence[str | None]
) -> Callable[[Exchange], Callable[[ServerEvent], None]]:
    def watch(exchange: Exchange) -> Callable[[ServerEvent], None]:
        started: dict[str | None, float] = {}
        has_line: set[str | None] = set()

        def on_event(event: ServerEvent) -> None:
            if not isinstance(event, OutputTextDelta):
                return
            lane = event.stream_id if isinstance(event.stream_id, str) else None
            begun = started.setdefault(lane, anyio.current_time())
            if "\n" in event.delta:
                has_line.add(lane)
            is_late = (anyio.current_time() - begun) * 1e3 > milliseconds
            if is_late and lane in has_line and lane in lanes:
                has_line.discard(lane)
                exchange.cancel([lane])

        return on_event

    return watch


class InfillView:
    """is_warm_up: the text is not shown. fields: see `InfillRequest.response_fields`."""

    shows_failures = False

    def __init__(self, model: str, *, is_warm_up: bool, fields: Sequence[str] | None) -> None:
        self._model = model
        self._is_warm_up = is_warm_up
        self._fields = fields
        self._created = time.time()

    def on_event(self, index: int, event: ServerEvent) -> Iterable[bytes]:
        match event:
            case OutputTextDelta():
                if event.delta and not self._is_warm_up:
                    yield frame(
                        {"index": index, "content": event.delta, "tokens": [], "stop": False}
                    )
            case ResponseCompleted() | ResponseIncomplete():
                yield frame(self._shown(index, event.response) | {"content": ""})

    def on_end(self, responses: Sequence[Response]) -> Iterable[bytes]:
        return ()

    def on_error(self, details: ErrorDetails) -> Iterable[bytes]:
        yield frame({"error": details})

    def body(self, responses: Sequence[Response]) -> Any:
        shown = [self._shown(index, response) for index, response in enumerate(responses)]
        return shown[0] if len(shown) == 1 else shown

    def _shown(self, index: int, response: Response) -> dict[str, Any]:
        usage, summary = response.usage, response.paceline
        num_prompt = usage.input_tokens if usage else 0
        num_cached = usage.input_tokens_details.cached_tokens if usage else 0
        num_output = usage.output_tokens if usage and not self._is_warm_up else 0
        answer = {
            "index": index,
            "content": "" if self._is_warm_up else response.output_text,
            "tokens": [],
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": num_output,
            "tokens_evaluated": num_prompt,
            "tokens_cached": num_prompt + num_output,
            "has_new_line": "\n" in response.output_text,
            "truncated": False,
            "stop_type": "eos" if response.status == "completed" else "limit",
            "stopping_word": "",
            "timings": _timings(num_prompt - num_cached, num_cached, num_output, response),
        }
        if summary is not None:
            answer["paceline"] = summary
        if self._fields is None:
            return answer
        found = {path: _at(answer, path) for path in self._fields}
        return {path: value for path, value in found.items() if value is not None}


def _timings(
    num_computed: int, num_cached: int, num_output: int, response: Response
) -> dict[str, Any]:
    """The prompt's time is that to the first token, queueing included."""
    summary = response.paceline
    prompt_ms = (summary.time_to_first_token_ms if summary else None) or 0.0
    rate = (summary.tokens_per_second if summary else None) or 0.0
    predicted_ms = num_output / rate * 1e3 if rate else 0.0
    return {
        "cache_n": num_cached,
        "prompt_n": num_computed,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / num_computed if num_computed else 0.0,
        "prompt_per_second": num_computed / prompt_ms * 1e3 if prompt_ms else 0.0,
        "predicted_n": num_output,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / num_output if num_output else 0.0,
        "predicted_per_second": rate,
        "draft_n": summary.num_drafted if summary else 0,
        "draft_n_accepted": summary.num_accepted if summary else 0,
    }


def _at(answer: dict[str, Any], path: str) -> Any:
    value: Any = answer
    for name in path.split("/"):
        value = value.get(name) if isinstance(value, dict) else None
    return value
