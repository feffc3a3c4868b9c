"""The load gate of the draft model: whether drafting with it pays at this load, and for whom.

Look-ups cost nothing but rows and are decided step by step. A draft model has to keep up, so it is
not switched with every step: the gate opens and closes by a smoothed gain, with hysteresis and a
dwell, and while it is closed the draft model computes nothing and every fourth step looks at it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.controller_depth import (
    Depths,
    DraftOffer,
    choose_depths,
    steady_gain,
    steady_seconds,
)
from paceline.core.controller_session import COPY_DEPTH, MODEL_DEPTH
from paceline.core.events import Gate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.controller_session import Candidate
    from paceline.core.cost import CostModel, StepShape

OPEN_FROM = 1.03
CLOSE_BELOW = 1.01
DWELL = 8
_GAIN_WEIGHT = 0.15
_FIRST_GAIN = 1.1
_MANY = 24
_SCAN_EVERY = 4
_CATCH_UP_SHARE = 0.25
_IN_STEP = 4


class LoadGate:
    """offer: what the draft model could draft for a candidate."""

    def __init__(self, cost: CostModel, offer: Callable[[Candidate], DraftOffer]) -> None:
        self.is_open = True
        self.num_flips = 0
        self._cost = cost
        self._offer = offer
        self._gain = _FIRST_GAIN
        self._num_since_flip = DWELL
        self._num_since_scan = 0

    def begin_step(self) -> None:
        """Another step begins, whether or not anything is to be chosen in it."""
        self._num_since_flip += 1

    def choose(
        self,
        base: StepShape,
        decoding: StepShape,
        candidates: Sequence[Candidate],
        copies: list[DraftOffer],
        best: Depths,
        worth: float,
    ) -> tuple[Depths, list[DraftOffer]]:
        """The better of `best`, what look-ups alone would do, and drafting with the model where
        that promises more: depths for the offers that come with them.

        base, worth: as for `choose_depths`. decoding: base without its prefill rows. copies: each
        candidate's look-up, which stays where the model does not promise more.
        """
        if not self.is_open and self._num_since_flip < DWELL:
            return best, copies
        self._num_since_scan += 1
        is_quick = self.is_open and len(candidates) < _MANY
        interval = 1 if is_quick else _SCAN_EVERY
        if self._num_since_scan < interval:
            return self._as_before(candidates, copies, best) if self.is_open else (best, copies)
        self._num_since_scan = 0
        for candidate in candidates:
            candidate.session.model_depth = 0
        model_seconds = copy_seconds = None
        mixed = []
        is_asked = False
        for candidate, copy in zip(candidates, copies, strict=True):
            offer = self._offer(candidate)
            if not offer.survivals:
                mixed.append(copy)
                continue
            if copy.survivals:
                if model_seconds is None or copy_seconds is None:
                    model_seconds = steady_seconds(
                        self._cost, decoding, MODEL_DEPTH, uses_model=True
                    )
                    copy_seconds = steady_seconds(
                        self._cost, decoding, COPY_DEPTH, uses_model=False
                    )
                gain = steady_gain(offer.survivals, model_seconds)
                if gain <= steady_gain(copy.survivals, copy_seconds):
                    mixed.append(copy)
                    continue
            is_asked = True
            mixed.append(offer)
        if not is_asked:
            return best, copies
        found = choose_depths(self._cost, base, worth, mixed)
        weight = 1.0 - (1.0 - _GAIN_WEIGHT) ** interval
        self._gain += weight * (found.rate / best.rate - self._gain)
        if self._num_since_flip >= DWELL:
            if self.is_open and self._gain < CLOSE_BELOW:
                self._flip(is_open=False)
            elif not self.is_open and self._gain >= OPEN_FROM:
                self._flip(is_open=True)
        if not self.is_open:
            return best, copies
        staggered = self._staggered(mixed, copies, found.counts, base)
        if staggered is not mixed:
            found, mixed = choose_depths(self._cost, base, worth, staggered), staggered
        if found.rate <= best.rate:
            return best, copies
        for candidate, offer, count in zip(candidates, mixed, found.counts, strict=True):
            if offer.uses_model:
                candidate.session.model_depth = count
        return found, mixed

    def _as_before(
        self, candidates: Sequence[Candidate], copies: list[DraftOffer], best: Depths
    ) -> tuple[Depths, list[DraftOffer]]:
        """With many sessions the depths of model drafts are found anew every few steps only: they
        rest on estimates that move slowly. Look-ups come and go and are decided in every step. Of
        the result only the rate is meant: by the smoothed gain, not by these counts."""
        counts, offers = list(best.counts), list(copies)
        for index, candidate in enumerate(candidates):
            session = candidate.session
            depth = min(session.model_depth, candidate.limit, candidate.model_tokens)
            if depth <= 0 or counts[index] or session.model_gate.gate is not Gate.ON:
                continue
            offers[index] = DraftOffer((), uses_model=True, lag=candidate.model_lag)
            counts[index] = depth
        if counts == best.counts:
            return best, copies
        return Depths(counts, best.tokens * max(1.0, self._gain), best.seconds), offers

    def _flip(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self._num_since_flip = 0
        self.num_flips += 1

    def _staggered(
        self,
        mixed: list[DraftOffer],
        copies: list[DraftOffer],
        counts: Sequence[int],
        base: StepShape,
    ) -> list[DraftOffer]:
        """Many prompts at once would be a long step for everybody: of those that would draft, the
        most promising draft models catch up first. The very list if all may."""
        lagging = [
            index for index, offer in enumerate(mixed) if offer.lag > _IN_STEP and counts[index]
        ]
        if not lagging:
            return mixed
        row = self._cost.draft_row_seconds(base.is_drawn)
        room = _CATCH_UP_SHARE * self._cost.step_seconds(base)
        if row * sum(mixed[index].lag for index in lagging) <= room:
            return mixed
        lagging.sort(key=lambda index: -mixed[index].survivals[0])
        staggered = list(mixed)
        for index in lagging:
            if room <= 0.0:
                staggered[index] = copies[index]
            room -= mixed[index].lag * row
        return staggered
