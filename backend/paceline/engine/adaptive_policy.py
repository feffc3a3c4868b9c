"""The policy that adapts: gates, depth and ledger by measured cost.

The decisions are `core.controller`'s. This file translates: sequences and outcomes into its plain
numbers, its choices into plans. It knows no tensors and no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from paceline.core.controller_session import (
    COPY_DEPTH,
    MODEL_DEPTH,
    PLAIN,
    Candidate,
    Choice,
    SessionControl,
    Why,
    temperature_bucket,
)
from paceline.core.cost import StageSeconds, StepShape
from paceline.core.events import Gate
from paceline.core.request import DrafterKind, Speculation
from paceline.core.statistics import SpeculationStatus
from paceline.engine.policy import forced_choice, forced_depth, is_switched_off

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from paceline.core.controller import Controller
    from paceline.core.events import StepTimes
    from paceline.engine.plan import Outcome
    from paceline.engine.sequence import Sequence

FORCED_DEPTH = 4
_MOST_REMEMBERED = 128


class CopySource(Protocol):
    """What the policy needs of an n-gram drafter."""

    def offer(self, sequence: Sequence) -> tuple[int, int]:
        """Tokens that it could draft now, and the length of the match behind them."""
        ...

    def take_scored(self, sequence: Sequence) -> list[tuple[int, bool]]:
        """For committed tokens that it had an answer for: (length of the match, was it right)."""
        ...


class ModelSource(Protocol):
    """What the policy needs of a draft model's drafter."""

    @property
    def keeps_accepted_rows(self) -> bool:
        """Whether rows computed for drafted tokens stay when those are accepted."""
        ...

    def max_tokens(self, sequence: Sequence) -> int:
        """The deepest draft it can make now."""
        ...

    def lag(self, sequence: Sequence) -> int:
        """Known tokens that it must compute before it can draft."""
        ...


@dataclass(slots=True)
class _Followed:
    """A running sequence, as far as decisions about it go. mode: AUTO leaves the choice to us, OFF
    rules drafting out. bucket: of temperature. limit: the longest draft that request and server
    allow. target_probs: by position, what the target thought of tokens that the draft model may be
    scored on later."""

    session: SessionControl
    mode: Speculation
    bucket: int
    is_drawn: bool
    limit: int
    target_probs: dict[int, float] = field(default_factory=dict)


class _Shapes(NamedTuple):
    """The last step without and with what we chose, its decoding sequences, and the mean of new
    tokens of those that nobody forced."""

    base: StepShape
    whole: StepShape
    num_decoding: int
    mean_emitted: float


class AdaptivePolicy:
    """Gates, depth and ledger by measured cost.

    ngram, model: the drafters there are. max_depth: bound for requests that leave the choice to us;
    None bounds nothing. forced_depth: for `speculation: on` without a number.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        ngram: CopySource | None,
        model: ModelSource | None,
        max_depth: int | None = None,
        forced_depth: int = FORCED_DEPTH,
    ) -> None:
        self.controller = controller
        self.last_base: StepShape | None = None
        self.predicted_seconds: float | None = None
        self._ngram = ngram
        self._model = model
        self._max_depth = COPY_DEPTH if max_depth is None else max_depth
        self._forced_depth = forced_depth
        self._memory: tuple[int, int] | None = None
        self._followed: dict[str, _Followed] = {}
        self._chosen: dict[str, Choice] = {}
        self._draft_cursors: dict[str, int] = {}

    def choose(self, decoding: Many[Sequence], num_prefill_rows: int) -> list[Choice]:
        num_decoding = len(decoding)
        choices = [PLAIN] * num_decoding
        candidates: list[Candidate] = []
        places: list[int] = []
        context = num_forced = 0
        is_drawn = False
        self._memory = None
        for place, sequence in enumerate(decoding):
            followed = self._follow(sequence)
            context += len(sequence.token_ids)
            is_drawn = is_drawn or followed.is_drawn
            if followed.mode is Speculation.AUTO:
                candidates.append(self._candidate(sequence, followed))
                places.append(place)
            elif followed.mode is Speculation.ON:
                choices[place] = forced_choice(sequence, self._forced_depth)
                num_forced += choices[place].num_drafted
        num_logits = num_decoding + num_forced
        base = StepShape(
            num_decoding,
            num_logits + num_prefill_rows,
            num_logits,
            context,
            is_drawn,
            num_drafted=num_forced,
        )
        decided = self.controller.decide(base, num_decoding, candidates)
        for place, choice in zip(places, decided, strict=True):
            choices[place] = choice
        self._chosen = {
            sequence.request_id: choice for sequence, choice in zip(decoding, choices, strict=True)
        }
        if self._model is not None:
            self._draft_cursors = {
                sequence.request_id: sequence.num_draft_computed
                for sequence, choice in zip(decoding, choices, strict=True)
                if choice.catches_up
            }
        return choices

    def withdraw(self, decoding: Many[Sequence], num_free: int, num_blocks: int) -> None:
        self._memory = (num_free, num_blocks)
        for sequence in decoding:
            followed = self._follow(sequence)
            choice = self._chosen.get(sequence.request_id, PLAIN)
            if choice.num_drafted and followed.mode is Speculation.AUTO:
                followed.session.why = Why("memory", self._memory)
        self._chosen = dict.fromkeys(self._chosen, PLAIN)
        self._draft_cursors.clear()

    def observe(self, outcomes: Many[Outcome], times: StepTimes) -> None:
        if not outcomes:
            return
        followed = [self._follow(outcome.sequence) for outcome in outcomes]
        base, whole, num_decoding, mean_emitted = self._shapes(outcomes, followed)
        self.last_base = base
        self.predicted_seconds = self.controller.cost.step_seconds(whole)
        measured = StageSeconds(
            times.draft_ms / 1e3, times.verify_ms / 1e3, times.sample_ms / 1e3, times.other_ms / 1e3
        )
        plain = self.controller.observe_step(base, whole, num_decoding, mean_emitted, measured)
        share_ms = plain.step / len(outcomes) * 1e3
        further_ms = plain.further / num_decoding * 1e3 if num_decoding else 0.0
        for outcome, each in zip(outcomes, followed, strict=True):
            sequence = outcome.sequence
            choice = self._chosen.get(sequence.request_id)
            if each.mode is Speculation.AUTO:
                self._observe_session(outcome, each, choice, base, num_decoding)
            elif each.mode is Speculation.ON:
                continue  # of forced steps nobody knows what plain decoding would have taken
            expected_ms = share_ms
            if choice is not None and outcome.num_committed > 1:
                expected_ms += (outcome.num_committed - 1) * further_ms
            counters = sequence.counters
            counters.expected_plain_ms = (counters.expected_plain_ms or 0.0) + expected_ms

    def describe(self, sequence: Sequence) -> tuple[Gate, str]:
        followed = self._follow(sequence)
        if followed.mode is Speculation.OFF:
            return Gate.OFF, "off: the request asked for it"
        if followed.mode is Speculation.ON:
            depth = forced_depth(sequence, self._forced_depth)
            reason = f"on: up to {depth} tokens, as the request asked"
            if self._memory is not None:
                free, total = self._memory
                reason += f", none now: memory is short, {free} of {total} blocks free"
            return Gate.ON, reason
        reason = self.controller.reason(followed.session, self.last_base)
        return Gate(reason.partition(":")[0]), reason

    def session(self, sequence: Sequence) -> SessionControl:
        """The state of its session, which survives the sequence if decisions are ours."""
        return self._follow(sequence).session

    def acceptance(self, sequence: Sequence) -> float | None:
        followed = self._follow(sequence)
        if followed.mode is not Speculation.AUTO:
            counters = sequence.counters
            return counters.num_passed / counters.num_examined if counters.num_examined else None
        return self.controller.acceptance(followed.session)[0]

    def status(self) -> SpeculationStatus:
        ledger, base = self.controller.ledger, self.last_base
        predicted = self.predicted_seconds
        return SpeculationStatus(
            ledger.level * 1e3,
            ledger.capacity * 1e3,
            None if predicted is None else predicted * 1e3,
            None if base is None else self.controller.break_even_rows(base),
        )

    @property
    def num_flips(self) -> tuple[int, int]:
        return self.controller.acceptances.num_gate_flips, self.controller.load_gate.num_flips

    def release(self, sequence: Sequence) -> None:
        self._chosen.pop(sequence.request_id, None)
        self._followed.pop(sequence.request_id, None)

    def _follow(self, sequence: Sequence) -> _Followed:
        """Looked up, or made at first sight."""
        known = self._followed.get(sequence.request_id)
        if known is not None:
            return known
        request = sequence.request
        mode = Speculation.OFF if is_switched_off(sequence) else request.speculation
        key = request.speculation_key or request.request_id
        sampling, asked = request.sampling, request.num_speculative_tokens
        # Nothing is decided for the others, so they push no session out of memory.
        session = self.controller.session(key) if mode is Speculation.AUTO else SessionControl(key)
        session.why = Why("new")
        followed = self._followed[request.request_id] = _Followed(
            session,
            mode,
            temperature_bucket(sampling.temperature, is_seeded=sampling.seed is not None),
            not sampling.is_greedy,
            self._max_depth if asked is None else min(asked, self._max_depth),
        )
        return followed

    def _candidate(self, sequence: Sequence, followed: _Followed) -> Candidate:
        num_remaining = sequence.request.max_new_tokens - sequence.num_output
        copy_tokens = match_length = model_tokens = model_lag = 0
        if self._ngram is not None:
            copy_tokens, match_length = self._ngram.offer(sequence)
        if self._model is not None:
            model_tokens = self._model.max_tokens(sequence)
            model_lag = self._model.lag(sequence)
        return Candidate(
            followed.session,
            followed.limit if followed.limit < num_remaining else num_remaining - 1,
            followed.bucket,
            followed.is_drawn,
            copy_tokens,
            match_length,
            model_tokens,
            model_lag,
            num_remaining,
            len(followed.target_probs),
        )

    def _observe_session(
        self,
        outcome: Outcome,
        followed: _Followed,
        choice: Choice | None,
        base: StepShape,
        num_decoding: int,
    ) -> None:
        sequence, session = outcome.sequence, followed.session
        controller = self.controller
        if choice is not None and choice.drafter is DrafterKind.MODEL and not outcome.is_forced:
            if outcome.num_drafted:
                controller.acceptances.observe_model_round(
                    session,
                    followed.bucket,
                    outcome.survival,
                    outcome.num_examined,
                )
            elif choice.num_scored and sequence.num_draft_lag <= outcome.num_committed:
                accept_probs = _accept_probs(outcome, followed)
                controller.observe_probe(session, followed.bucket, accept_probs, base, num_decoding)
        if self._ngram is not None and outcome.num_committed:
            scored = self._ngram.take_scored(sequence)
            if scored or session.copy_gate.gate is not Gate.ON:
                controller.observe_copies(session, scored, base, num_decoding)
        controller.observe_tokens(session, outcome.num_committed)
        if self._model is not None:
            is_model = choice is not None and choice.drafter is DrafterKind.MODEL
            _remember(outcome, followed, is_drafting=is_model and outcome.num_drafted > 0)

    def _shapes(self, outcomes: Many[Outcome], followed: Many[_Followed]) -> _Shapes:
        num_rows = num_logits = num_drafted = context = num_ours = 0
        num_decoding = num_emitted = num_free = 0
        is_drawn = False
        passes, forced_passes = [0] * (MODEL_DEPTH + 1), [0] * (MODEL_DEPTH + 1)
        for outcome, each in zip(outcomes, followed, strict=True):
            num_rows += outcome.num_rows
            context += outcome.num_before
            choice = self._chosen.get(outcome.sequence.request_id)
            if outcome.num_committed:
                # Forced tokens have no rows of logits: they are like a prompt's.
                verified = 0 if outcome.is_forced else outcome.num_drafted
                num_logits += 1 + verified
                num_drafted += verified
                is_drawn = is_drawn or each.is_drawn
            if choice is None:
                continue
            num_decoding += 1
            is_ours = each.mode is Speculation.AUTO
            if each.mode is not Speculation.ON:
                num_free += 1
                num_emitted += outcome.num_committed
            if is_ours and not outcome.is_forced:
                num_ours += outcome.num_drafted
            if choice.catches_up:
                self._count_passes(outcome, passes if is_ours else forced_passes)
        mean_emitted = num_emitted / num_free if num_free else 1.0
        base = StepShape(
            len(outcomes),
            num_rows - num_ours,
            num_logits - num_ours,
            context,
            is_drawn,
            _trimmed(forced_passes),
            num_drafted - num_ours,
        )
        if not num_ours and not any(passes):
            return _Shapes(base, base, num_decoding, mean_emitted)
        both = [ours + forced for ours, forced in zip(passes, forced_passes, strict=True)]
        whole = base._replace(
            num_rows=num_rows,
            num_logits=num_logits,
            draft_rows=_trimmed(both),
            num_drafted=num_drafted,
        )
        return _Shapes(base, whole, num_decoding, mean_emitted)

    def _count_passes(self, outcome: Outcome, passes: list[int]) -> None:
        """Rows of the draft model's passes for one sequence."""
        sequence = outcome.sequence
        cursor = self._draft_cursors.get(sequence.request_id)
        if self._model is None or cursor is None:
            return
        computed = sequence.num_draft_computed - cursor
        drafts = outcome.num_drafted if sequence.drafter_name != "ngram" else 0
        if self._model.keeps_accepted_rows:
            computed -= min(outcome.num_accepted, max(0, drafts - 1))
        if computed <= 0:
            return
        passes[0] += computed
        for depth in range(1, min(drafts, len(passes))):
            passes[depth] += 1


def _remember(outcome: Outcome, followed: _Followed, *, is_drafting: bool) -> None:
    """Keep what the target thought of its token while the draft model drafts nothing."""
    known = followed.target_probs
    if is_drafting:
        if known:
            known.clear()
    elif outcome.target_prob is not None and outcome.num_accepted < outcome.num_committed:
        known[outcome.num_before + outcome.num_accepted] = outcome.target_prob
        if len(known) > _MOST_REMEMBERED:
            del known[next(iter(known))]


def _accept_probs(outcome: Outcome, followed: _Followed) -> list[float]:
    """min(1, draft / target) of tokens that were drawn from the target: in the mean, the
    probability that a draft would have been accepted."""
    first = outcome.num_before - len(outcome.draft_probs)
    is_seeded = outcome.sequence.request.sampling.seed is not None
    accept_probs = []
    for offset, draft_prob in enumerate(outcome.draft_probs):
        target_prob = followed.target_probs.get(first + offset)
        if target_prob:
            overlap = min(1.0, draft_prob / target_prob)
            # Sampled verification meets with at least (1 - distance) / (1 + distance).
            accept_probs.append(overlap / (2.0 - overlap) if is_seeded else overlap)
    return accept_probs


def _trimmed(passes: list[int]) -> tuple[int, ...]:
    end = len(passes)
    while end and not passes[end - 1]:
        end -= 1
    return tuple(passes[:end])
