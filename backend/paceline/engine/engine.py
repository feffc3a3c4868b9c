"""The step: drain, schedule, draft, verify, accept, commit, observe.

`Engine` belongs to one thread. Only `submit`, `cancel` and `status` may be called from others: they
leave a note in the inbox, which is read at the start of a step and nowhere else.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline.core.errors import (
    EngineBusyError,
    NonFiniteLogitsError,
    PacelineError,
    QueueFullError,
    RequestError,
)
from paceline.core.events import (
    EngineEvent,
    EngineStatus,
    FinishEvent,
    FinishReason,
    SpeculationSummary,
    StepResult,
    StepTimes,
    TokenEvent,
    TokenSource,
    Usage,
)
from paceline.core.request import Request
from paceline.engine.commit import Committed, DecidedToken, commit, flush_text, summary, usage
from paceline.engine.decisions import Decision
from paceline.engine.drafters.interface import Proposal
from paceline.engine.plan import Outcome, StepPlan
from paceline.engine.sequence import Sequence, SequenceStatus, TextStream
from paceline.engine.statistics import Statistics
from paceline.sampling.acceptance import NextSource
from paceline.sampling.constraints import JoinedConstraint, SamplingConstraint

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.limits import EngineLimits
    from paceline.engine.decisions import Verdict
    from paceline.engine.drafters.interface import Drafter
    from paceline.engine.policy import SpeculationPolicy
    from paceline.engine.scheduler import Scheduler
    from paceline.engine.verifier import Scores, Verifier
    from paceline.sampling.constraints import RowConstraint
    from paceline.sampling.grammar import GrammarCompiler

_SOURCES = {
    NextSource.PLAIN: TokenSource.PLAIN,
    NextSource.RESIDUAL: TokenSource.RESIDUAL,
    NextSource.BONUS: TokenSource.BONUS,
}


_NOTHING = Decision(0, 0, NextSource.PLAIN, False, 0, 0, (), 1.0)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A launched step whose outcome has not been read back from the device."""

    plan: StepPlan
    proposal: Proposal
    scores: Scores
    verdict: Verdict | None
    draft_cursors: tuple[int, ...]
    started_at: float
    times: StepTimes


class Engine:
    """Serves requests step by step.

    scheduler, verifier, drafter, policy: the stages. text_stream: makes the detokenizer of a
    sequence from its prompt. scrub: zeroes blocks whose contents proved worthless. grammars: for
    requests that have one; None refuses them. clock: seconds.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        verifier: Verifier,
        drafter: Drafter,
        policy: SpeculationPolicy,
        limits: EngineLimits,
        text_stream: Callable[[tuple[int, ...]], TextStream],
        scrub: Callable[[list[int]], None],
        grammars: GrammarCompiler | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.limits = limits
        self._grammars = grammars
        self._scheduler = scheduler
        self._verifier = verifier
        self._drafter = drafter
        self._policy = policy
        self._text_stream = text_stream
        self._scrub = scrub
        self._clock = clock
        self._inbox: deque[Request | str] = deque()
        self._arrivals: dict[str, float] = {}
        self._sequences: dict[str, Sequence] = {}
        self._owner: int | None = None
        self._num_steps = 0
        self._statistics = Statistics()
        self._watch_interval_s: float | None = None
        self._sessions_at = -math.inf
        self._status = EngineStatus()

    # Called from any thread.

    def submit(self, request: Request) -> None:
        """Queue a request; it enters at the next step.

        Raises:
            RequestError: it can never be served, its id is in use, or the queue is full.
        """
        self.limits.check(request)
        if request.grammar is not None:
            if self._grammars is None:
                raise RequestError("this engine has no grammars", field="grammar")
            self._grammars.compile(request.grammar)
        if request.request_id in self._arrivals:
            raise RequestError(f"a request with the id {request.request_id} is open", field="id")
        if self._status.num_waiting + len(self._inbox) >= self.limits.max_waiting:
            raise QueueFullError(
                f"{self.limits.max_waiting} requests are waiting already; try again later"
            )
        self._arrivals[request.request_id] = self._clock()
        self._inbox.append(request)

    def cancel(self, request_id: str) -> None:
        """End a request at the next step boundary; an unknown id is ignored."""
        self._inbox.append(request_id)

    def status(self) -> EngineStatus:
        """The engine as of the end of the last step."""
        return self._status

    def watch(self, interval_s: float | None) -> None:
        """Have the status hold all sessions, written down anew no more often than this and when an
        answer ends; None stops that."""
        self._watch_interval_s = interval_s

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._inbox) or self._scheduler.has_work

    # Called from the owner thread alone.

    def step(self) -> StepResult:
        """One scheduler iteration with one target pass. An error in it fails the sequences that
        it ran, never the engine."""
        self._assert_owner()
        started_at = self._clock()
        events = self._drain()
        plan = StepPlan(())
        times = StepTimes()
        num_rows = 0
        try:
            plan = self._scheduler.schedule()
            if plan.entries:
                in_flight = self.launch(plan, started_at)
                new_events, times = self.collect(in_flight)
                events += new_events
                num_rows = in_flight.scores.num_tokens
        except Exception as error:  # whatever broke, its requests must still end with an event
            events += self._fail_running(error)
        self._num_steps += 1
        has_finished = any(isinstance(event, FinishEvent) for event in events)
        self._status = self._make_status(num_rows, times, is_last_word=has_finished)
        return StepResult(tuple(events), self._status)

    def launch(self, plan: StepPlan, started_at: float) -> InFlight:
        """Draft, verify and accept: everything up to reading the outcome back."""
        entries = plan.entries
        for entry in entries:
            if entry.sequence.started_at is None:
                entry.sequence.started_at = started_at
        planned_at = self._clock()
        cursors = tuple(entry.sequence.num_draft_computed for entry in entries)
        proposal = self._propose(plan)
        drafted_at = self._clock()
        scores = self._verifier.score(entries, proposal.draft_ids)
        verified_at = self._clock()
        verdict = None
        if scores.sampled:
            verdict = self._verifier.accept(entries, proposal, scores)
        sampled_at = self._clock()
        times = StepTimes(
            draft_ms=(drafted_at - planned_at) * 1e3,
            verify_ms=(verified_at - drafted_at) * 1e3,
            sample_ms=(sampled_at - verified_at) * 1e3,
            other_ms=(planned_at - started_at) * 1e3,
        )
        return InFlight(plan, proposal, scores, verdict, cursors, started_at, times)

    def collect(self, in_flight: InFlight) -> tuple[list[EngineEvent], StepTimes]:
        """Read the outcome, commit, roll back, register full blocks, let drafter and policy see."""
        begun_at = self._clock()
        entries = in_flight.plan.entries
        decisions = [] if in_flight.verdict is None else in_flight.verdict.read()
        read_at = self._clock()
        decided = dict(zip(in_flight.scores.sampled, decisions, strict=True))
        events: list[EngineEvent] = []
        outcomes: list[Outcome] = []
        finished: list[tuple[Sequence, Committed]] = []
        for index, entry in enumerate(entries):
            sequence = entry.sequence
            num_before = sequence.num_tokens
            drafted = in_flight.proposal.draft_ids[index]
            decision = decided.get(index, _NOTHING)
            num_committed = 0
            sequence.num_computed += entry.num_target_tokens
            if index in decided:
                if decision.is_usable:
                    committed = self._commit(sequence, drafted, decision, read_at)
                    num_committed = len(committed.tokens)
                    events.append(TokenEvent(sequence.request_id, committed.tokens))
                    if committed.finish is not None:
                        finished.append((sequence, committed))
                    if drafted:
                        sequence.drafter_name = in_flight.proposal.drafter_names[index]
                        sequence.counters.count_round(
                            len(drafted),
                            decision.num_accepted,
                            decision.num_examined,
                            decision.num_passed,
                        )
                else:
                    self._finish_broken(sequence, events)
            elif entry.completes:
                finished.append((sequence, Committed((), FinishReason.LENGTH)))
            if sequence.status is SequenceStatus.RUNNING:
                outcomes.append(
                    Outcome(
                        sequence,
                        num_before,
                        len(drafted),
                        decision.num_accepted,
                        num_committed,
                        in_flight.scores.first_tokens[index],
                        entry.num_target_tokens + len(drafted),
                        num_examined=decision.num_examined,
                        num_passed=decision.num_passed,
                        survival=decision.survival,
                        target_prob=decision.next_prob if num_committed else None,
                        draft_probs=in_flight.proposal.scores[index]
                        if in_flight.proposal.scores
                        else (),
                        is_forced=bool(entry.forced),
                    )
                )
                self._scheduler.register_full_blocks(sequence)
        self._observe(in_flight, outcomes)
        times = self._share_times(in_flight, begun_at, read_at)
        self._policy.observe(outcomes, times)
        self._statistics.observe(outcomes, times, len(in_flight.plan.preempted), read_at)
        # Last, so that the summaries hold this step too.
        for sequence, committed in finished:
            reason = committed.finish or FinishReason.LENGTH
            events.append(
                self._finish_event(
                    sequence,
                    reason,
                    read_at,
                    tail=committed.tail,
                    stop_match=committed.stop_match,
                )
            )
            self._close(sequence)
        return events, times

    def abort(self, reason: str) -> StepResult:
        """End every open request with an error, those in the inbox too. The last call there is."""
        error = PacelineError(reason)
        now = self._clock()
        events: list[EngineEvent] = [
            self._finish_event(sequence, FinishReason.ERROR, now, error)
            for sequence in self._sequences.values()
        ]
        events += [
            _failed_at_birth(note, error) for note in self._inbox if isinstance(note, Request)
        ]
        self._inbox.clear()
        self._sequences.clear()
        self._arrivals.clear()
        self._status = replace(self._status, is_running=False, num_running=0, num_waiting=0)
        return StepResult(tuple(events), self._status)

    def _drain(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while self._inbox:
            note = self._inbox.popleft()
            if isinstance(note, str):
                sequence = self._sequences.get(note)
                if sequence is not None:
                    events.append(
                        self._finish_event(sequence, FinishReason.CANCELLED, self._clock())
                    )
                    self._close(sequence)
                continue
            try:
                sequence = self._make_sequence(note)
            except Exception as error:  # a request that cannot even begin must still end
                events.append(_failed_at_birth(note, error))
                del self._arrivals[note.request_id]
                continue
            self._sequences[note.request_id] = sequence
            self._scheduler.add(sequence)
        return events

    def _make_sequence(self, request: Request) -> Sequence:
        sampling = request.sampling
        parts: list[RowConstraint] = []
        if SamplingConstraint.needed(sampling):
            parts.append(SamplingConstraint(sampling, request.prompt_ids, request.stop_token_ids))
        if request.grammar is not None and self._grammars is not None:
            parts.append(self._grammars.constraint(request.grammar))
        constraint = parts[0] if len(parts) == 1 else JoinedConstraint(parts) if parts else None
        return Sequence(
            request,
            self._text_stream(request.prompt_ids),
            secrets.randbits(64) if sampling.seed is None else sampling.seed,
            self._arrivals[request.request_id],
            constraint,
        )

    def _propose(self, plan: StepPlan) -> Proposal:
        """The drafter's proposal, spread over all entries of the plan."""
        chosen = [index for index, e in enumerate(plan.entries) if e.num_drafted or e.num_catch_up]
        count = len(plan.entries)
        drafts: list[tuple[int, ...]] = [()] * count
        row_index: list[tuple[int, ...]] = [()] * count
        names = ["none"] * count
        scores: list[tuple[float, ...]] = [()] * count
        if not chosen:
            return Proposal(tuple(drafts), tuple(row_index), tuple(names))
        made = self._drafter.propose([plan.entries[index] for index in chosen])
        for position, index in enumerate(chosen):
            drafts[index] = made.draft_ids[position]
            row_index[index] = made.row_index[position]
            names[index] = made.drafter_names[position]
            if made.scores:
                scores[index] = made.scores[position]
        return Proposal(
            tuple(drafts),
            tuple(row_index),
            tuple(names),
            made.rows,
            made.vocab_ids,
            tuple(scores),
        )

    def _commit(
        self, sequence: Sequence, drafted: tuple[int, ...], decision: Decision, now: float
    ) -> Committed:
        accepted = drafted[: decision.num_accepted]
        sources = [TokenSource.ACCEPTED] * len(accepted) + [_SOURCES[NextSource(decision.source)]]
        logprobs = decision.logprobs or (None,) * len(sources)
        run = [
            DecidedToken(*each)
            for each in zip((*accepted, decision.next_token), sources, logprobs, strict=True)
        ]
        committed = commit(sequence, run, self.limits.max_sequence_tokens)
        # Rollback is this line: rows of rejected and of cut-off tokens are simply not counted.
        sequence.num_computed = sequence.num_tokens - 1
        sequence.round += 1
        sequence.counters.num_steps += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        return committed

    def _observe(self, in_flight: InFlight, outcomes: list[Outcome]) -> None:
        self._drafter.observe(outcomes, in_flight.scores.features)
        cursors = {
            entry.sequence.request_id: cursor
            for entry, cursor in zip(in_flight.plan.entries, in_flight.draft_cursors, strict=True)
        }
        for outcome in outcomes:
            sequence = outcome.sequence
            start, end = cursors[sequence.request_id], sequence.num_draft_computed
            if end > start:
                self._scheduler.cache.record_draft_rows(sequence.block_table, start, end)

    def _finish_broken(self, sequence: Sequence, events: list[EngineEvent]) -> None:
        error = NonFiniteLogitsError("the model gave no usable probabilities (NaN or infinity)")
        events.append(self._finish_event(sequence, FinishReason.ERROR, self._clock(), error))
        self._close(sequence, discard=True)

    def _fail_running(self, error: Exception) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        for sequence in list(self._scheduler.running):
            events.append(self._finish_event(sequence, FinishReason.ERROR, self._clock(), error))
            self._close(sequence, discard=True)
        return events

    def _finish_event(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        error: Exception | None = None,
        *,
        tail: str | None = None,
        stop_match: str | int | None = None,
    ) -> FinishEvent:
        sequence.gate, sequence.gate_reason = self._policy.describe(sequence)
        return FinishEvent(
            request_id=sequence.request_id,
            reason=reason,
            usage=usage(sequence),
            summary=summary(sequence, now),
            text=flush_text(sequence) if tail is None else tail,
            stop_match=stop_match,
            error=None if error is None else f"{type(error).__name__}: {error}",
            error_code=None if error is None else type(error).__name__,
        )

    def _close(self, sequence: Sequence, *, discard: bool = False) -> None:
        self._scrub(self._scheduler.finish(sequence, discard=discard))
        self._statistics.finish(sequence, self._policy)
        self._policy.release(sequence)
        del self._sequences[sequence.request_id]
        del self._arrivals[sequence.request_id]

    def _share_times(self, in_flight: InFlight, begun_at: float, read_at: float) -> StepTimes:
        """The step's times, added in equal shares to the sequences that it computed."""
        ended_at = self._clock()
        before = in_flight.times
        times = StepTimes(
            draft_ms=before.draft_ms,
            verify_ms=before.verify_ms,
            sample_ms=before.sample_ms + (read_at - begun_at) * 1e3,
            other_ms=before.other_ms + (ended_at - read_at) * 1e3,
        )
        share = 1 / len(in_flight.plan.entries)
        for entry in in_flight.plan.entries:
            counters = entry.sequence.counters
            counters.draft_ms += times.draft_ms * share
            counters.verify_ms += times.verify_ms * share
            counters.sample_ms += times.sample_ms * share
            counters.other_ms += times.other_ms * share
        return times

    def _make_status(
        self, num_rows: int, times: StepTimes, *, is_last_word: bool = False
    ) -> EngineStatus:
        """is_last_word: an answer has ended, so that its session may not speak again soon."""
        pool = self._scheduler.cache.pool
        sessions = self._status.sessions
        if self._watch_interval_s is not None:
            now = self._clock()
            if is_last_word or now - self._sessions_at >= self._watch_interval_s:
                self._sessions_at = now
                sessions = self._statistics.sessions(self._policy, now)
        return EngineStatus(
            step=self._num_steps,
            num_running=len(self._scheduler.running),
            num_waiting=len(self._scheduler.waiting),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_rows=num_rows,
            times=times,
            totals=self._statistics.totals(*self._policy.num_flips),
            speculation=self._policy.status(),
            sessions=sessions,
        )

    def _assert_owner(self) -> None:
        thread = threading.get_ident()
        if self._owner is None:
            self._owner = thread
        elif self._owner != thread:
            raise EngineBusyError("a step was asked for by a thread that does not own the engine")


def _failed_at_birth(request: Request, error: Exception) -> FinishEvent:
    """The end of a request that never became a sequence."""
    return FinishEvent(
        request_id=request.request_id,
        reason=FinishReason.ERROR,
        usage=Usage(len(request.prompt_ids), 0, 0),
        summary=SpeculationSummary(),
        error=f"{type(error).__name__}: {error}",
        error_code=type(error).__name__,
    )
