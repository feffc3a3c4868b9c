"""What is asked of the engine: immutable, picklable, free of wire and torch.

A `Request` is complete and already validated in its own terms: token ids instead of text, no
optional that means "choose for me" but those documented here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from paceline.core.errors import RequestError


class Speculation(StrEnum):
    """A request's say about speculative decoding.

    AUTO: gates and ledger decide, `num_speculative_tokens` is an upper bound.
    ON: exactly `num_speculative_tokens` wherever length and memory allow; gates and ledger are
    bypassed. OFF: plain decoding.
    """

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class DrafterKind(StrEnum):
    """Which drafter may propose for a sequence."""

    AUTO = "auto"
    MODEL = "model"
    NGRAM = "ngram"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is drawn from the target's logits.

    temperature: 0 is greedy (the highest logit, lowest id on ties), else the divisor.
    top_k: 0 keeps all, else how many of the most probable tokens stay.
    top_p: smallest set of most probable tokens whose mass reaches this, in (0, 1].
    min_p: drops tokens less probable than this times the most probable one, in [0, 1].
    seed: None draws from the engine's own entropy.
    repetition_penalty, presence_penalty, frequency_penalty: 1, 0 and 0 change nothing.
    logit_bias: pairs of token id and the value added to its logit.
    min_tokens: stop tokens are impossible before this many output tokens.
    banned_token_ids: tokens that are impossible.
    top_logprobs: None reports none, else how many alternatives beside each emitted token.

    Raises RequestError naming the field and its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    banned_token_ids: tuple[int, ...] = ()
    top_logprobs: int | None = None

    def __post_init__(self) -> None:
        _require(
            math.isfinite(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "a finite number, 0 or more",
        )
        _require(self.top_k >= 0, "top_k", self.top_k, "0 (all tokens) or more")
        _require(0 < self.top_p <= 1, "top_p", self.top_p, "more than 0 and at most 1")
        _require(0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 to 1")
        _require(
            self.seed is None or 0 <= self.seed < 2**63, "seed", self.seed, "from 0 to 2**63 - 1"
        )
        _require(
            math.isfinite(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "a finite number above 0",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            _require(-2 <= value <= 2, name, value, "from -2 to 2")
        for token_id, bias in self.logit_bias:
            _require(
                token_id >= 0 and math.isfinite(bias) and -100 <= bias <= 100,
                "logit_bias",
                f"{token_id}: {bias}",
                "token ids of 0 or more with values from -100 to 100",
            )
        _require(self.min_tokens >= 0, "min_tokens", self.min_tokens, "0 or more")
        _require(
            all(token_id >= 0 for token_id in self.banned_token_ids),
            "banned_token_ids",
            list(self.banned_token_ids),
            "token ids of 0 or more",
        )
        _require(
            self.top_logprobs is None or 0 <= self.top_logprobs <= 20,
            "top_logprobs",
            self.top_logprobs,
            "from 0 to 20",
        )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Whether a row depends on the tokens before it by more than the model."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


class GrammarKind(StrEnum):
    """What the text of a grammar is."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    LARK = "lark"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the whole output must look like; it then ends by itself."""

    kind: GrammarKind
    text: str


@dataclass(frozen=True, slots=True)
class Request:
    """One thing to generate.

    prompt_ids: at least one token id.
    max_new_tokens: the context's end stops earlier; 0 computes the prompt into the prefix cache and
    ends with LENGTH and no token.
    stop_token_ids: any of them ends the output; the id itself is committed, its text is not shown.
    stop: strings that end the output; text from the match on is not shown.
    num_speculative_tokens: None takes the server's.
    speculation_key: whose acceptance history this belongs to (connection and lane), so that what
    was learned outlives the request.
    grammar: None leaves the output free.
    cache_salt: requests share cached K/V only under equal salts (tenants, adapters).
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()
    speculation: Speculation = Speculation.AUTO
    num_speculative_tokens: int | None = None
    drafter: DrafterKind = DrafterKind.AUTO
    speculation_key: str = ""
    cache_salt: str = ""
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        _require(len(self.prompt_ids) > 0, "input", "nothing", "at least one token")
        _require(self.max_new_tokens >= 0, "max_output_tokens", self.max_new_tokens, "0 or more")
        _require(
            all(self.stop), "stop", "or holds an empty string", "strings of one character or more"
        )
        _require(len(self.stop) <= 16, "stop", f"{len(self.stop)} strings", "at most 16 strings")
        _require(
            self.num_speculative_tokens is None or 0 <= self.num_speculative_tokens <= 16,
            "num_speculative_tokens",
            self.num_speculative_tokens,
            "from 0 to 16",
        )
        # Where only the prompt is to be computed nothing has a length.
        _require(
            self.sampling.min_tokens <= self.max_new_tokens or self.max_new_tokens == 0,
            "min_tokens",
            self.sampling.min_tokens,
            f"at most the {self.max_new_tokens} tokens that the answer may have",
        )
        _require(
            self.grammar is None or self.sampling.min_tokens == 0,
            "min_tokens",
            self.sampling.min_tokens,
            "0 where a grammar says when the output ends",
        )


def _require(condition: bool, field_name: str, value: object, right: str) -> None:
    if not condition:
        raise RequestError(f"{field_name} is {value}; it must be {right}", field=field_name)
