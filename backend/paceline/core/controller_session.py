"""What the controller knows of a session, is told of a sequence, and decides for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from paceline.core.controller_estimate import CellEstimate, SessionEstimate
from paceline.core.controller_gate import GateState
from paceline.core.events import Gate
from paceline.core.request import DrafterKind

MODEL_DEPTH = 6
COPY_DEPTH = 16
_LONGEST_MATCH = 16
# n-gram matches by length: 2, 3, 4, 5 to 7, 8 to 15, 16 and more tokens.
_MATCH_CELLS = (0, 0, 0, 1, 2, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 4, *[5] * (COPY_DEPTH + 1))
MATCH_PRIORS = (0.3, 0.45, 0.55, 0.65, 0.85, 0.93)
# Greedy, cool, usual and hot sampling, and sampled verification.
MODEL_PRIORS = (0.65, 0.6, 0.55, 0.4, 0.4)


def temperature_bucket(temperature: float, *, is_seeded: bool = False) -> int:
    """Acceptance differs most between these: greedy, cool, usual, hot, and seeded requests, whose
    drafts have to meet the target's own sample."""
    if temperature == 0.0:
        return 0
    if is_seeded:
        return 4
    return 1 if temperature < 0.5 else 2 if temperature <= 1.1 else 3


def match_cell(match_length: int) -> int:
    """The cell of the n-gram baseline for a match of so many tokens."""
    return _MATCH_CELLS[min(match_length, _LONGEST_MATCH)]


def match_cells(match_length: int, depth: int) -> tuple[int, ...]:
    """The cells of a draft of up to `COPY_DEPTH` tokens: each one that proves right makes the
    match longer by one."""
    first = min(match_length, _LONGEST_MATCH)
    return _MATCH_CELLS[first : first + depth]


class Why(NamedTuple):
    """Why a session drafted what it did, in numbers; `Controller.reason` puts it in words."""

    kind: str
    numbers: tuple[float, ...] = ()


@dataclass(slots=True)
class SessionControl:
    """What is known of one session; it outlives requests."""

    key: str
    copy_gate: GateState = field(default_factory=GateState)
    model_gate: GateState = field(default_factory=GateState)
    copy_estimate: CellEstimate = field(default_factory=lambda: CellEstimate(len(MATCH_PRIORS)))
    model_estimate: SessionEstimate = field(default_factory=SessionEstimate)
    match_length: int = 5
    model_depth: int = 0
    num_emitted: int = 0
    temperature: int = 0
    has_model: bool = False
    why: Why = Why("new")
    probe_scores: list[float] = field(default_factory=list)

    @property
    def gate(self) -> Gate:
        """One word for the session: on if any drafter may draft for it."""
        if self.copy_gate.gate is Gate.ON or (self.has_model and self.model_gate.gate is Gate.ON):
            return Gate.ON
        return Gate.PROBING if self.model_gate.gate is Gate.PROBING else Gate.OFF


class Candidate(NamedTuple):
    """One decoding sequence that leaves the choice to us.

    limit: tokens that may be drafted for it now. copy_tokens, match_length: what the n-gram look-up
    found. model_tokens: what the draft model could draft, 0 without one; model_lag: known tokens
    that it has not computed. num_remaining: tokens that the request may still emit. num_scorable:
    newest known tokens that a probe could be judged on.
    """

    session: SessionControl
    limit: int
    temperature: int
    is_drawn: bool
    copy_tokens: int = 0
    match_length: int = 0
    model_tokens: int = 0
    model_lag: int = 0
    num_remaining: int = 1 << 30
    num_scorable: int = 1 << 30


class Choice(NamedTuple):
    """What one sequence does in a step. num_scored: newest known tokens whose probability under
    the draft model is asked for (a probe). catches_up: the draft model may compute its lag."""

    drafter: DrafterKind = DrafterKind.NONE
    num_drafted: int = 0
    num_scored: int = 0
    catches_up: bool = False


PLAIN = Choice()
