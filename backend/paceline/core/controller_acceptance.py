"""What is learnt of acceptance from every step, session by session; the session gates follow it.

Sessions are measured against baselines that all of them share: by temperature and depth for the
draft model, by length of the match for look-ups (see `controller_estimate`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core import controller_gate as gates
from paceline.core.controller_estimate import Baseline, survivals
from paceline.core.controller_gate import GateState
from paceline.core.controller_session import (
    COPY_DEPTH,
    MATCH_PRIORS,
    MODEL_DEPTH,
    MODEL_PRIORS,
    match_cell,
    match_cells,
)
from paceline.core.events import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.controller_session import SessionControl

_LEAST_SCORED = 8
_MATCH_WEIGHT = 24.0
_USUAL_BUCKET = 2
_USUAL_MATCH = 3


class Acceptances:
    """Baselines of all sessions; what is known of one lies in its `SessionControl`.

    min_acceptance: the session gate's threshold.
    """

    def __init__(self, min_acceptance: float) -> None:
        self.min_acceptance = min_acceptance
        self.num_gate_flips = 0
        self._copy_base = Baseline(MATCH_PRIORS, _MATCH_WEIGHT)
        self._model_base = Baseline(
            [prior for prior in MODEL_PRIORS for _ in range(MODEL_DEPTH)], gates.LEAST_EXAMINED
        )

    def offers_copies(self, match_length: int) -> bool:
        """Whether matches of this length are right often enough, over all sessions, to be drafts
        at all; only such ones count for the gate."""
        return self._copy_base.rates[match_cell(match_length)] >= self.min_acceptance

    def copy_survivals(self, session: SessionControl, match_length: int, depth: int) -> list[float]:
        """Of 1 .. depth tokens copied behind a match of that length."""
        cells = match_cells(match_length, depth)
        return session.copy_estimate.survivals(self._copy_base, cells)

    def model_survivals(self, session: SessionControl, bucket: int, depth: int) -> list[float]:
        """Of 1 .. depth tokens drafted by the model. bucket: of temperature."""
        first = bucket * MODEL_DEPTH
        last = first + MODEL_DEPTH - 1
        return survivals(session.model_estimate, self._model_base, first, depth, last)

    def usual_of(self, bucket: int) -> float:
        """The draft model's acceptance at depth 1 over all sessions. bucket: of temperature."""
        return self._model_base.rates[bucket * MODEL_DEPTH]

    def usual(self, *, is_model: bool) -> float:
        """The acceptance to reckon with where nothing is known of the traffic: at the usual
        temperatures, or behind a match of five tokens."""
        if is_model:
            return self.usual_of(_USUAL_BUCKET)
        return MATCH_PRIORS[_USUAL_MATCH]

    def observe_model_round(
        self,
        session: SessionControl,
        bucket: int,
        chain: Sequence[float],
        num_examined: int,
    ) -> None:
        """A draft of the model was verified.

        chain: see `controller_estimate`. num_examined: by the token rule.
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
                _chances(chain, num_examined),
                session.num_emitted,
                self.usual_of(bucket),
                self.min_acceptance,
            ),
        )

    def observe_copies(
        self,
        session: SessionControl,
        scored: Sequence[tuple[int, bool]],
        gain: Callable[[Sequence[float]], float],
    ) -> None:
        """The n-gram look-up was scored on tokens that were emitted: (length of the match, whether
        the token was the one that it foretold). gain: of drafting with such survivals."""
        state = session.copy_gate
        for match_length, is_hit in scored:
            cell = match_cell(match_length)
            session.copy_estimate.observe(cell, is_hit)
            self._copy_base.observe(cell, float(is_hit), 1.0)
            if self._copy_base.rates[cell] >= self.min_acceptance:
                if state.gate is Gate.ON:
                    state = gates.after_round(
                        state,
                        (float(is_hit),),
                        session.num_emitted,
                        self._copy_base.rates[cell],
                        self.min_acceptance,
                    )
                else:
                    state = gates.record(state, (float(is_hit),))
        is_due = state.gate is Gate.OFF and state.is_probe_due(session.num_emitted)
        if is_due and state.num_examined >= gates.LEAST_EXAMINED:
            acceptance = state.acceptance or 0.0
            if acceptance >= self.min_acceptance + gates.ON_ABOVE:
                foretold = self.copy_survivals(session, session.match_length, COPY_DEPTH)
                gained = gain(foretold)
                if gained >= gates.LEAST_GAIN:
                    # Scoring it is free, so a probe that fails is no reason to wait longer.
                    state = gates.after_probe(
                        state, acceptance, gained, session.num_emitted, self.min_acceptance
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
        gain: Callable[[Sequence[float]], float],
    ) -> None:
        """The draft model was probed. accept_probs: for each scored token min(1, draft / target) of
        its probability, whose mean is the acceptance that drafting would have had. gain: of
        drafting with such survivals. Where answers are short, several probes make one result."""
        if session.model_gate.gate is not Gate.PROBING:
            return  # another request of the session has brought the result
        accept_probs = session.probe_scores = [*session.probe_scores, *accept_probs]
        if len(accept_probs) < _LEAST_SCORED:
            session.model_gate = gates.without_result(session.model_gate, session.num_emitted)
            return
        session.probe_scores = []
        acceptance = sum(accept_probs) / len(accept_probs)
        rate = self.usual_of(bucket)
        session.model_estimate.observe(
            sum(accept_probs), rate * len(accept_probs), float(len(accept_probs))
        )
        gained = gain(self.model_survivals(session, bucket, MODEL_DEPTH))
        self._set_model_gate(
            session,
            gates.after_probe(
                session.model_gate, acceptance, gained, session.num_emitted, self.min_acceptance
            ),
        )

    def _set_model_gate(self, session: SessionControl, state: GateState) -> None:
        known = session.model_gate
        before = known.was if known.gate is Gate.PROBING else known.gate
        if state.gate is not before and state.gate is not Gate.PROBING:
            self.num_gate_flips += 1
        session.model_gate = state


def _chances(chain: Sequence[float], num_examined: int) -> list[float]:
    """Of the first positions to be accepted: min(1, target / draft), from the chain. Where the
    clamped chain of block verification rises or stays at 1, that minimum is 1 too."""
    chances = []
    before = 1.0
    for survival in chain[:num_examined]:
        chances.append(min(1.0, survival / before) if before > 0.0 else 0.0)
        before = survival
    return chances
