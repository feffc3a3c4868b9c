"""Commit of one round: the single place where drafted tokens become output.

Stop conditions are looked for in order inside the accepted run, and the first one wins: nothing
after it is emitted, counted or cached. At the same token a stop wins over the length limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.events import (
    CommittedToken,
    FinishReason,
    SpeculationSummary,
    TokenLogprob,
    TokenSource,
    Usage,
)

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from paceline.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Committed:
    """tokens: what was appended. finish: why the sequence ends with them, if it does.
    stop_match: the stop string or id. tail: text that was held back and is now certain."""

    tokens: tuple[CommittedToken, ...]
    finish: FinishReason | None = None
    stop_match: str | int | None = None
    tail: str = ""


@dataclass(frozen=True, slots=True)
class DecidedToken:
    """A token that a round decided on; whether it is committed, commit decides."""

    token_id: int
    source: TokenSource
    logprob: TokenLogprob | None = None


def commit(sequence: Sequence, run: Many[DecidedToken], max_sequence_tokens: int) -> Committed:
    """Append the run of a round (accepted tokens and the next one) up to where the output ends."""
    committed = _append(sequence, run, max_sequence_tokens)
    if sequence.constraint is not None:
        sequence.constraint.advance([token.token_id for token in committed.tokens])
    return committed


def _append(sequence: Sequence, run: Many[DecidedToken], max_sequence_tokens: int) -> Committed:
    committed: list[CommittedToken] = []
    for decided in run:
        token_id, source, logprob = decided.token_id, decided.source, decided.logprob
        sequence.token_ids.append(token_id)
        if token_id in sequence.request.stop_token_ids:
            committed.append(CommittedToken(token_id, "", source, logprob))
            match, tail = _flush(sequence)
            stop = token_id if match is None else match
            return Committed(tuple(committed), FinishReason.STOP, stop, tail)
        text = sequence.stops.push(sequence.text.append(token_id))
        committed.append(CommittedToken(token_id, text, source, logprob))
        if sequence.stops.match is not None:
            return Committed(tuple(committed), FinishReason.STOP, sequence.stops.match)
        is_at_limit = (
            sequence.num_output >= sequence.request.max_new_tokens
            or sequence.num_tokens >= max_sequence_tokens
        )
        if is_at_limit:
            match, tail = _flush(sequence)
            reason = FinishReason.LENGTH if match is None else FinishReason.STOP
            return Committed(tuple(committed), reason, match, tail)
    return Committed(tuple(committed))


def flush_text(sequence: Sequence) -> str:
    """The text still held back when a sequence ends otherwise."""
    return _flush(sequence)[1]


def usage(sequence: Sequence) -> Usage:
    return Usage(sequence.num_prompt, sequence.num_cached_prompt or 0, sequence.num_output)


def summary(sequence: Sequence, now: float) -> SpeculationSummary:
    """What speculation did for a sequence that ends at `now` (seconds of the engine's clock)."""
    counters = sequence.counters
    started = sequence.arrived_at if sequence.started_at is None else sequence.started_at
    first = sequence.first_token_at
    return SpeculationSummary(
        num_drafted=counters.num_drafted,
        num_examined=counters.num_examined,
        num_passed=counters.num_passed,
        num_accepted=counters.num_accepted,
        num_steps=counters.num_steps,
        accepted_per_position=tuple(counters.accepted_per_position),
        examined_per_position=tuple(counters.examined_per_position),
        passed_per_position=tuple(counters.passed_per_position),
        drafter=sequence.drafter_name,
        gate=sequence.gate,
        reason=sequence.gate_reason,
        time_to_first_token_ms=None if first is None else (first - sequence.arrived_at) * 1e3,
        queue_ms=(started - sequence.arrived_at) * 1e3,
        generation_ms=(now - started) * 1e3,
        draft_ms=counters.draft_ms,
        verify_ms=counters.verify_ms,
        sample_ms=counters.sample_ms,
        other_ms=counters.other_ms,
        expected_plain_ms=counters.expected_plain_ms,
    )


def _flush(sequence: Sequence) -> tuple[str | None, str]:
    """The stop string that the last held-back text completes, if any, and what may be shown."""
    if sequence.stops.match is not None:
        return sequence.stops.match, ""
    tail = sequence.stops.push(sequence.text.flush())
    return sequence.stops.match, tail + sequence.stops.flush()
