"""What an engine tells about itself besides events: counts since it began, and its sessions.

Immutable and picklable, as everything that leaves the engine's thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.events import Gate

DEEPEST = 16
"""Draft positions are counted up to this depth."""
STEP_TOKEN_BUCKETS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of the histogram of tokens per step."""


@dataclass(frozen=True, slots=True)
class SessionStatus:
    """One session (speculation key) as of its last step; counts are over all its requests.

    active: a request is running. acceptance: over the last examined positions; None before any.
    accepted_per_position[i], examined_per_position[i], passed_per_position[i]: by depth of the
    draft, all to the same depth; the latter two as `SpeculationSummary` says.
    gamma_histogram[g]: decoding steps that drafted g tokens. tokens_per_second: over the last two
    seconds; None before there were any. The *_ms fields are its share of the engine's
    `EngineStatus.watched_step`, 0 if it took no part in that.
    """

    key: str
    active: bool
    gate: Gate
    reason: str
    drafter: str
    acceptance: float | None
    accepted_per_position: tuple[int, ...]
    examined_per_position: tuple[int, ...]
    passed_per_position: tuple[int, ...]
    gamma_histogram: tuple[int, ...]
    tokens_per_step: float | None
    tokens_per_second: float | None
    time_to_first_token_ms: float | None
    draft_ms: float
    verify_ms: float
    sample_ms: float
    other_ms: float


@dataclass(frozen=True, slots=True)
class EngineTotals:
    """Counts since the engine began.

    num_prompt_tokens: prompts taken in, of which num_cached_prompt_tokens were found in the prefix
    cache. num_drafts: verified drafts of at least one token. The per-position counts have DEEPEST
    entries. num_session_flips, num_load_flips: times that a session's gate, and the load gate of
    the draft model, opened or closed. step_token_counts: steps by tokens computed and committed, in
    STEP_TOKEN_BUCKETS and beyond the last; step_token_sum: those tokens.
    """

    num_prompt_tokens: int = 0
    num_cached_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_drafted: int = 0
    num_examined: int = 0
    num_passed: int = 0
    num_accepted: int = 0
    accepted_per_position: tuple[int, ...] = (0,) * DEEPEST
    examined_per_position: tuple[int, ...] = (0,) * DEEPEST
    passed_per_position: tuple[int, ...] = (0,) * DEEPEST
    num_session_flips: int = 0
    num_load_flips: int = 0
    step_token_counts: tuple[int, ...] = (0,) * (len(STEP_TOKEN_BUCKETS) + 1)
    step_token_sum: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    sample_seconds: float = 0.0
    other_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SpeculationStatus:
    """The controller as of the last step. ledger_level_ms, ledger_capacity_ms: what speculation
    has cost beyond its allowance, and may. predicted_step_ms: of the last step, by the cost table.
    break_even_rows: above it drafting for everybody cannot pay; None where it always does."""

    ledger_level_ms: float | None = None
    ledger_capacity_ms: float | None = None
    predicted_step_ms: float | None = None
    break_even_rows: int | None = None
