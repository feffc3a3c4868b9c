"""An engine without a model, for tests of the server: same methods, same threads, scripted text."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core.errors import EngineStoppedError, QueueFullError, RequestError
from paceline.core.events import (
    CommittedToken,
    EngineEvent,
    EngineStatus,
    FinishEvent,
    FinishReason,
    Gate,
    SpeculationSummary,
    StepResult,
    TokenEvent,
    TokenLogprob,
    TokenSource,
    Usage,
)
from paceline.core.limits import EngineLimits
from paceline.model.chat import ChatMessage, EncodedChat, tools_as_text
from paceline.model.fill_in_middle import EncodedInfill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from paceline.core.request import Grammar, Request
    from paceline.core.statistics import SessionStatus

EOS_ID = 0
MAX_CHARACTER_TOKENS = 64
"""Longer pieces come as one token, so that a lot of text is a little work."""
LIMITS = EngineLimits(
    max_model_len=4096,
    num_blocks=1024,
    block_size=16,
    max_sequences=64,
    max_waiting=1024,
    vocabulary_size=1 << 21,
)


class PickyGrammars:
    """Takes every grammar but those that say they are wrong."""

    def compile(self, grammar: Grammar) -> None:
        if "wrong" in grammar.text:
            raise RequestError("the grammar cannot be used: it is wrong", field="grammar")


class CharacterCodec:
    """A target's text side in which a token is a character: its id is one more than its code
    point. Turns are written `<role>content</role>`."""

    name = "fake-model"
    eos_token_ids = frozenset({EOS_ID})
    grammars = PickyGrammars()
    chat_template: str | None = None
    opens_thoughts = False

    def decode(self, ids: Sequence[int]) -> str:
        return self.text_of(ids)

    def token_bytes(self, token_id: int) -> bytes:
        return self.text_of([token_id]).encode()

    def encode_prompt(self, text: str) -> list[int]:
        return [ord(character) + 1 for character in text]

    def encode_infill(self, prefix: str, suffix: str, *, max_tokens: int) -> EncodedInfill:
        ids = self.encode_prompt(f"<prefix>{prefix}<suffix>{suffix}<middle>")
        return EncodedInfill(tuple(ids[-max_tokens:]), frozenset({ord("\f") + 1}), ("STOP",))

    def special_ids(self, texts: Iterable[str]) -> dict[str, int]:
        return {}

    def encode_chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        previous: EncodedChat | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> EncodedChat:
        if any(message.content == "refuse me" for message in messages):
            raise RequestError("the template refuses these messages", field="input")
        if any(message.content == "break the template" for message in messages):
            raise ZeroDivisionError
        messages = tools_as_text(messages, tools)
        text = "".join(f"<{m.role}>{m.content}</{m.role}>" for m in messages) + "<assistant>"
        if previous is not None and text.startswith(previous.text):
            ids = previous.ids[:-1] if previous.ids[-1] == EOS_ID else previous.ids
            return EncodedChat((*ids, *self.encode_prompt(text[len(previous.text) :])), text)
        return EncodedChat(tuple(self.encode_prompt(text)), text)

    def text_of(self, ids: Sequence[int]) -> str:
        return "".join("" if token_id == EOS_ID else chr(token_id - 1) for token_id in ids)


@dataclass
class _Running:
    request: Request
    pieces: Sequence[str]
    num_sent: int = 0
    num_tokens: int = 0


@dataclass
class ScriptedEngine:
    """Answers every request with the pieces of `answer`, one piece a step, an end token last.

    deliver: as for `EngineThread`. answer: from a request to its pieces; a piece that begins with
    `!` fails the response with the error class named after it. `pause` holds the engine between two
    steps and `resume` lets it go on, so that a test decides what happens before what.
    """

    deliver: Callable[[StepResult], None]
    answer: Callable[[Request], Sequence[str]]
    limits: EngineLimits = LIMITS
    submitted: list[Request] = field(default_factory=list)
    finished: list[FinishEvent] = field(default_factory=list)
    cancel_lags: list[int] = field(default_factory=list)
    watch_intervals: list[float | None] = field(default_factory=list)
    sessions: tuple[SessionStatus, ...] = ()
    step: int = 0
    is_full: bool = False
    step_s: float = 0.0
    num_characters: int = 0

    def __post_init__(self) -> None:
        self._wake = threading.Condition()
        self._inbox: list[Request] = []
        self._cancels: dict[str, int] = {}
        self._running: dict[str, _Running] = {}
        self._is_stopping = False
        self._is_paused = False
        self._thread = threading.Thread(target=self._run, name="scripted-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: Request) -> None:
        self.limits.check(request)
        with self._wake:
            if self._is_stopping:
                raise EngineStoppedError("the engine has stopped")
            if self.is_full:
                raise QueueFullError("2 requests wait, which is the limit")
            self.submitted.append(request)
            self._inbox.append(request)
            self._wake.notify_all()

    def cancel(self, request_id: str) -> None:
        with self._wake:
            self._cancels.setdefault(request_id, self.step)
            self._wake.notify_all()

    def status(self) -> EngineStatus:
        return EngineStatus(
            step=self.step,
            num_running=len(self._running),
            num_blocks=LIMITS.num_blocks,
            num_free_blocks=LIMITS.num_blocks // 2,
            sessions=self.sessions,
        )

    def watch(self, interval_s: float | None) -> None:
        self.watch_intervals.append(interval_s)

    def stop(self, timeout_s: float) -> None:
        with self._wake:
            self._is_stopping = True
            self._wake.notify_all()
        self._thread.join(timeout_s)

    def pause(self) -> None:
        with self._wake:
            self._is_paused = True

    def resume(self) -> None:
        with self._wake:
            self._is_paused = False
            self._wake.notify_all()

    @property
    def pending_cancels(self) -> frozenset[str]:
        return frozenset(self._cancels)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> bool:
        """Blocks, from any thread but the engine's, until a step made the condition true."""
        with self._wake:
            return self._wake.wait_for(condition, timeout_s)

    @property
    def num_running(self) -> int:
        return len(self._running)

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: (
                        self._is_stopping
                        or (
                            not self._is_paused
                            and bool(self._inbox or self._running or self._cancels)
                        )
                    )
                )
                if self._is_stopping:
                    break
                events = self._step()
                result = StepResult(tuple(events), self.status())
                self._wake.notify_all()
            if events:
                self.deliver(result)
            if self.step_s:
                time.sleep(self.step_s)
        ends = [
            _finish(each, FinishReason.ERROR, error="stopping", error_code="EngineStoppedError")
            for each in self._running.values()
        ]
        self.deliver(StepResult(tuple(ends), self.status()))

    def _step(self) -> list[EngineEvent]:
        self.step += 1
        for request in self._inbox:
            self._running[request.request_id] = _Running(request, self.answer(request))
        self._inbox.clear()
        events: list[EngineEvent] = []
        for request_id, asked_at in self._cancels.items():
            each = self._running.pop(request_id, None)
            if each is not None:
                self.cancel_lags.append(self.step - asked_at)
                events.append(_finish(each, FinishReason.CANCELLED))
        self._cancels.clear()
        for each in list(self._running.values()):
            events.extend(self._advance(each))
        self.finished.extend(event for event in events if isinstance(event, FinishEvent))
        return events

    def _advance(self, each: _Running) -> list[EngineEvent]:
        request_id = each.request.request_id
        if each.num_sent == len(each.pieces):
            del self._running[request_id]
            end = CommittedToken(EOS_ID, "", TokenSource.PLAIN)
            each.num_tokens += 1
            return [TokenEvent(request_id, (end,)), _finish(each, FinishReason.STOP)]
        piece = each.pieces[each.num_sent]
        if piece.startswith("!"):
            del self._running[request_id]
            return [
                _finish(each, FinishReason.ERROR, error="it broke", error_code=piece.lstrip("!"))
            ]
        room = each.request.max_new_tokens - each.num_tokens
        texts = [piece] if len(piece) > MAX_CHARACTER_TOKENS else piece[:room]
        logprob = None
        if each.request.sampling.top_logprobs is not None:
            others = (("?", -1.5), ("!", -2.5))[: each.request.sampling.top_logprobs]
            logprob = TokenLogprob(-0.5, tuple((ord(other) + 1, value) for other, value in others))
        tokens = tuple(
            CommittedToken(ord(text[0]) + 1, text, TokenSource.PLAIN, logprob) for text in texts
        )
        each.num_sent += 1
        self.num_characters += sum(len(token.text) for token in tokens)
        each.num_tokens += len(tokens)
        events: list[EngineEvent] = [TokenEvent(request_id, tokens)]
        if each.num_tokens == each.request.max_new_tokens:
            del self._running[request_id]
            events.append(_finish(each, FinishReason.LENGTH))
        return events


def _finish(
    each: _Running,
    reason: FinishReason,
    *,
    error: str | None = None,
    error_code: str | None = None,
) -> FinishEvent:
    return FinishEvent(
        each.request.request_id,
        reason,
        Usage(len(each.request.prompt_ids), num_cached=0, num_output=each.num_tokens),
        SpeculationSummary(
            num_drafted=4,
            num_examined=3,
            num_passed=2,
            num_accepted=2,
            num_steps=max(1, each.num_sent),
            accepted_per_position=(2, 0),
            examined_per_position=(3, 0),
            passed_per_position=(2, 0),
            drafter="ngram",
            gate=Gate.ON,
            reason="on",
            generation_ms=10.0,
        ),
        error=error,
        error_code=error_code,
    )


def echo(request: Request) -> list[str]:
    """Answers with the prompt's last twelve characters, three a step."""
    text = CharacterCodec().text_of(request.prompt_ids)[-12:]
    return [text[at : at + 3] for at in range(0, len(text), 3)]
