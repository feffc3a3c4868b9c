"""Counts what the steps did: for the engine, and for each session over all its requests."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.core.events import Gate, StepTimes
from paceline.core.statistics import DEEPEST, STEP_TOKEN_BUCKETS, EngineTotals, SessionStatus

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Sequence as Many

    from paceline.engine.plan import Outcome
    from paceline.engine.policy import SpeculationPolicy
    from paceline.engine.sequence import Sequence

MAX_SESSIONS = 1024
_RATE_WINDOW_S = 2.0
_MARK_EVERY_S = 0.5


@dataclass(slots=True)
class _Session:
    """Raw counts of one speculation key.

    marks: time and tokens now and then over the last _RATE_WINDOW_S, since the answer's first.
    step, share: the newest step that it took part in, and its part of that one.
    """

    gate: Gate = Gate.OFF
    reason: str = ""
    drafter: str = "none"
    acceptance: float | None = None
    accepted: list[int] = field(default_factory=lambda: [0] * DEEPEST)
    examined: list[int] = field(default_factory=lambda: [0] * DEEPEST)
    passed: list[int] = field(default_factory=lambda: [0] * DEEPEST)
    depths: list[int] = field(default_factory=lambda: [0] * (DEEPEST + 1))
    num_steps: int = 0
    num_tokens: int = 0
    marks: deque[tuple[float, int]] = field(default_factory=deque)
    last_at: float = 0.0
    time_to_first_token_ms: float | None = None
    step: int = 0
    share: float = 0.0
    num_running: int = 0


class Statistics:
    """Owned by the engine. The least recently active sessions are forgotten."""

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._running: dict[str, Sequence] = {}
        self._prompt = self._cached = self._output = self._preemptions = 0
        self._drafts = self._drafted = self._examined = self._passed = self._accepted = 0
        self._accepted_at = [0] * DEEPEST
        self._examined_at = [0] * DEEPEST
        self._passed_at = [0] * DEEPEST
        self._step_counts = [0] * (len(STEP_TOKEN_BUCKETS) + 1)
        self._step_sum = 0
        self._seconds = [0.0, 0.0, 0.0, 0.0]
        self._num_steps = 0
        self._times = StepTimes()

    def observe(
        self,
        outcomes: Many[Outcome],
        times: StepTimes,
        num_preempted: int,
        now: float,
    ) -> None:
        """One step, after commit. now: seconds of the engine's clock."""
        num_prefill = num_committed = 0
        share = 1 / max(1, len(outcomes))
        self._num_steps += 1
        self._times = times
        for outcome in outcomes:
            sequence = outcome.sequence
            if sequence.request_id not in self._running:
                self._begin(sequence)
            if outcome.num_before == sequence.num_prompt:
                num_prefill += outcome.num_rows
            num_committed += outcome.num_committed
            if outcome.num_committed:
                self._count(outcome, now)
            session = self._session(sequence)
            # A session may have several requests in a step.
            session.share = share + (session.share if session.step == self._num_steps else 0.0)
            session.step = self._num_steps
        self._output += num_committed
        self._preemptions += num_preempted
        tokens = num_prefill + num_committed
        self._step_counts[bisect_left(STEP_TOKEN_BUCKETS, tokens)] += 1
        self._step_sum += tokens
        for stage, milliseconds in enumerate(
            (times.draft_ms, times.verify_ms, times.sample_ms, times.other_ms)
        ):
            self._seconds[stage] += milliseconds / 1e3

    def finish(self, sequence: Sequence, policy: SpeculationPolicy) -> None:
        """A sequence has ended; what is known of its session stays."""
        if self._running.pop(sequence.request_id, None) is None:
            return
        session = self._session(sequence)
        session.num_running -= 1
        self._describe(session, sequence, policy)

    def totals(self, num_session_flips: int = 0, num_load_flips: int = 0) -> EngineTotals:
        draft, verify, sample, other = self._seconds
        return EngineTotals(
            self._prompt,
            self._cached,
            self._output,
            self._preemptions,
            self._drafts,
            self._drafted,
            self._examined,
            self._passed,
            self._accepted,
            tuple(self._accepted_at),
            tuple(self._examined_at),
            tuple(self._passed_at),
            num_session_flips,
            num_load_flips,
            tuple(self._step_counts),
            self._step_sum,
            draft,
            verify,
            sample,
            other,
        )

    def sessions(self, policy: SpeculationPolicy, now: float) -> tuple[SessionStatus, ...]:
        """All sessions that are remembered, the most recently active last. Their times are parts of
        the newest step; those that it passed over have none in it."""
        for sequence in self._running.values():
            self._describe(self._session(sequence), sequence, policy)
        return tuple(self._status(key, session, now) for key, session in self._sessions.items())

    def _begin(self, sequence: Sequence) -> None:
        self._running[sequence.request_id] = sequence
        self._session(sequence).num_running += 1
        self._prompt += sequence.num_prompt
        self._cached += sequence.num_cached_prompt or 0

    def _count(self, outcome: Outcome, now: float) -> None:
        sequence = outcome.sequence
        session = self._session(sequence)
        if sequence.num_output == outcome.num_committed:
            session.time_to_first_token_ms = (now - sequence.arrived_at) * 1e3
            # Between two answers nobody generates: the rate starts anew.
            session.marks = deque([(now, session.num_tokens + outcome.num_committed)])
        session.num_steps += 1
        session.num_tokens += outcome.num_committed
        session.depths[min(outcome.num_drafted, DEEPEST)] += 1
        session.last_at = now
        marks = session.marks
        if marks and now - marks[-1][0] >= _MARK_EVERY_S:
            marks.append((now, session.num_tokens))
            while now - marks[1][0] >= _RATE_WINDOW_S:
                marks.popleft()
        if not outcome.num_drafted:
            return
        session.drafter = sequence.drafter_name
        self._drafts += 1
        self._drafted += outcome.num_drafted
        self._examined += outcome.num_examined
        self._passed += outcome.num_passed
        self._accepted += outcome.num_accepted
        for position in range(min(outcome.num_accepted, DEEPEST)):
            session.accepted[position] += 1
            self._accepted_at[position] += 1
        for position in range(min(outcome.num_examined, DEEPEST)):
            session.examined[position] += 1
            self._examined_at[position] += 1
        for position in range(min(outcome.num_passed, DEEPEST)):
            session.passed[position] += 1
            self._passed_at[position] += 1

    def _describe(self, session: _Session, sequence: Sequence, policy: SpeculationPolicy) -> None:
        session.gate, session.reason = policy.describe(sequence)
        session.acceptance = policy.acceptance(sequence)

    def _session(self, sequence: Sequence) -> _Session:
        key = sequence.request.speculation_key or sequence.request_id
        session = self._sessions.get(key)
        if session is None:
            session = self._sessions[key] = _Session()
            self._forget_one()
        else:
            self._sessions.move_to_end(key)
        return session

    def _forget_one(self) -> None:
        if len(self._sessions) <= MAX_SESSIONS:
            return
        idle = (key for key, session in self._sessions.items() if not session.num_running)
        oldest = next(idle, None)
        if oldest is not None:
            del self._sessions[oldest]

    def _status(self, key: str, session: _Session, now: float) -> SessionStatus:
        is_active = session.num_running > 0
        # All three to one depth, so that they can be read beside each other.
        depth = max(len(_trimmed(session.accepted)), len(_trimmed(session.examined)))
        times = self._times.scaled(session.share if session.step == self._num_steps else 0.0)
        rate = None
        if session.marks:
            since, tokens = session.marks[0]
            until = now if is_active else session.last_at
            if until > since:
                rate = (session.num_tokens - tokens) / (until - since)
        return SessionStatus(
            key=key,
            active=is_active,
            gate=session.gate,
            reason=session.reason,
            drafter=session.drafter,
            acceptance=session.acceptance,
            accepted_per_position=tuple(session.accepted[:depth]),
            examined_per_position=tuple(session.examined[:depth]),
            passed_per_position=tuple(session.passed[:depth]),
            gamma_histogram=_trimmed(session.depths),
            tokens_per_step=session.num_tokens / session.num_steps if session.num_steps else None,
            tokens_per_second=rate,
            time_to_first_token_ms=session.time_to_first_token_ms,
            draft_ms=times.draft_ms,
            verify_ms=times.verify_ms,
            sample_ms=times.sample_ms,
            other_ms=times.other_ms,
        )


def _trimmed(counts: Iterable[int]) -> tuple[int, ...]:
    """Without the zeros at the end."""
    known = list(counts)
    while known and not known[-1]:
        known.pop()
    return tuple(known)
