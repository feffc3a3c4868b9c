"""The sequences that are open, from a request's entry to its one finish event."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from paceline.core.events import FinishEvent, FinishReason, SpeculationSummary, Usage
from paceline.engine.commit import flush_text, summary, usage
from paceline.engine.sequence import Sequence
from paceline.sampling.constraints import JoinedConstraint, SamplingConstraint

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.request import Request
    from paceline.engine.inbox import Arrival, Inbox
    from paceline.engine.policy import SpeculationPolicy
    from paceline.engine.scheduler import Scheduler
    from paceline.engine.sequence import TextStream
    from paceline.engine.statistics import Statistics
    from paceline.sampling.constraints import RowConstraint


class OpenSequences:
    """Owned by the engine's thread. Who calls `end` passes the event on: it is the only one.

    inbox: told which ids are free again. text_stream, scrub: see `Engine`.
    """

    def __init__(
        self,
        *,
        inbox: Inbox,
        scheduler: Scheduler,
        policy: SpeculationPolicy,
        statistics: Statistics,
        text_stream: Callable[[tuple[int, ...]], TextStream],
        scrub: Callable[[list[int]], None],
    ) -> None:
        self._inbox = inbox
        self._scheduler = scheduler
        self._policy = policy
        self._statistics = statistics
        self._text_stream = text_stream
        self._scrub = scrub
        self._by_id: dict[str, Sequence] = {}

    def get(self, request_id: str) -> Sequence | None:
        """None once it has ended, and for an id that never was."""
        return self._by_id.get(request_id)

    def begin(self, arrival: Arrival) -> FinishEvent | None:
        """Let a request wait for its first step; its end, if it cannot even begin."""
        request = arrival.request
        try:
            sequence = self._make(arrival)
        except Exception as error:  # whatever it is, the request must end with an event
            return self.refuse(request, error)
        self._by_id[request.request_id] = sequence
        self._scheduler.add(sequence)
        return None

    def end(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        error: Exception | None = None,
        *,
        tail: str | None = None,
        stop_match: str | int | None = None,
        discard: bool = False,
    ) -> FinishEvent:
        """Take a sequence out of the engine. now: seconds of its clock.

        tail: text that is shown last, as of `commit`; None for what is held back by now.
        discard: its blocks hold nothing that may be used again.
        """
        event = self._finish_event(sequence, reason, now, error, tail, stop_match)
        self._scrub(self._scheduler.finish(sequence, discard=discard))
        self._statistics.finish(sequence, self._policy)
        self._policy.release(sequence)
        del self._by_id[sequence.request_id]
        self._inbox.release(sequence.request_id)
        return event

    def refuse(self, request: Request, error: Exception) -> FinishEvent:
        """The end of a request that never became a sequence."""
        self._inbox.release(request.request_id)
        return FinishEvent(
            request_id=request.request_id,
            reason=FinishReason.ERROR,
            usage=Usage(len(request.prompt_ids), 0, 0),
            summary=SpeculationSummary(),
            error=f"{type(error).__name__}: {error}",
            error_code=type(error).__name__,
        )

    def abandon(self, error: Exception, now: float) -> list[FinishEvent]:
        """The ends of all, with nothing given back: no step follows."""
        events = []
        for sequence in self._by_id.values():
            self._inbox.release(sequence.request_id)
            events.append(self._finish_event(sequence, FinishReason.ERROR, now, error, None, None))
        self._by_id.clear()
        return events

    def _make(self, arrival: Arrival) -> Sequence:
        request, sampling = arrival.request, arrival.request.sampling
        parts: list[RowConstraint] = []
        if SamplingConstraint.needed(sampling):
            parts.append(SamplingConstraint(sampling, request.prompt_ids, request.stop_token_ids))
        if arrival.grammar is not None:
            parts.append(arrival.grammar)
        constraint = parts[0] if len(parts) == 1 else JoinedConstraint(parts) if parts else None
        return Sequence(
            request,
            self._text_stream(request.prompt_ids),
            secrets.randbits(64) if sampling.seed is None else sampling.seed,
            arrival.arrived_at,
            constraint,
        )

    def _finish_event(
        self,
        sequence: Sequence,
        reason: FinishReason,
        now: float,
        error: Exception | None,
        tail: str | None,
        stop_match: str | int | None,
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
