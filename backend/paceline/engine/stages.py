"""What a step does with its plan: draft, verify, accept; then commit and observe.

The two halves are apart, with one step in flight today, so that the next one can be launched before
this one is read back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.errors import NonFiniteLogitsError
from paceline.core.events import EngineEvent, FinishReason, StepTimes, TokenEvent, TokenSource
from paceline.engine.commit import Committed, DecidedToken, commit
from paceline.engine.decisions import Decision
from paceline.engine.drafters.interface import Proposal
from paceline.engine.plan import Outcome
from paceline.engine.sequence import SequenceStatus
from paceline.sampling.acceptance import NextSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.engine.decisions import Verdict
    from paceline.engine.drafters.interface import Drafter
    from paceline.engine.plan import StepPlan
    from paceline.engine.policy import SpeculationPolicy
    from paceline.engine.scheduler import Scheduler
    from paceline.engine.sequence import Sequence
    from paceline.engine.sequences import OpenSequences
    from paceline.engine.statistics import Statistics
    from paceline.engine.verifier import Scores, Verifier

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


class Stages:
    """The stages of a step behind its plan. Owned by the engine's thread; clock: seconds."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        verifier: Verifier,
        drafter: Drafter,
        policy: SpeculationPolicy,
        sequences: OpenSequences,
        statistics: Statistics,
        max_sequence_tokens: int,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._verifier = verifier
        self._drafter = drafter
        self._policy = policy
        self._sequences = sequences
        self._statistics = statistics
        self._max_sequence_tokens = max_sequence_tokens
        self._clock = clock

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
        decisions = [] if in_flight.verdict is None else in_flight.verdict.read()
        read_at = self._clock()
        decided = dict(zip(in_flight.scores.sampled, decisions, strict=True))
        events: list[EngineEvent] = []
        outcomes: list[Outcome] = []
        finished: list[tuple[Sequence, Committed]] = []
        for index, entry in enumerate(in_flight.plan.entries):
            sequence = entry.sequence
            num_before = sequence.num_tokens
            sequence.num_computed += entry.num_target_tokens
            decision = decided.get(index, _NOTHING)
            committed = Committed(())
            if decision.is_usable:
                committed = self._commit(in_flight, index, decision, read_at)
                events.append(TokenEvent(sequence.request_id, committed.tokens))
                if committed.finish is not None:
                    finished.append((sequence, committed))
            elif index in decided:
                error = NonFiniteLogitsError(
                    "the model gave no usable probabilities (NaN or infinity)"
                )
                events.append(
                    self._sequences.end(
                        sequence, FinishReason.ERROR, self._clock(), error, discard=True
                    )
                )
            elif entry.completes:
                finished.append((sequence, Committed((), FinishReason.LENGTH)))
            if sequence.status is SequenceStatus.RUNNING:
                outcomes.append(
                    _outcome(in_flight, index, decision, num_before, len(committed.tokens))
                )
                self._scheduler.register_full_blocks(sequence)
        self._show_drafter(in_flight, outcomes)
        times = self._share_times(in_flight, begun_at, read_at)
        self._policy.observe(outcomes, times)
        self._statistics.observe(outcomes, times, len(in_flight.plan.preempted), read_at)
        # Last, so that the summaries hold this step too.
        for sequence, committed in finished:
            events.append(
                self._sequences.end(
                    sequence,
                    committed.finish or FinishReason.LENGTH,
                    read_at,
                    tail=committed.tail,
                    stop_match=committed.stop_match,
                )
            )
        return events, times

    def _propose(self, plan: StepPlan) -> Proposal:
        """The drafter's proposal, spread over all entries of the plan."""
        chosen = [index for index, e in enumerate(plan.entries) if e.num_drafted or e.num_catch_up]
        nothing = Proposal.deterministic([()] * len(plan.entries), "none")
        if not chosen:
            return nothing
        made = self._drafter.propose([plan.entries[index] for index in chosen])
        return nothing.with_entries(chosen, made)

    def _commit(self, in_flight: InFlight, index: int, decision: Decision, now: float) -> Committed:
        sequence = in_flight.plan.entries[index].sequence
        drafted = in_flight.proposal.draft_ids[index]
        accepted = drafted[: decision.num_accepted]
        sources = [TokenSource.ACCEPTED] * len(accepted) + [_SOURCES[NextSource(decision.source)]]
        logprobs = decision.logprobs or (None,) * len(sources)
        run = [
            DecidedToken(*each)
            for each in zip((*accepted, decision.next_token), sources, logprobs, strict=True)
        ]
        committed = commit(sequence, run, self._max_sequence_tokens)
        # Rollback is this line: rows of rejected and of cut-off tokens are simply not counted.
        sequence.num_computed = sequence.num_tokens - 1
        sequence.round += 1
        sequence.counters.num_steps += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = now
        if drafted:
            sequence.drafter_name = in_flight.proposal.drafter_names[index]
            sequence.counters.count_round(
                len(drafted), decision.num_accepted, decision.num_examined, decision.num_passed
            )
        return committed

    def _show_drafter(self, in_flight: InFlight, outcomes: list[Outcome]) -> None:
        """Let the drafter see the outcomes, and record which of its rows are valid now."""
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


def _outcome(
    in_flight: InFlight, index: int, decision: Decision, num_before: int, num_committed: int
) -> Outcome:
    entry = in_flight.plan.entries[index]
    num_drafted = len(in_flight.proposal.draft_ids[index])
    scores = in_flight.proposal.scores
    return Outcome(
        entry.sequence,
        num_before,
        num_drafted,
        decision.num_accepted,
        num_committed,
        in_flight.scores.first_tokens[index],
        entry.num_target_tokens + num_drafted,
        num_examined=decision.num_examined,
        num_passed=decision.num_passed,
        survival=decision.survival,
        target_prob=decision.next_prob if num_committed else None,
        draft_probs=scores[index] if scores else (),
        is_forced=bool(entry.forced),
    )
