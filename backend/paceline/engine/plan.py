"""The data between the stages of a step: frozen, made by one stage and read by the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.core.request import DrafterKind

if TYPE_CHECKING:
    from paceline.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """What a step does for one sequence.

    num_target_tokens: known tokens that the target computes, at least 1. completes: the newest one
    is among them, so that a new token is sampled. num_drafted: how many tokens the drafter may add
    behind them (slots are reserved); 0 unless the sequence is decoding. num_catch_up: known tokens
    that the drafter may compute in this step. drafter: which one drafts, AUTO for whichever has
    something. num_scored: newest known tokens whose probability under the draft model is asked for.
    forced: num_drafted tokens that a grammar forces, in place of any drafter's; () where none are.
    """

    sequence: Sequence
    num_target_tokens: int
    completes: bool
    num_drafted: int = 0
    num_catch_up: int = 0
    drafter: DrafterKind = DrafterKind.AUTO
    num_scored: int = 0
    forced: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Entries in batch order. preempted: sequences that lost their blocks in making this plan."""

    entries: tuple[PlanEntry, ...]
    preempted: tuple[Sequence, ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one entry after commit, for the drafter and the policy.

    num_before: known tokens before the commit. num_drafted, num_accepted: this round's.
    num_committed: tokens appended. first_row: where the entry's rows begin in the target's packed
    rows of this step; num_rows of them.

    num_examined, num_passed: drafted positions tested and passed, by the token rule. survival: for
    each drafted position an estimate of the probability that it and all before it are accepted;
    both as at `sampling.acceptance.Acceptance`. target_prob: of the token behind the accepted ones,
    under the target; None where it was not asked for. draft_probs: answer to `num_scored`: of the
    newest known tokens before this commit, under the draft model, oldest first. is_forced: what was
    drafted was forced by a grammar.
    """

    sequence: Sequence
    num_before: int
    num_drafted: int
    num_accepted: int
    num_committed: int
    first_row: int
    num_rows: int
    num_examined: int = 0
    num_passed: int = 0
    survival: tuple[float, ...] = ()
    target_prob: float | None = None
    draft_probs: tuple[float, ...] = ()
    is_forced: bool = False
