"""When, for whom and how far to speculate: two gates, a choice per step and a ledger.

    session gate   per session and drafter: is its acceptance worth it?     controller_gate
    load gate      per step: the number of drafted tokens for each session that maximises
                   committed tokens per second; 0 when compute-bound        controller_depth,
                   for the draft model with hysteresis                      controller_load
    ledger         for the server: never more than 3 % and a little         controller_ledger

Deterministic and without a clock: what it decides follows from what it was told, so any run can be
replayed. Decisions are made before drafting, from the data of earlier steps and from committed
tokens alone; a drafted token never influences how many are drafted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core import controller_gate as gates
from paceline.core.controller_depth import (
    Depths,
    DraftOffer,
    choose_depths,
    drafting_shape,
    plain_tokens,
    steady_gain,
    steady_seconds,
    without_prefill,
)
from paceline.core.controller_estimate import Baseline, survivals
from paceline.core.controller_gate import GateState
from paceline.core.controller_ledger import Ledger, PlainSeconds, plain_equivalent
from paceline.core.controller_load import LoadGate
from paceline.core.controller_session import (
    COPY_DEPTH,
    MATCH_PRIORS,
    MODEL_DEPTH,
    MODEL_PRIORS,
    PLAIN,
    Candidate,
    Choice,
    SessionControl,
    Why,
    match_cell,
    match_cells,
)
from paceline.core.controller_words import words
from paceline.core.events import Gate
from paceline.core.request import DrafterKind
from paceline.core.speedup import break_even_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.cost import CostModel, StageSeconds, StepShape

LEAST_COPY_GAIN = 1.03
PLAIN_EVERY = 256
"""Plain decoding is measured at least this often while everybody drafts, and more often the less
drafting gains: a close race needs a sure finish, and a plain step forgoes little there."""
LEAST_PLAIN_EVERY = 8
_PLAIN_SHARE = 0.003
STALL = 1.25
"""Time beyond this times the prediction is the machine's, which plain decoding would not have been
spared: it is not charged to the ledger. What lies in it of a wrong prediction is charged as soon as
the cost model has followed, within a few steps."""
_CATCH_UP_LAG = 64
_HORIZON = 32
_SCORED = 64
_LEAST_SCORED = 8
_MAX_SESSIONS = 4096
_HOPEFUL = 0.8
_MATCH_WEIGHT = 24.0


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """ledger_steps: the ledger's capacity, in plain steps of a full batch. min_acceptance: the
    session gate's threshold."""

    max_sequences: int
    ledger_steps: float = 2.0
    min_acceptance: float = gates.OFF_BELOW


class Controller:
    """Remembers what the pure functions need. Not thread-safe."""

    def __init__(self, cost: CostModel, settings: ControllerSettings) -> None:
        self.cost = cost
        self.min_acceptance = settings.min_acceptance
        full = cost.target_seconds(settings.max_sequences, 0, settings.max_sequences)
        self.ledger = Ledger(settings.ledger_steps * full)
        self.num_gate_flips = 0
        self._num_since_plain = 0
        self._plain_every = PLAIN_EVERY
        self.load_gate = LoadGate(cost, self._model_offer)
        self._sessions: OrderedDict[str, SessionControl] = OrderedDict()
        self._copy_base = Baseline(MATCH_PRIORS, _MATCH_WEIGHT)
        self._model_base = Baseline(
            [prior for prior in MODEL_PRIORS for _ in range(MODEL_DEPTH)], gates.LEAST_EXAMINED
        )

    def session(self, key: str) -> SessionControl:
        """The session's state, made at first sight; the least recently used ones are forgotten."""
        known = self._sessions.get(key)
        if known is None:
            known = self._sessions[key] = SessionControl(key)
            if len(self._sessions) > _MAX_SESSIONS:
                self._sessions.popitem(last=False)
        else:
            self._sessions.move_to_end(key)
        return known

    # Before a step

    def decide(
        self, base: StepShape, num_decoding: int, candidates: Sequence[Candidate]
    ) -> list[Choice]:
        """What each candidate does.

        base: the step with nothing drafted for them (but prefill rows and whatever was forced).
        num_decoding: all decoding sequences of the step, candidates or not.
        """
        self.load_gate.begin_step()
        if not candidates:
            return []
        choices = [PLAIN] * len(candidates)
        if self._num_since_plain >= self._plain_every:
            for candidate in candidates:
                candidate.session.why = Why("refresh")
            return choices
        decoding = without_prefill(base, num_decoding)
        worth = plain_tokens(self.cost, base, decoding, num_decoding)
        plain = Depths([0] * len(candidates), worth, self.cost.step_seconds(base))
        copies = [self._copy_offer(candidate) for candidate in candidates]
        best, offers = plain, copies
        if any(offer.survivals for offer in copies):
            found = choose_depths(self.cost, base, worth, copies)
            if found.rate >= LEAST_COPY_GAIN * plain.rate:
                best = found
        if self.cost.has_draft:
            best, offers = self.load_gate.choose(base, decoding, candidates, copies, best, worth)
        if any(best.counts):
            shape = drafting_shape(base, offers, best.counts)
            worst = self.cost.step_seconds(shape)
            if not self.ledger.has_room(worst, plain.seconds):
                best = plain
                self._say(candidates, Why("ledger", (self.ledger.level, self.ledger.capacity)))
            else:
                self._fill(choices, candidates, offers, best.counts, base)
                self._plain_every = _plain_interval(best.rate / plain.rate)
        else:
            for candidate, offer in zip(candidates, offers, strict=True):
                candidate.session.why = self._why_plain(candidate, offer, base)
        self._probe(base, num_decoding, candidates, choices, plain)
        return choices

    def offers_copies(self, cell: int) -> bool:
        """Whether matches of this length are right often enough, over all sessions, to be drafts
        at all; only such ones count for the gate."""
        return self._copy_base.rates[cell] >= self.min_acceptance

    def _copy_offer(self, candidate: Candidate) -> DraftOffer:
        session = candidate.session
        session.has_model = candidate.model_tokens > 0
        depth = min(candidate.limit, candidate.copy_tokens, COPY_DEPTH)
        if depth <= 0:
            return _NO_OFFER
        cells = match_cells(candidate.match_length, depth)
        session.match_length = candidate.match_length
        if session.copy_gate.gate is not Gate.ON or not self.offers_copies(cells[0]):
            return _NO_OFFER
        return DraftOffer(session.copy_estimate.survivals(self._copy_base, cells))

    def _model_offer(self, candidate: Candidate) -> DraftOffer:
        session = candidate.session
        depth = min(candidate.limit, candidate.model_tokens, MODEL_DEPTH)
        if depth <= 0 or session.model_gate.gate is not Gate.ON:
            return _NO_OFFER
        return DraftOffer(
            self._model_survivals(session, candidate.temperature, depth),
            uses_model=True,
            lag=candidate.model_lag,
            horizon=max(1, min(_HORIZON, candidate.num_remaining // 2)),
        )

    def _model_survivals(self, session: SessionControl, bucket: int, depth: int) -> list[float]:
        first = bucket * MODEL_DEPTH
        last = first + MODEL_DEPTH - 1
        return survivals(session.model_estimate, self._model_base, first, depth, last)

    def _steady(self, decoding: StepShape, *, uses_model: bool) -> list[float]:
        depth = MODEL_DEPTH if uses_model else COPY_DEPTH
        return steady_seconds(self.cost, decoding, depth, uses_model=uses_model)

    def _fill(
        self,
        choices: list[Choice],
        candidates: Sequence[Candidate],
        offers: Sequence[DraftOffer],
        counts: Sequence[int],
        base: StepShape,
    ) -> None:
        for index, (candidate, offer, count) in enumerate(
            zip(candidates, offers, counts, strict=True)
        ):
            session = candidate.session
            if not count:
                session.why = self._why_plain(candidate, offer, base)
            elif not offer.uses_model:
                choices[index] = Choice(DrafterKind.NGRAM, count)
                session.why = Why("copy", (count, candidate.match_length))
            elif offer.lag > _CATCH_UP_LAG:
                choices[index] = Choice(DrafterKind.MODEL, 0, 0, catches_up=True)
                session.why = Why("catch-up", (offer.lag,))
            else:
                choices[index] = Choice(DrafterKind.MODEL, count, 0, catches_up=True)
                session.why = Why("model", (count,))

    def _why_plain(self, candidate: Candidate, offer: DraftOffer, base: StepShape) -> Why:
        """Why nothing is drafted for a session in this step."""
        session = candidate.session
        if candidate.limit <= 0:
            return session.why  # at its end nothing is decided any more
        is_model_on = session.has_model and session.model_gate.gate is Gate.ON
        if offer.survivals or is_model_on:
            return Why("load", (base.num_rows,))
        if session.has_model or session.copy_gate.gate is not Gate.ON:
            return Why("acceptance")
        return Why("no match")

    def _is_load_low(self, base: StepShape) -> bool:
        """Whether a high acceptance would pay in this step, so that a low one is to blame."""
        depth = MODEL_DEPTH if self.cost.has_draft else COPY_DEPTH
        hopes = [_HOPEFUL**gamma for gamma in range(1, depth + 1)]
        decoding = without_prefill(base, base.num_sequences)
        seconds = self._steady(decoding, uses_model=self.cost.has_draft)
        return steady_gain(hopes, seconds) >= gates.LEAST_GAIN

    @staticmethod
    def _say(candidates: Iterable[Candidate], why: Why) -> None:
        for candidate in candidates:
            candidate.session.why = why

    def _probe(
        self,
        base: StepShape,
        num_decoding: int,
        candidates: Sequence[Candidate],
        choices: list[Choice],
        plain: Depths,
    ) -> None:
        """Let a few sessions whose pause is over see how their draft model would do now."""
        if not self.cost.has_draft:
            return
        room = max(1, num_decoding // 8)
        is_load_low = None
        for index, candidate in enumerate(candidates):
            state = candidate.session.model_gate
            if room == 0 or candidate.model_tokens <= 0 or candidate.limit <= 0:
                continue
            num_emitted = candidate.session.num_emitted
            if not (state.gate is Gate.PROBING or state.is_probe_due(num_emitted)):
                continue
            if choices[index].num_drafted:
                continue
            if is_load_low is None:
                is_load_low = self._is_load_low(base)
            if not is_load_low:
                return
            shape = base._replace(draft_rows=(candidate.model_lag,))
            if not self.ledger.has_room(self.cost.step_seconds(shape), plain.seconds):
                continue
            if state.gate is not Gate.PROBING:
                candidate.session.model_gate = gates.begin_probe(state)
            scored = min(_SCORED, max(gates.LEAST_EXAMINED, num_emitted - state.paused_at))
            choices[index] = Choice(DrafterKind.MODEL, 0, scored, catches_up=True)
            candidate.session.why = Why("probe", (candidate.model_lag,))
            room -= 1

    # After a step

    def observe_model_round(
        self,
        session: SessionControl,
        bucket: int,
        chain: Sequence[float],
        num_accepted: int,
        num_examined: int,
    ) -> None:
        """A draft of the model was verified.

        chain: see `controller_estimate`. num_accepted, num_examined: by the token rule.
        """
        before = 1.0
        accepted = expected = examined = 0.0
        cell = bucket * MODEL_DEPTH
        rates = self._model_base.rates
        for survival in chain:
            expected += before * rates[cell]
            examined += before
            accepted += survival
            self._model_base.observe(cell, survival, before)
            if survival <= 0.0:
                break
            before = survival
            if cell < bucket * MODEL_DEPTH + MODEL_DEPTH - 1:
                cell += 1
        session.model_estimate.observe(accepted, expected, examined)
        self._set_model_gate(
            session,
            gates.after_round(
                session.model_gate,
                num_accepted,
                num_examined,
                session.num_emitted,
                self._model_base.rates[bucket * MODEL_DEPTH],
                self.min_acceptance,
            ),
        )

    def observe_copies(
        self,
        session: SessionControl,
        scored: Sequence[tuple[int, bool]],
        base: StepShape,
        num_decoding: int,
    ) -> None:
        """Emitted tokens for which the n-gram look-up had an answer: (length of the match, whether
        the token was the one that it foretold). It makes no difference whether it was drafted."""
        state = session.copy_gate
        for match_length, is_hit in scored:
            cell = match_cell(match_length)
            session.copy_estimate.observe(cell, is_hit)
            self._copy_base.observe(cell, float(is_hit), 1.0)
            if self.offers_copies(cell):
                if state.gate is Gate.ON:
                    state = gates.after_round(
                        state,
                        int(is_hit),
                        1,
                        session.num_emitted,
                        self._copy_base.rates[cell],
                        self.min_acceptance,
                    )
                else:
                    state = gates.record(state, int(is_hit), 1)
        is_due = state.gate is Gate.OFF and state.is_probe_due(session.num_emitted)
        if is_due and state.num_examined >= gates.LEAST_EXAMINED:
            acceptance = state.acceptance or 0.0
            if acceptance >= self.min_acceptance + gates.ON_ABOVE:
                cells = match_cells(session.match_length, COPY_DEPTH)
                foretold = session.copy_estimate.survivals(self._copy_base, cells)
                gain = steady_gain(
                    foretold, self._steady(without_prefill(base, num_decoding), uses_model=False)
                )
                if gain >= gates.LEAST_GAIN:
                    # Scoring it is free, so a probe that fails is no reason to wait longer.
                    state = gates.after_probe(
                        state, acceptance, gain, session.num_emitted, self.min_acceptance
                    )
        if state.gate is not session.copy_gate.gate:
            self.num_gate_flips += 1
            if state.gate is Gate.OFF:
                state = GateState(Gate.OFF, pause=state.pause, paused_at=state.paused_at)
        session.copy_gate = state

    def observe_probe(
        self,
        session: SessionControl,
        bucket: int,
        accept_probs: Sequence[float],
        base: StepShape,
        num_decoding: int,
    ) -> None:
        """The draft model caught up. accept_probs: for each scored token min(1, draft / target) of
        its probability, whose mean is the acceptance that drafting would have had."""
        if len(accept_probs) < _LEAST_SCORED:
            session.model_gate = gates.without_result(session.model_gate, session.num_emitted)
            return
        acceptance = sum(accept_probs) / len(accept_probs)
        rate = self._model_base.rates[bucket * MODEL_DEPTH]
        session.model_estimate.observe(
            sum(accept_probs), rate * len(accept_probs), float(len(accept_probs))
        )
        foretold = self._model_survivals(session, bucket, MODEL_DEPTH)
        gain = steady_gain(
            foretold, self._steady(without_prefill(base, num_decoding), uses_model=True)
        )
        self._set_model_gate(
            session,
            gates.after_probe(
                session.model_gate, acceptance, gain, session.num_emitted, self.min_acceptance
            ),
        )

    def observe_tokens(self, session: SessionControl, num_emitted: int) -> None:
        """Tokens were emitted: pauses run on. Call it after the other observations of the step."""
        session.num_emitted += num_emitted

    def observe_step(
        self,
        base: StepShape,
        shape: StepShape,
        num_decoding: int,
        mean_emitted: float,
        measured: StageSeconds,
    ) -> PlainSeconds:
        """A step is over; call it last. base and shape: without and with what we chose to draft or
        to catch up. mean_emitted: tokens committed per decoding sequence whose depth was ours to
        choose, 1 if there is none.

        Returns what plain decoding would have taken for it.
        """
        if shape == base:
            if base.num_rows <= num_decoding + base.num_drafted:
                self._num_since_plain = 0  # with a prompt in it, it tells nothing of decoding alone
            self.ledger = self.ledger.after_plain(measured.total)
            further = 0.0
            if mean_emitted > 1.0:
                further = self.cost.step_seconds(without_prefill(base, num_decoding))
            self.cost.observe(shape, measured)
            return PlainSeconds(measured.total, further)
        self._num_since_plain += 1
        plain = self.cost.step_seconds(base)
        alone = self.cost.step_seconds(without_prefill(base, num_decoding))
        equivalent = plain_equivalent(mean_emitted, alone, plain - alone)
        charged = min(measured.total, STALL * self.cost.step_seconds(shape))
        self.ledger = self.ledger.after_speculative(charged, equivalent)
        self.cost.observe(shape, measured)
        return PlainSeconds(plain, alone)

    def _set_model_gate(self, session: SessionControl, state: GateState) -> None:
        if state.gate is not session.model_gate.gate and state.gate is not Gate.PROBING:
            self.num_gate_flips += 1
        session.model_gate = state

    # Telling

    def acceptance(self, session: SessionControl) -> tuple[float | None, int]:
        """Over the window of the drafter that drafted last, and how many positions it holds."""
        state = session.model_gate
        if session.why.kind == "copy" or not session.has_model or state.num_examined == 0:
            state = session.copy_gate
        return state.acceptance, state.num_examined

    def reason(self, session: SessionControl, base: StepShape | None = None) -> str:
        """Why the session speculates or doesn't, in words and numbers."""
        why = session.why
        rows = None
        if why.kind == "load" and base is not None:
            if self._is_load_low(base):
                why = Why("low")
            else:
                rows = self.break_even_rows(base)
        return words(session, why, *self.acceptance(session), rows)

    def break_even_rows(self, base: StepShape) -> int | None:
        """Rows from which one more draft token for every session no longer pays, in closed form,
        by the tangent of the cost table at this step; None where it always pays."""
        rows = max(1, base.num_rows)
        at_rows = self.cost.target_seconds(rows, base.context)
        further = rows + max(1, rows // 2)
        slope = (self.cost.target_seconds(further, base.context) - at_rows) / (further - rows)
        if slope <= 0.0:
            return None
        passes = self.cost.draft_curve(base.is_drawn)
        factor = self.cost.draft_factor
        draft_slope = (passes.at(further) - passes.at(rows)) / (further - rows) * factor
        batch = break_even_batch(
            self._model_base.rates[2 * MODEL_DEPTH] if self.cost.has_draft else MATCH_PRIORS[3],
            fixed_seconds=max(0.0, at_rows - slope * rows),
            row_seconds=slope,
            draft_fixed_seconds=max(0.0, passes.at(rows) * factor - draft_slope * rows),
            draft_row_seconds=max(0.0, draft_slope),
        )
        return int(min(batch, 1 << 20))


_NO_OFFER = DraftOffer(())


def _plain_interval(gain: float) -> int:
    """Speculative steps between two plain ones. gain: of drafting, in tokens per second; a plain
    step forgoes 1 - 1 / gain of one."""
    forgone = 1.0 - 1.0 / gain if gain > 1.0 else 0.0
    return min(PLAIN_EVERY, max(LEAST_PLAIN_EVERY, round(forgone / _PLAIN_SHARE)))
