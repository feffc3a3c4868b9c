"""`POST /v1/chat/completions` and `POST /v1/fim/completions`."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from paceline.server.http.bodies import convert
from paceline.server.http.chat_request import messages_of_chat, names_of_chat, read_chat
from paceline.server.http.chat_view import ChatView
from paceline.server.http.endpoint import Ask
from paceline.server.http.options import SamplingFields, check_model, names_of, options_of
from paceline_protocol.items import AtLeastOne
from paceline_protocol.requests import CompletionCreate

if TYPE_CHECKING:
    from paceline.server.gateway import Gateway


def parse_chat(value: dict[str, Any], gateway: Gateway) -> Ask:
    """See `endpoint.Endpoint`."""
    model = gateway.session_settings.model
    body = read_chat(value, model)
    options = body.stream_options
    return Ask(
        messages_of_chat(body),
        _view("chatcmpl", model, with_usage=bool(options and options.include_usage)),
        bool(body.stream),
        names_of_chat(body),
        body.client_key,
    )


class FimRequest(SamplingFields, frozen=True, kw_only=True, omit_defaults=True):
    """Fill in between `prompt` and `suffix`, in the form of Mistral's code endpoint."""

    prompt: str
    suffix: str | None = None
    max_tokens: AtLeastOne | None = None
    random_seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None


def parse_fim(value: dict[str, Any], gateway: Gateway) -> Ask:
    """See `endpoint.Endpoint`."""
    model = gateway.session_settings.model
    body = convert(value, FimRequest)
    check_model(body.model, model)
    message = CompletionCreate(
        prompt=body.prompt,
        suffix=body.suffix or "",
        max_output_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        paceline=options_of(body, seed=body.random_seed),
        stream_id="0",
    )
    names = names_of(body) | {"max_output_tokens": "max_tokens"}
    if body.random_seed is not None:
        names["paceline.seed"] = "random_seed"
    view = _view("fim", model, with_usage=False)
    return Ask((message,), view, bool(body.stream), names, body.client_key)


def _view(prefix: str, model: str, *, with_usage: bool) -> ChatView:
    return ChatView(f"{prefix}-{uuid.uuid4().hex}", model, int(time.time()), with_usage=with_usage)
