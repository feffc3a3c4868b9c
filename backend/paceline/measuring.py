"""Runs a target with a draft over given prompts and counts what is accepted, for `paceline plan`.

The engine is the server's, with the drafts of every step at full depth: counts of one depth then
say what any smaller depth would have had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.composition import build_engine, check_models, facts_of, footprint, plan_for
from paceline.core.config import ServeConfig, resolve
from paceline.core.errors import ConfigError
from paceline.core.events import FinishEvent, TokenEvent, TokenSource
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.model.chat import ChatMessage
from paceline.planning.acceptance_run import DraftCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.engine.engine import Engine
    from paceline.model.tokenizer import TextCodec
    from paceline.planning.acceptance_run import Prompt

NUM_SEQUENCES = 4
"""Few enough to be quick on a CPU, many enough not to waste passes."""
_SPARE_TOKENS = 64


def measure_acceptance(
    target: str,
    draft: str,
    prompts: Sequence[Prompt],
    *,
    num_tokens: int,
    temperature: float,
    max_gamma: int,
) -> DraftCounts:
    """As `paceline.planning.acceptance_run.AcceptanceRun` says."""
    is_copying = draft.strip().lower() == "ngram"
    drafter = DrafterKind.NGRAM if is_copying else DrafterKind.MODEL
    config = ServeConfig(
        target=target,
        draft=None if is_copying else draft,
        drafter=drafter,
        num_speculative_tokens=max_gamma,
        max_sequences=NUM_SEQUENCES,
    )
    models = check_models(config)
    decided = resolve(config, facts_of(models))
    encoded = [_encode(models.codec, prompt) for prompt in prompts]
    longest = max(len(ids) for ids in encoded) + num_tokens + max_gamma
    if longest > decided.max_model_len:
        raise ConfigError(
            f"measure: the longest prompt has {max(map(len, encoded))} tokens; with an answer of "
            f"{num_tokens} that is more than the target's {decided.max_model_len}",
            field="measure",
        )
    parts = [footprint(model, decided) for model in (models.target, models.draft) if model]
    row_bytes = sum(part.kv_bytes_per_token for part in parts)
    plan = plan_for(
        models, decided, kv_memory=NUM_SEQUENCES * (longest + _SPARE_TOKENS) * row_bytes
    )
    counts = _Counts(num_tokens, max_gamma)
    requests = [
        Request(
            f"prompt-{index}",
            ids,
            num_tokens,
            SamplingParams(temperature=temperature),
            stop_token_ids=models.codec.eos_token_ids,
            speculation=Speculation.ON,
            drafter=drafter,
            num_speculative_tokens=max_gamma,
        )
        for index, ids in enumerate(encoded)
    ]
    _run(build_engine(models, decided, plan, is_adaptive=False), requests, counts)
    return counts.result()


def _encode(codec: TextCodec, prompt: Prompt) -> tuple[int, ...]:
    if prompt.messages:
        messages = [ChatMessage(role, content) for role, content in prompt.messages]
        return tuple(codec.encode_chat(messages).ids)
    if prompt.is_raw or not codec.has_chat_template:
        return tuple(codec.encode_prompt(prompt.text))
    return tuple(codec.encode_chat([ChatMessage("user", prompt.text)]).ids)


def _run(engine: Engine, requests: Sequence[Request], counts: _Counts) -> None:
    """A few requests at a time, so that the queue's bound is never met."""
    waiting = list(reversed(requests))
    num_open = 0
    while waiting or num_open:
        while waiting and num_open < NUM_SEQUENCES:
            engine.submit(waiting.pop())
            num_open += 1
        for event in engine.step().events:
            match event:
                case TokenEvent():
                    sources = [token.source for token in event.tokens]
                    counts.add(event.request_id, sources)
                case FinishEvent():
                    num_open -= 1
                    if event.error is not None:
                        raise ConfigError(f"measure: {event.error}", field="measure")


class _Counts:
    """Rounds by how far they came. A round that was cut short by the end of its answer counts as
    far as it was allowed to go."""

    def __init__(self, num_tokens: int, max_gamma: int) -> None:
        self._num_tokens = num_tokens
        self._max_gamma = max_gamma
        self._num_emitted: dict[str, int] = {}
        self._accepted = [0] * max_gamma
        self._examined = [0] * max_gamma
        self._num_steps = 0

    def add(self, request_id: str, sources: Sequence[TokenSource]) -> None:
        before = self._num_emitted.get(request_id)
        self._num_emitted[request_id] = (before or 0) + len(sources)
        if before is None:
            return  # the prompt's own pass: nothing is drafted in it
        self._num_steps += 1
        num_accepted = sources.count(TokenSource.ACCEPTED)
        if sources[-1] is TokenSource.PLAIN:
            return  # nothing was drafted
        num_drafted = min(self._max_gamma, self._num_tokens - before - 1)
        if sources[-1] is not TokenSource.RESIDUAL:
            num_drafted = num_accepted  # all accepted, or an end of text among them
        for position in range(num_accepted):
            self._accepted[position] += 1
        for position in range(min(num_accepted + 1, num_drafted)):
            self._examined[position] += 1

    def result(self) -> DraftCounts:
        if not self._examined[0]:
            raise ConfigError(
                "measure: nothing was drafted on these prompts; longer answers or other prompts "
                "may help",
                field="measure",
            )
        return DraftCounts(tuple(self._accepted), tuple(self._examined), self._num_steps)
