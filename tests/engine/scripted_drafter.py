"""A drafter that is right or wrong by script, and a clock that runs by a cost table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.engine.drafters.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from paceline.core.cost import CostTable
    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.runner import Runner
    from paceline.engine.sequence import Sequence as EngineSequence
    from paceline.model.batch import PackedBatch
    from paceline.model.runner import ForwardOutput


class ScriptedClock:
    """Seconds that pass only where somebody spends them."""

    def __init__(self, table: CostTable) -> None:
        self.now = 0.0
        self._table = table

    def __call__(self) -> float:
        return self.now

    def spend_target(self, rows: int) -> None:
        self.now += self._table.target.at(rows)

    def spend_draft(self, rows: int) -> None:
        if self._table.draft_greedy is not None:
            self.now += self._table.draft_greedy.at(rows)


class TimedRunner:
    """A runner whose passes take what the table says."""

    def __init__(self, runner: Runner, clock: ScriptedClock) -> None:
        self._runner = runner
        self._clock = clock

    def forward(self, batch: PackedBatch) -> ForwardOutput:
        self._clock.spend_target(batch.num_tokens)
        return self._runner.forward(batch)


class ScriptedDrafter:
    """Knows what the target will say, and says it or something else.

    answers: what each prompt is answered with. is_right: whether the draft for output position i of
    a request is right. vocabulary_size: wrong tokens stay below it.
    """

    required_features: tuple[int, ...] = ()
    keeps_accepted_rows = True

    def __init__(
        self,
        answers: dict[tuple[int, ...], list[int]],
        is_right: Callable[[str, int], bool],
        clock: ScriptedClock,
        vocabulary_size: int,
    ) -> None:
        self._answers = answers
        self._is_right = is_right
        self._clock = clock
        self._vocabulary_size = vocabulary_size
        self.num_scored_passes = 0

    def max_tokens(self, sequence: EngineSequence) -> int:
        return 6

    def lag(self, sequence: EngineSequence) -> int:
        return sequence.num_draft_lag

    def admit(self, sequence: EngineSequence) -> None:
        """Nothing to prepare."""

    def propose(self, entries: Sequence[PlanEntry]) -> Proposal:
        drafts, scores = [], []
        for entry in entries:
            sequence = entry.sequence
            sequence.num_draft_computed += entry.num_catch_up
            self._clock.spend_draft(entry.num_catch_up)
            is_ready = sequence.num_draft_lag == 0
            start = sequence.num_output
            depth = entry.num_drafted if is_ready else 0
            drafts.append(tuple(self._token(sequence, start + i) for i in range(depth)))
            for _ in range(depth - 1):
                self._clock.spend_draft(1)
            scored = min(entry.num_scored, entry.num_catch_up - 1, start) if is_ready else 0
            if scored > 0:
                self.num_scored_passes += 1
            scores.append(
                tuple(
                    float(self._is_right(sequence.request_id, start - scored + i))
                    for i in range(max(0, scored))
                )
            )
        return Proposal(
            tuple(drafts),
            tuple((-1,) * len(draft) for draft in drafts),
            ("model",) * len(drafts),
            scores=tuple(scores),
        )

    def observe(self, outcomes: Sequence[Outcome], features: Tensor | None) -> None:
        for outcome in outcomes:
            if outcome.num_drafted:
                kept = min(outcome.num_accepted, outcome.num_drafted - 1)
                outcome.sequence.num_draft_computed += kept

    def release(self, sequence: EngineSequence) -> None:
        """Nothing to give back."""

    def _token(self, sequence: EngineSequence, position: int) -> int:
        answer = self._answers[sequence.request.prompt_ids]
        truth = answer[position] if position < len(answer) else 0
        if self._is_right(sequence.request_id, position):
            return truth
        return (truth + 1) % self._vocabulary_size
