"""Drives a session by hand: carries its effects out without a loop, a socket or an engine."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import msgspec

from paceline.core.errors import PacelineError
from paceline.core.events import (
    CommittedToken,
    FinishEvent,
    FinishReason,
    SpeculationSummary,
    TokenEvent,
    TokenSource,
    Usage,
)
from paceline.server.admission import SessionSettings
from paceline.server.effects import Cancel, Close, Effect, EncodePrompt, Send, Submit
from paceline.server.outbox import Outbox
from paceline.server.prompts import encode
from paceline.server.session import Session
from paceline_protocol.codecs import JSON_CODEC, Codec
from paceline_protocol.errors import ProtocolError
from tests.fakes_engine import EOS_ID, LIMITS, CharacterCodec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.core.request import Request

SETTINGS = SessionSettings(
    model="fake-model", limits=LIMITS, eos_token_ids=frozenset({EOS_ID}), max_lanes=3, max_open=5
)


class Driver:
    """sent: events as clients see them, numbered. requests: submitted, by response id. With
    `encodes` prompts are encoded at once; else they wait in `prompts`."""

    def __init__(self, settings: SessionSettings = SETTINGS, *, encodes: bool = True) -> None:
        numbers = itertools.count(1)
        self.session = Session(
            "sess_1", settings, clock=lambda: 1_000.0, new_id=lambda p: f"{p}_{next(numbers)}"
        )
        self.outbox = Outbox(1 << 20)
        self.sent: list[dict[str, Any]] = []
        self.requests: dict[str, Request] = {}
        self.prompts: list[EncodePrompt] = []
        self.cancelled: list[str] = []
        self.closed: Close | None = None
        self.encodes = encodes
        self.submit_error: PacelineError | None = None

    def send(self, **message: Any) -> list[dict[str, Any]]:
        """One client event as JSON; returns what came back at once."""
        return self.send_frame(msgspec.json.encode(message).decode())

    def send_frame(self, frame: str | bytes, codec: Codec = JSON_CODEC) -> list[dict[str, Any]]:
        try:
            event = codec.decode_client(frame)
        except ProtocolError as error:
            return self.run(self.session.on_invalid_message(error))
        return self.run(self.session.on_message(event))

    def create(self, text: Any = "hello", /, **fields: Any) -> str:
        """A `response.create` that is taken; returns its response id."""
        before = set(self.requests)
        self.send(type="response.create", input=text, **fields)
        (response_id,) = set(self.requests) - before
        return response_id

    def tokens(self, response_id: str, text: str) -> list[dict[str, Any]]:
        """The engine commits the characters of a text."""
        tokens = tuple(
            CommittedToken(ord(character) + 1, character, TokenSource.ACCEPTED)
            for character in text
        )
        return self.run(self.session.on_event(TokenEvent(response_id, tokens)))

    def end_token(self, response_id: str) -> list[dict[str, Any]]:
        token = CommittedToken(EOS_ID, "", TokenSource.PLAIN)
        return self.run(self.session.on_event(TokenEvent(response_id, (token,))))

    def finish(
        self, response_id: str, reason: FinishReason = FinishReason.STOP, **fields: Any
    ) -> list[dict[str, Any]]:
        usage = fields.pop("usage", Usage(num_prompt=7, num_cached=3, num_output=5))
        summary = fields.pop("summary", SpeculationSummary(num_steps=2, generation_ms=100.0))
        event = FinishEvent(response_id, reason, usage, summary, **fields)
        return self.run(self.session.on_event(event))

    def run(self, effects: Iterable[Effect]) -> list[dict[str, Any]]:
        """Carry effects out; returns the events that were sent by them."""
        start = len(self.sent)
        self._run(effects)
        return self.sent[start:]

    def _run(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.outbox.put(effect.event, effect.response_id)
                    self._drain_outbox()
                case Submit():
                    request_id = effect.request.request_id
                    if self.submit_error is not None:
                        self._run(self.session.on_submit_failed(request_id, self.submit_error))
                    else:
                        self.requests[request_id] = effect.request
                case Cancel():
                    self.cancelled.append(effect.request_id)
                case EncodePrompt():
                    self.prompts.append(effect)
                    if self.encodes:
                        self.encode_next()
                case Close():
                    self.closed = effect

    def close_code(self) -> int | None:
        """Of the close that was asked for."""
        return None if self.closed is None else self.closed.code

    def encode_next(self) -> None:
        """Encode the prompt that waits longest."""
        effect = self.prompts.pop(0)
        try:
            encoded = encode(effect.prompt, CharacterCodec(), effect.grammar)
        except PacelineError as error:
            self._run(self.session.on_prompt_failed(effect.response_id, error))
        else:
            self._run(self.session.on_prompt_ready(effect.response_id, encoded))

    def _drain_outbox(self) -> None:
        while (event := self.outbox.take()) is not None:
            self.sent.append(msgspec.json.decode(JSON_CODEC.encode(event)))


def types(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def prompt_text(request: Request) -> str:
    return CharacterCodec().text_of(request.prompt_ids)
