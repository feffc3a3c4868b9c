"""When, for whom and how far to speculate: two gates, a choice per step and a ledger.

    session gate   per session and drafter: is its acceptance worth it?     controller_gate
    load gate      per step: the number of drafted tokens for each session that maximises
                   committed tokens per second; 0 when compute-bound        controller_depth,
                   for the draft model with hysteresis                      controller_load
    ledger         for the server: never more than 3 % and a little         controller_ledger

What acceptance is reckoned with is learnt from every step, in controller_acceptance.

Deterministic and without a clock: what it decides follows from what it was told, so any run can be
replayed. Decisions are made before drafting, from the data of earlier steps and from committed
tokens alone; a drafted token never influences how many are drafted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from paceline.core import controller_gate as gates
from paceline.core.controller_acceptance import Acceptances
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
from paceline.core.controller_ledger import Ledger, PlainSeconds, plain_equivalent, risk
from paceline.core.controller_load import LoadGate
from paceline.core.controller_session import (
    COPY_DEPTH,
    MODEL_DEPTH,
    PLAIN,
    Candidate,
    Choice,
    SessionControl,
    Why,
)
from paceline.core.controller_words import words
from paceline.core.cost import StepShape
from paceline.core.events import Gate
from paceline.core.request import DrafterKind
from paceline.core.speedup import break_even_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.core.cost import CostModel, StageSeconds

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
_LEAST_SCORED = 4
"""To begin a probe. An answer of fewer tokens would hardly be faster anyway."""
_MAX_SESSIONS = 4096
_HOPEFUL = 0.8
_BETTER = 0.2
"""How far above what is usual a session may be hoped to accept, up to `_HOPEFUL` and down to what
opens a gate: a probe takes time from everybody, so it has to be likely that something comes of it.
"""


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
        self.acceptances = Acceptances(settings.min_acceptance)
        full = cost.target_seconds(settings.max_sequences, 0, settings.max_sequences)
        self.ledger = Ledger(settings.ledger_steps * full)
        self._num_since_plain = 0
        self.load_gate = LoadGate(cost, self._model_offer)
        self._sessions: OrderedDict[str, SessionControl] = OrderedDict()

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
            if base == decoding and self._num_since_plain >= plain_interval(best.rate / plain.rate):
                # Here too, since tokens that a grammar forces keep a step from counting as plain.
                self._num_since_plain = 0
                self._say(candidates, Why("refresh"))
                return choices
            counts, worst = self._affordable(base, offers, best.counts, plain)
            if not self.ledger.has_room(worst, plain.seconds):
                further = risk(worst, plain.seconds)
                numbers = (self.ledger.level, self.ledger.capacity, further)
                self._say(candidates, Why("ledger", numbers))
            else:
                self._fill(choices, candidates, offers, counts, base)
        else:
            for candidate, offer in zip(candidates, offers, strict=True):
                candidate.session.why = self._why_plain(candidate, offer, base)
        self._probe(base, num_decoding, candidates, choices, plain)
        return choices

    def _affordable(
        self, base: StepShape, offers: Sequence[DraftOffer], counts: list[int], plain: Depths
    ) -> tuple[list[int], float]:
        """The counts, less deep where even an empty ledger would not hold their worst case, and
        the seconds of a step with them."""
        worst = self.cost.step_seconds(drafting_shape(base, offers, counts))
        while max(counts) > 1 and risk(worst, plain.seconds) > self.ledger.capacity:
            deepest = max(counts) - 1
            counts = [min(deepest, count) for count in counts]
            worst = self.cost.step_seconds(drafting_shape(base, offers, counts))
        return counts, worst

    def _copy_offer(self, candidate: Candidate) -> DraftOffer:
        session = candidate.session
        session.has_model = candidate.model_tokens > 0
        depth = min(candidate.limit, candidate.copy_tokens, COPY_DEPTH)
        if depth <= 0:
            return _NO_OFFER
        length = session.match_length = candidate.match_length
        if session.copy_gate.gate is not Gate.ON or not self.acceptances.offers_copies(length):
            return _NO_OFFER
        return DraftOffer(self.acceptances.copy_survivals(session, length, depth))

    def _model_offer(self, candidate: Candidate) -> DraftOffer:
        session = candidate.session
        session.temperature = candidate.temperature
        depth = min(candidate.limit, candidate.model_tokens, MODEL_DEPTH)
        if depth <= 0 or session.model_gate.gate is not Gate.ON:
            return _NO_OFFER
        return DraftOffer(
            self.acceptances.model_survivals(session, candidate.temperature, depth),
            uses_model=True,
            lag=candidate.model_lag,
            horizon=max(1, min(_HORIZON, candidate.num_remaining // 2)),
        )

    def _steady_gain(
        self, foretold: Sequence[float], base: StepShape, num_decoding: int, *, uses_model: bool
    ) -> float:
        """Of drafting in every step, if all sessions' drafts survived like this."""
        depth = MODEL_DEPTH if uses_model else COPY_DEPTH
        decoding = without_prefill(base, num_decoding)
        seconds = steady_seconds(self.cost, decoding, depth, uses_model=uses_model)
        return steady_gain(foretold, seconds)

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

    def _is_load_low(self, base: StepShape, hope: float = _HOPEFUL) -> bool:
        """Whether a high acceptance would pay in this step, so that a low one is to blame."""
        depth = MODEL_DEPTH if self.cost.has_draft else COPY_DEPTH
        hopes = [hope**gamma for gamma in range(1, depth + 1)]
        gain = self._steady_gain(hopes, base, base.num_sequences, uses_model=self.cost.has_draft)
        return gain >= gates.LEAST_GAIN

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
        is_load_low: dict[int, bool] = {}
        for index, candidate in enumerate(candidates):
            state = candidate.session.model_gate
            if room == 0 or candidate.model_tokens <= 0 or candidate.limit <= 0:
                continue
            num_emitted = candidate.session.num_emitted
            if not (state.gate is Gate.PROBING or state.is_probe_due(num_emitted)):
                continue
            if choices[index].num_drafted or candidate.num_scorable < _LEAST_SCORED:
                continue
            bucket = candidate.temperature
            if bucket not in is_load_low:
                hope = min(_HOPEFUL, self.acceptances.usual_of(bucket) + _BETTER)
                hope = max(hope, self.acceptances.min_acceptance + gates.ON_ABOVE)
                is_load_low[bucket] = self._is_load_low(base, hope)
            if not is_load_low[bucket]:
                continue
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

    def observe_copies(
        self,
        session: SessionControl,
        scored: Sequence[tuple[int, bool]],
        base: StepShape,
        num_decoding: int,
    ) -> None:
        """See `Acceptances.observe_copies`; it makes no difference whether a token was drafted."""
        gain = partial(self._steady_gain, base=base, num_decoding=num_decoding, uses_model=False)
        self.acceptances.observe_copies(session, scored, gain)

    def observe_probe(
        self,
        session: SessionControl,
        bucket: int,
        accept_probs: Sequence[float],
        base: StepShape,
        num_decoding: int,
    ) -> None:
        """The draft model caught up; see `Acceptances.observe_probe`."""
        gain = partial(self._steady_gain, base=base, num_decoding=num_decoding, uses_model=True)
        self.acceptances.observe_probe(session, bucket, accept_probs, gain)

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
        decoding = without_prefill(base, num_decoding)
        if shape == base:
            if base == decoding:
                self._num_since_plain = 0
            self.ledger = self.ledger.after_plain(measured.total)
            further = 0.0
            if mean_emitted > 1.0:
                further = self.cost.step_seconds(decoding)
            self.cost.observe(shape, measured)
            return PlainSeconds(measured.total, further)
        self._num_since_plain += 1
        plain = self.cost.step_seconds(base)
        alone = self.cost.step_seconds(decoding)
        equivalent = plain_equivalent(mean_emitted, alone, plain - alone)
        charged = min(measured.total, STALL * self.cost.step_seconds(shape))
        self.ledger = self.ledger.after_speculative(charged, equivalent)
        self.cost.observe(shape, measured)
        return PlainSeconds(plain, alone)

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
            foretold, uses_model = self._foretold(session)
            # Load is to blame where nobody's drafts would pay now, or this session's if it were
            # alone.
            alone = StepShape(1, 1, 1, base.context // max(1, base.num_sequences), base.is_drawn)
            gain_alone = self._steady_gain(foretold, alone, 1, uses_model=uses_model)
            if self._is_load_low(base) and gain_alone < gates.LEAST_GAIN:
                why = Why("low")
            else:
                rows = self.break_even_rows(base, foretold[0])
                rows = None if rows is None or rows >= why.numbers[0] else rows
        return words(session, why, *self.acceptance(session), rows)

    def _foretold(self, session: SessionControl) -> tuple[Sequence[float], bool]:
        """Survivals of the session's next draft by whichever drafter may make it, and whether that
        is the draft model."""
        if session.has_model and session.model_gate.gate is Gate.ON:
            foretold = self.acceptances.model_survivals(session, session.temperature, MODEL_DEPTH)
            return foretold, True
        return self.acceptances.copy_survivals(session, session.match_length, COPY_DEPTH), False

    def break_even_rows(self, base: StepShape, acceptance: float | None = None) -> int | None:
        """Rows from which one more draft token for every session no longer pays, in closed form,
        by the tangent of the cost table at this step; None where it always pays. acceptance: by
        default what is usual."""
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
            acceptance or self.acceptances.usual(is_model=self.cost.has_draft),
            fixed_seconds=max(0.0, at_rows - slope * rows),
            row_seconds=slope,
            draft_fixed_seconds=max(0.0, passes.at(rows) * factor - draft_slope * rows),
            draft_row_seconds=max(0.0, draft_slope),
        )
        return int(min(batch, 1 << 20))


_NO_OFFER = DraftOffer(())


def plain_interval(gain: float) -> int:
    """Speculative steps between two plain ones. gain: of drafting, in tokens per second; a plain
    step forgoes 1 - 1 / gain of one. With a prompt in it a step would tell nothing of decoding
    alone, so it is neither taken for this nor counted."""
    forgone = 1.0 - 1.0 / gain if gain > 1.0 else 0.0
    return min(PLAIN_EVERY, max(LEAST_PLAIN_EVERY, round(forgone / _PLAIN_SHARE)))
