"""How many tokens to draft for whom: asked by the scheduler before each step.

The decisions are `core.controller`'s. This file translates: sequences and outcomes into its plain
numbers, its choices into plans. It knows no tensors and no clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from paceline.core.controller_session import (
    MODEL_DEPTH,
    PLAIN,
    Candidate,
    Choice,
    Why,
    temperature_bucket,
)
from paceline.core.cost import StageSeconds, StepShape
from paceline.core.events import Gate
from paceline.core.request import DrafterKind, Speculation
from paceline.core.statistics import SpeculationStatus

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from paceline.core.controller import Controller
    from paceline.core.controller_session import SessionControl
    from paceline.core.events import StepTimes
    from paceline.engine.plan import Outcome
    from paceline.engine.sequence import Sequence

FORCED_DEPTH = 4


class SpeculationPolicy(Protocol):
    """Decides from history alone; never from a token that was drafted but not yet verified."""

    def choose(self, decoding: Many[Sequence], num_prefill_rows: int) -> list[Choice]:
        """What each decoding sequence drafts. Length limits and memory are the scheduler's.

        num_prefill_rows: rows of prefill that the same step computes.
        """
        ...

    def withdraw(self, decoding: Many[Sequence], num_free: int, num_blocks: int) -> None:
        """Nothing of what was just chosen will be done: K/V blocks ran short.

        num_free, num_blocks: blocks that could still be had, and all there are.
        """
        ...

    def observe(self, outcomes: Many[Outcome], times: StepTimes) -> None:
        """What became of the last plan."""
        ...

    def describe(self, sequence: Sequence) -> tuple[Gate, str]:
        """Where its gate is and why, in words."""
        ...

    def acceptance(self, sequence: Sequence) -> float | None:
        """Accepted over examined of its session's last drafted positions; None before any."""
        ...

    def status(self) -> SpeculationStatus:
        """The controller as of the last step."""
        ...

    @property
    def num_flips(self) -> tuple[int, int]:
        """How often a session's gate, and the load gate, opened or closed."""
        ...

    def release(self, sequence: Sequence) -> None:
        """The sequence has ended."""
        ...


def forced_depth(sequence: Sequence, default: int) -> int:
    """Tokens to draft for a request that wants speculation whatever it costs."""
    count = sequence.request.num_speculative_tokens
    return default if count is None else count


def forced_choice(sequence: Sequence, default: int) -> Choice:
    """Exactly the asked-for depth, by whichever drafter the request allows."""
    depth = forced_depth(sequence, default)
    return Choice(sequence.request.drafter, depth, catches_up=True) if depth else PLAIN


def is_switched_off(sequence: Sequence) -> bool:
    """Whether the request itself rules drafting out."""
    request = sequence.request
    return request.speculation is Speculation.OFF or request.drafter is DrafterKind.NONE


class FixedPolicy:
    """Always the asked-for number: the request's, else the server's."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self._default = num_speculative_tokens

    def choose(self, decoding: Many[Sequence], num_prefill_rows: int) -> list[Choice]:
        return [
            PLAIN if is_switched_off(sequence) else forced_choice(sequence, self._default)
            for sequence in decoding
        ]

    def withdraw(self, decoding: Many[Sequence], num_free: int, num_blocks: int) -> None:
        """The number stays what it is."""

    def observe(self, outcomes: Many[Outcome], times: StepTimes) -> None:
        """A fixed number learns nothing."""

    def describe(self, sequence: Sequence) -> tuple[Gate, str]:
        if is_switched_off(sequence):
            return Gate.OFF, "off: the request asked for it"
        count = forced_depth(sequence, self._default)
        return (Gate.ON, f"on: {count} tokens") if count else (Gate.OFF, "off: 0 tokens configured")

    def acceptance(self, sequence: Sequence) -> float | None:
        counters = sequence.counters
        return counters.num_passed / counters.num_examined if counters.num_examined else None

    def status(self) -> SpeculationStatus:
        return SpeculationStatus()

    @property
    def num_flips(self) -> tuple[int, int]:
        return 0, 0

    def release(self, sequence: Sequence) -> None:
        """Nothing is kept."""


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
        self._max_depth = 16 if max_depth is None else max_depth
        self._forced_depth = forced_depth
        self._memory: tuple[int, int] | None = None
        self._controls: dict[str, SessionControl] = {}
        self._chosen: dict[str, Choice] = {}
        self._draft_cursors: dict[str, int] = {}
        self._target_probs: dict[str, dict[int, float]] = {}

    def choose(self, decoding: Many[Sequence], num_prefill_rows: int) -> list[Choice]:
        num_decoding = len(decoding)
        choices = [PLAIN] * num_decoding
        candidates: list[Candidate] = []
        places: list[int] = []
        context = num_forced = 0
        is_drawn = False
        self._memory = None
        for place, sequence in enumerate(decoding):
            request = sequence.request
            context += sequence.num_tokens
            is_drawn = is_drawn or not request.sampling.is_greedy
            if is_switched_off(sequence):
                continue
            if request.speculation is Speculation.ON:
                choices[place] = forced_choice(sequence, self._forced_depth)
                num_forced += choices[place].num_drafted
                continue
            candidates.append(self._candidate(sequence))
            places.append(place)
        num_logits = num_decoding + num_forced
        base = StepShape(
            len(decoding),
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
            choice = self._chosen.get(sequence.request_id, PLAIN)
            if choice.num_drafted and sequence.request.speculation is Speculation.AUTO:
                self.session(sequence).why = Why("memory", self._memory)
        self._chosen = dict.fromkeys(self._chosen, PLAIN)
        self._draft_cursors.clear()

    def observe(self, outcomes: Many[Outcome], times: StepTimes) -> None:
        if not outcomes:
            return
        base, shape, num_decoding, mean_emitted = self._shapes(outcomes)
        self.last_base = base
        self.predicted_seconds = self.controller.cost.step_seconds(shape)
        measured = StageSeconds(
            times.draft_ms / 1e3, times.verify_ms / 1e3, times.sample_ms / 1e3, times.other_ms / 1e3
        )
        plain = self.controller.observe_step(base, shape, num_decoding, mean_emitted, measured)
        for outcome in outcomes:
            sequence = outcome.sequence
            choice = self._chosen.get(sequence.request_id)
            if sequence.request.speculation is Speculation.AUTO:
                self._observe_session(outcome, choice, base, num_decoding)
            elif sequence.request.speculation is Speculation.ON:
                continue  # of forced steps nobody knows what plain decoding would have taken
            expected = plain.step / len(outcomes)
            if choice is not None and num_decoding:
                expected += max(0, outcome.num_committed - 1) * plain.further / num_decoding
            counters = sequence.counters
            counters.expected_plain_ms = (counters.expected_plain_ms or 0.0) + expected * 1e3

    def describe(self, sequence: Sequence) -> tuple[Gate, str]:
        request = sequence.request
        if is_switched_off(sequence):
            return Gate.OFF, "off: the request asked for it"
        if request.speculation is Speculation.ON:
            depth = forced_depth(sequence, self._forced_depth)
            reason = f"on: {depth} tokens, as the request asked"
            if self._memory is not None:
                free, total = self._memory
                reason += f", none now: memory is short, {free} of {total} blocks free"
            return Gate.ON, reason
        session = self.session(sequence)
        reason = self.controller.reason(session, self.last_base)
        return Gate(reason.partition(":")[0]), reason

    def session(self, sequence: Sequence) -> SessionControl:
        """The state of the sequence's session, which survives the sequence."""
        request = sequence.request
        known = self._controls.get(request.request_id)
        if known is None:
            known = self.controller.session(request.speculation_key or request.request_id)
            self._controls[request.request_id] = known
        return known

    def acceptance(self, sequence: Sequence) -> float | None:
        if sequence.request.speculation is not Speculation.AUTO:
            counters = sequence.counters
            return counters.num_passed / counters.num_examined if counters.num_examined else None
        return self.controller.acceptance(self.session(sequence))[0]

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
        self._controls.pop(sequence.request_id, None)
        self._target_probs.pop(sequence.request_id, None)

    def _candidate(self, sequence: Sequence) -> Candidate:
        request = sequence.request
        num_remaining = request.max_new_tokens - sequence.num_output
        asked = request.num_speculative_tokens
        limit = self._max_depth if asked is None else min(asked, self._max_depth)
        copy_tokens = match_length = model_tokens = model_lag = 0
        if self._ngram is not None:
            copy_tokens, match_length = self._ngram.offer(sequence)
        if self._model is not None:
            model_tokens = self._model.max_tokens(sequence)
            model_lag = self._model.lag(sequence)
        return Candidate(
            self.session(sequence),
            min(limit, num_remaining - 1),
            _bucket(sequence),
            not request.sampling.is_greedy,
            copy_tokens,
            match_length,
            model_tokens,
            model_lag,
            num_remaining,
        )

    def _observe_session(
        self, outcome: Outcome, choice: Choice | None, base: StepShape, num_decoding: int
    ) -> None:
        sequence = outcome.sequence
        session = self.session(sequence)
        controller = self.controller
        if choice is not None and choice.drafter is DrafterKind.MODEL and not outcome.is_forced:
            bucket = _bucket(sequence)
            if outcome.num_drafted:
                controller.acceptances.observe_model_round(
                    session, bucket, outcome.survival, outcome.num_passed, outcome.num_examined
                )
            elif choice.num_scored and sequence.num_draft_lag <= outcome.num_committed:
                accept_probs = self._accept_probs(outcome)
                controller.observe_probe(session, bucket, accept_probs, base, num_decoding)
        if self._ngram is not None and outcome.num_committed:
            scored = self._ngram.take_scored(sequence)
            if scored or session.copy_gate.gate is not Gate.ON:
                controller.observe_copies(session, scored, base, num_decoding)
        controller.observe_tokens(session, outcome.num_committed)
        self._remember(outcome, session)

    def _remember(self, outcome: Outcome, session: SessionControl) -> None:
        """Keep what the target thought of tokens that the draft model may be scored on later."""
        request_id = outcome.sequence.request_id
        if session.model_gate.gate is Gate.ON or self._model is None:
            self._target_probs.pop(request_id, None)
        elif outcome.target_prob is not None and outcome.num_accepted < outcome.num_committed:
            known = self._target_probs.setdefault(request_id, {})
            known[outcome.num_before + outcome.num_accepted] = outcome.target_prob
            if len(known) > 128:
                del known[next(iter(known))]

    def _accept_probs(self, outcome: Outcome) -> list[float]:
        """min(1, draft / target) of tokens that were drawn from the target: in the mean, the
        probability that a draft would have been accepted."""
        known = self._target_probs.get(outcome.sequence.request_id, {})
        first = outcome.num_before - len(outcome.draft_probs)
        is_seeded = outcome.sequence.request.sampling.seed is not None
        accept_probs = []
        for offset, draft_prob in enumerate(outcome.draft_probs):
            target_prob = known.get(first + offset)
            if target_prob:
                overlap = min(1.0, draft_prob / target_prob)
                # Sampled verification meets with at least (1 - distance) / (1 + distance).
                accept_probs.append(overlap / (2.0 - overlap) if is_seeded else overlap)
        return accept_probs

    def _shapes(self, outcomes: Many[Outcome]) -> tuple[StepShape, StepShape, int, float]:
        """The step without and with what we chose, decoding sequences, and the mean of new tokens
        of those that nobody forced."""
        num_rows = num_logits = num_drafted = context = num_ours = 0
        num_decoding = num_emitted = num_free = 0
        is_drawn = False
        passes, forced_passes = [0] * (MODEL_DEPTH + 1), [0] * (MODEL_DEPTH + 1)
        for outcome in outcomes:
            sequence = outcome.sequence
            num_rows += outcome.num_rows
            context += outcome.num_before
            choice = self._chosen.get(sequence.request_id)
            if outcome.num_committed:
                # Forced tokens have no rows of logits: they are like a prompt's.
                verified = 0 if outcome.is_forced else outcome.num_drafted
                num_logits += 1 + verified
                num_drafted += verified
                is_drawn = is_drawn or not sequence.request.sampling.is_greedy
            if choice is None:
                continue
            num_decoding += 1
            is_ours = sequence.request.speculation is Speculation.AUTO
            if sequence.request.speculation is not Speculation.ON:
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
            return base, base, num_decoding, mean_emitted
        both = [ours + forced for ours, forced in zip(passes, forced_passes, strict=True)]
        shape = base._replace(
            num_rows=num_rows,
            num_logits=num_logits,
            draft_rows=_trimmed(both),
            num_drafted=num_drafted,
        )
        return base, shape, num_decoding, mean_emitted

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
        known = computed
        if known <= 0:
            return
        passes[0] += known
        for depth in range(1, min(drafts, len(passes))):
            passes[depth] += 1


def _bucket(sequence: Sequence) -> int:
    sampling = sequence.request.sampling
    return temperature_bucket(sampling.temperature, is_seeded=sampling.seed is not None)


def _trimmed(passes: list[int]) -> tuple[int, ...]:
    end = len(passes)
    while end and not passes[end - 1]:
        end -= 1
    return tuple(passes[:end])
