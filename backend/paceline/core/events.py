"""What the engine tells: facts about committed tokens, batched per step, immutable, picklable."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from paceline.core.statistics import EngineTotals, SessionStatus, SpeculationStatus


class FinishReason(StrEnum):
    """Why a request ended. Exactly one per request."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class TokenSource(StrEnum):
    """Where a committed token came from.

    ACCEPTED: drafted and accepted. RESIDUAL: drawn in place of a rejected draft. BONUS: drawn from
    the target after a full acceptance. PLAIN: nothing was drafted.
    """

    ACCEPTED = "accepted"
    RESIDUAL = "residual"
    BONUS = "bonus"
    PLAIN = "plain"


class Gate(StrEnum):
    """State of speculation for a session."""

    ON = "on"
    OFF = "off"
    PROBING = "probing"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities under the target before any warping (natural logarithm)."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """One committed token and the text that became certain with it (often its own, sometimes none
    yet, sometimes that of tokens before it too: bytes of a character, a possible stop string)."""

    token_id: int
    text: str
    source: TokenSource
    logprob: TokenLogprob | None = None


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """The tokens that one step committed for one request; never empty."""

    request_id: str
    tokens: tuple[CommittedToken, ...]

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a request. `num_cached` prompt tokens were found in the prefix cache."""

    num_prompt: int
    num_cached: int
    num_output: int


@dataclass(frozen=True, slots=True)
class SpeculationSummary:
    """What speculation did for one request.

    num_accepted: drafted tokens that became output. num_examined, num_passed: drafted positions
    tested up to the first failure of each round, and those that passed, by the token rule whatever
    rule was used (under the block rule more can be accepted than passed). accepted_per_position[i]:
    how often draft position i was accepted; examined_per_position and passed_per_position likewise,
    so that passed / examined is the acceptance at that depth. num_steps: target passes that
    committed tokens of this request.
    The *_ms fields are this request's share of wall time; expected_plain_ms what plain decoding of
    the same tokens would have taken, None without a cost table and for a request that forced its
    depth.
    """

    num_drafted: int = 0
    num_examined: int = 0
    num_passed: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    accepted_per_position: tuple[int, ...] = ()
    examined_per_position: tuple[int, ...] = ()
    passed_per_position: tuple[int, ...] = ()
    drafter: str = "none"
    gate: Gate = Gate.OFF
    reason: str = ""
    time_to_first_token_ms: float | None = None
    queue_ms: float = 0.0
    generation_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    other_ms: float = 0.0
    expected_plain_ms: float | None = None

    @property
    def acceptance(self) -> float | None:
        return self.num_passed / self.num_examined if self.num_examined else None


@dataclass(frozen=True, slots=True)
class FinishEvent:
    """The last fact about a request.

    text: what was held back and is now certain (to be appended). stop_match: the stop string or
    token id that ended it. error: one line when reason is ERROR.
    """

    request_id: str
    reason: FinishReason
    usage: Usage
    summary: SpeculationSummary
    text: str = ""
    stop_match: str | int | None = None
    error: str | None = None
    error_code: str | None = None


EngineEvent = TokenEvent | FinishEvent


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Wall time of one step in milliseconds, by stage."""

    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    other_ms: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.sample_ms + self.other_ms

    def scaled(self, share: float) -> StepTimes:
        """A part of each."""
        return StepTimes(
            self.draft_ms * share,
            self.verify_ms * share,
            self.sample_ms * share,
            self.other_ms * share,
        )


@dataclass(frozen=True, slots=True)
class WatchedStep:
    """One step as a whole. num_rows: token rows of its target pass. predicted_ms: by the cost
    table, None without one."""

    num_rows: int
    times: StepTimes
    predicted_ms: float | None = None


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """The engine between two steps, for health, metrics and telemetry.

    is_running: False once it has stopped, on purpose or by a fault. sessions: as of the last time
    that they were written down, see `Engine.watch`. watched_step: the step that their times are
    shares of, which is older than `times` as soon as there was another; None before any.
    """

    step: int = 0
    is_running: bool = True
    num_running: int = 0
    num_waiting: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_cached_blocks: int = 0
    num_rows: int = 0
    times: StepTimes = field(default_factory=StepTimes)
    totals: EngineTotals = field(default_factory=EngineTotals)
    speculation: SpeculationStatus = field(default_factory=SpeculationStatus)
    sessions: tuple[SessionStatus, ...] = ()
    watched_step: WatchedStep | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """Everything one step tells the outside, delivered in one call."""

    events: tuple[EngineEvent, ...]
    status: EngineStatus
