"""The engine: its inbox, its step, its status.

`Engine` belongs to one thread. Only `submit`, `cancel`, `watch` and `status` may be called from
others: they leave a note in the inbox, which is read at the start of a step and nowhere else.
"""

from __future__ import annotations

import math
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from paceline.core.errors import EngineBusyError, PacelineError
from paceline.core.events import (
    EngineEvent,
    EngineStatus,
    FinishEvent,
    FinishReason,
    StepResult,
    StepTimes,
    WatchedStep,
)
from paceline.engine.inbox import Arrival, Cancellation, Inbox
from paceline.engine.sequences import OpenSequences
from paceline.engine.stages import Stages
from paceline.engine.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.limits import EngineLimits
    from paceline.core.request import Request
    from paceline.engine.drafters.interface import Drafter
    from paceline.engine.policy import SpeculationPolicy
    from paceline.engine.scheduler import Scheduler
    from paceline.engine.sequence import TextStream
    from paceline.engine.verifier import Verifier
    from paceline.sampling.grammar import GrammarCompiler


class Engine:
    """Serves requests step by step: drain, schedule, draft, verify, accept, commit, observe.

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
        self._scheduler = scheduler
        self._verifier = verifier
        self._drafter = drafter
        self._policy = policy
        self._clock = clock
        self._statistics = Statistics()
        self._inbox = Inbox(limits, grammars, clock)
        self._sequences = OpenSequences(
            inbox=self._inbox,
            scheduler=scheduler,
            policy=policy,
            statistics=self._statistics,
            text_stream=text_stream,
            scrub=scrub,
        )
        self._stages = Stages(
            scheduler=scheduler,
            verifier=verifier,
            drafter=drafter,
            policy=policy,
            sequences=self._sequences,
            statistics=self._statistics,
            max_sequence_tokens=limits.max_sequence_tokens,
            clock=clock,
        )
        self._owner: int | None = None
        self._num_steps = 0
        self._watch_interval_s: float | None = None
        self._sessions_at = -math.inf
        self._newest_step: WatchedStep | None = None
        self._status = EngineStatus()

    # Called from any thread.

    def submit(self, request: Request) -> None:
        """Queue a request; it enters at the next step.

        A grammar is compiled here, on the caller's thread, unless the `GrammarCompiler` that the
        engine was given holds it already. Whoever must not wait (an event loop) has its `compile`
        called on another thread just before.

        Raises:
            RequestError: it can never be served, its id is in use, or the queue is full.
        """
        self._inbox.submit(request, self._status.num_waiting)

    def cancel(self, request_id: str) -> None:
        """End a request at the next step boundary; an unknown id is ignored."""
        self._inbox.cancel(request_id)

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
        return len(self._inbox) > 0 or self._scheduler.has_work

    # Called from the owner thread alone.

    def step(self) -> StepResult:
        """One scheduler iteration with one target pass. An error in it fails the sequences that
        it ran, never the engine."""
        self._assert_owner()
        started_at = self._clock()
        events = self._drain()
        times = StepTimes()
        num_rows = 0
        try:
            plan = self._scheduler.schedule()
            if plan.entries:
                in_flight = self._stages.launch(plan, started_at)
                new_events, times = self._stages.collect(in_flight)
                events += new_events
                num_rows = in_flight.scores.num_tokens
        except Exception as error:  # whatever broke, its requests must still end with an event
            events += self._fail_running(error)
        self._num_steps += 1
        has_finished = any(isinstance(event, FinishEvent) for event in events)
        self._status = self._make_status(num_rows, times, is_last_word=has_finished)
        return StepResult(tuple(events), self._status)

    def abort(self, reason: str) -> StepResult:
        """End every open request with an error, those in the inbox too. The last call there is."""
        error = PacelineError(reason)
        events: list[EngineEvent] = [*self._sequences.abandon(error, self._clock())]
        events += [
            self._sequences.refuse(note.request, error)
            for note in self._inbox.take()
            if isinstance(note, Arrival)
        ]
        self._status = replace(self._status, is_running=False, num_running=0, num_waiting=0)
        return StepResult(tuple(events), self._status)

    def _drain(self) -> list[EngineEvent]:
        """Read the inbox; the ends of those that were cancelled or cannot begin."""
        events: list[EngineEvent] = []
        for note in self._inbox.take():
            match note:
                case Arrival():
                    refusal = self._sequences.begin(note)
                    if refusal is not None:
                        events.append(refusal)
                case Cancellation(request_id=request_id):
                    sequence = self._sequences.get(request_id)
                    if sequence is not None:
                        now = self._clock()
                        events.append(self._sequences.end(sequence, FinishReason.CANCELLED, now))
        return events

    def _fail_running(self, error: Exception) -> list[EngineEvent]:
        return [
            self._sequences.end(sequence, FinishReason.ERROR, self._clock(), error, discard=True)
            for sequence in list(self._scheduler.running)
        ]

    def _make_status(
        self, num_rows: int, times: StepTimes, *, is_last_word: bool = False
    ) -> EngineStatus:
        """is_last_word: an answer has ended, so that its session may not speak again soon."""
        pool = self._scheduler.cache.pool
        speculation = self._policy.status()
        if num_rows:
            self._newest_step = WatchedStep(num_rows, times, speculation.predicted_step_ms)
        sessions, watched_step = self._status.sessions, self._status.watched_step
        if self._watch_interval_s is not None:
            now = self._clock()
            if is_last_word or now - self._sessions_at >= self._watch_interval_s:
                self._sessions_at = now
                sessions = self._statistics.sessions(self._policy, now)
                watched_step = self._newest_step
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
            speculation=speculation,
            sessions=sessions,
            watched_step=watched_step,
        )

    def _assert_owner(self) -> None:
        thread = threading.get_ident()
        if self._owner is None:
            self._owner = thread
        elif self._owner != thread:
            raise EngineBusyError("a step was asked for by a thread that does not own the engine")
