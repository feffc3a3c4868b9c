"""On-policy data: the target's own answers, made with Paceline's engine.

The prompts are :mod:`paceline.training.prompts`; many are in flight at once, so the engine batches
them as it batches users. An open prompt takes two requests: the target first writes the question,
then answers it.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import RequestError
from paceline.core.events import FinishEvent, FinishReason, TokenEvent
from paceline.core.request import Request, SamplingParams, Speculation
from paceline.model.chat import ChatMessage
from paceline.training.prompts import Prompt, PromptKind
from paceline.training.token_store import TokenSequence

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paceline.core.limits import EngineLimits
    from paceline.engine.engine import Engine
    from paceline.model.tokenizer import TextCodec

_QUESTION_TEMPERATURES = (0.6, 0.8, 1.0)
"""Of questions that the target writes itself: cool ones are what people ask, hot ones differ."""

_CONTENTS = ("alpha", "7")
"""Two messages without a common beginning or end."""


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """``max_prompt_tokens``: longer prompts are cut at their start's end. ``concurrency``: requests
    in flight."""

    concurrency: int = 32
    max_prompt_tokens: int = 384
    max_question_tokens: int = 150
    max_answer_tokens: int = 320


@dataclass(slots=True)
class _Open:
    """One request in flight. ``is_question``: the target is writing the user's message."""

    prompt_ids: tuple[int, ...]
    temperature: float
    is_question: bool
    ids: list[int]


class OnPolicyGenerator:
    """Answers of the target, one :class:`TokenSequence` after the other, without end.

    ``engine``: not running on another thread; its steps are taken here.
    """

    def __init__(
        self,
        engine: Engine,
        codec: TextCodec,
        prompts: Iterator[Prompt],
        options: GenerationOptions,
        seed: int,
    ) -> None:
        self._engine = engine
        self._limits: EngineLimits = engine.limits
        self._codec = codec
        self._prompts = prompts
        self._options = options
        self._numbers = itertools.count()
        self._rng = random.Random(seed)
        self._open: dict[str, _Open] = {}
        # The ids of a chat before and after the user's words, for questions that the target writes
        # itself; None without a chat template.
        self._around: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        if codec.has_chat_template:
            first, second = (codec.encode_chat([ChatMessage("user", c)]).ids for c in _CONTENTS)
            self._around = _common(first, second)

    def __iter__(self) -> Iterator[TokenSequence]:
        while True:
            while len(self._open) < self._options.concurrency:
                self._start(next(self._prompts))
            for event in self._engine.step().events:
                if isinstance(event, TokenEvent):
                    entry = self._open[event.request_id]
                    entry.ids += [token.token_id for token in event.tokens]
                elif isinstance(event, FinishEvent):
                    sequence = self._finish(event)
                    if sequence is not None:
                        yield sequence

    def _start(self, prompt: Prompt) -> None:
        match prompt.kind:
            case PromptKind.OPEN if self._around is not None:
                self._submit(self._around[0], prompt.temperature, is_question=True)
            case PromptKind.INSTRUCTION if self._codec.has_chat_template:
                text = self._shorten(prompt.text)
                chat = self._codec.encode_chat([ChatMessage("user", text)])
                self._submit(chat.ids, prompt.temperature, is_question=False)
            case _:
                # Without a chat template everything is continued as it is.
                ids = self._codec.encode_prompt(self._shorten(prompt.text) or "\n")
                self._submit(tuple(ids), prompt.temperature, is_question=False)

    def _shorten(self, text: str) -> str:
        ids = self._codec.encode(text)
        if len(ids) <= self._options.max_prompt_tokens:
            return text
        return self._codec.decode(ids[: self._options.max_prompt_tokens])

    def _submit(self, ids: tuple[int, ...], temperature: float, *, is_question: bool) -> None:
        options = self._options
        limit = options.max_question_tokens if is_question else options.max_answer_tokens
        own = self._rng.choice(_QUESTION_TEMPERATURES) if is_question else temperature
        sampling = SamplingParams(temperature=own, seed=self._rng.getrandbits(63))
        request = Request(
            request_id=f"distill-{next(self._numbers)}",
            prompt_ids=ids,
            max_new_tokens=limit,
            sampling=sampling,
            stop_token_ids=self._codec.eos_token_ids,
            speculation=Speculation.OFF,
        )
        try:
            self._engine.submit(request)
        except RequestError:
            return  # longer than the target's context: another prompt takes its place
        self._open[request.request_id] = _Open(ids, temperature, is_question, [])

    def _finish(self, event: FinishEvent) -> TokenSequence | None:
        entry = self._open.pop(event.request_id)
        if event.reason not in (FinishReason.STOP, FinishReason.LENGTH) or not entry.ids:
            return None
        if not entry.is_question:
            ids = (*entry.prompt_ids, *entry.ids)
            return TokenSequence(ids, len(entry.prompt_ids), entry.temperature)
        question = [token for token in entry.ids if token not in self._codec.eos_token_ids]
        assert self._around is not None
        prompt = (*entry.prompt_ids, *question, *self._around[1])
        self._submit(prompt, entry.temperature, is_question=False)
        return None


def _common(
    first: tuple[int, ...], second: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What two sequences share at their beginnings and at their ends."""
    shorter = min(len(first), len(second))
    start = next((i for i in range(shorter) if first[i] != second[i]), shorter)
    rest = shorter - start
    end = next((i for i in range(rest) if first[-1 - i] != second[-1 - i]), rest)
    return first[:start], first[len(first) - end :]
