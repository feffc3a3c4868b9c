"""Faults seen in real engines, put in on purpose: each must be noticed by the same measure that the
right implementation passes. A test of a law is worth nothing without this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline.core.events import FinishReason, TokenSource
from paceline.core.request import Request, SamplingParams
from paceline.engine import commit as commit_module
from paceline.engine.sequence import Sequence
from paceline.sampling import verification
from paceline.sampling.acceptance import Acceptance, AcceptanceLaw, AcceptRule, draw
from paceline.sampling.constraints import RowEdits, SamplingConstraint
from paceline.sampling.edits import apply_edits
from paceline.sampling.randomness import Purpose, uniforms
from paceline.sampling.rows import Rows
from paceline.sampling.warping import WarpParameters, warp
from tests.reference import (
    chi_square,
    continue_law,
    edited,
    joint_law,
    total_variation,
    warped,
)
from tests.sampling.rounds import RoundCase, output_law, random_law
from tests.sampling.table_models import TablePair, sample
from tests.tiny_models import IdText

EXACT = 1e-6
REJECT = 1e-6
SIZE, DEPTH = 3, 3
CPU = torch.device("cpu")

Run = Callable[[AcceptanceLaw, Tensor, Tensor, Tensor], Acceptance]


def distance(case: RoundCase, run: Run = draw) -> float:
    length = case.depth + 1
    made = continue_law(output_law(case, run), case.target_of, length, case.vocabulary_size)
    return total_variation(made, joint_law(case.target_of, length, case.vocabulary_size))


class NoResidual(AcceptanceLaw):
    __slots__ = ()

    def final_rows(self, num_accepted: Tensor) -> Rows:
        rows = torch.from_numpy(self.drafted.first_rows) + num_accepted
        return self.target.take(rows)


class BonusFromTheWrongRow(AcceptanceLaw):
    __slots__ = ()

    def final_rows(self, num_accepted: Tensor) -> Rows:
        right = AcceptanceLaw.final_rows(self, num_accepted)
        is_full = num_accepted == torch.from_numpy(self.drafted.num_drafted)
        before = torch.from_numpy(self.drafted.first_rows) + (num_accepted - 1).clamp_min(0)
        wrong = self.target.take(before).weights
        return Rows(torch.where(is_full[:, None], wrong, right.weights), right.totals)


def as_mutant(mutant: type[AcceptanceLaw], law: AcceptanceLaw) -> AcceptanceLaw:
    return mutant(
        law.accept_probs, law.token_probs, law.chain, law.is_block, law.target, law.drafted
    )


def no_residual(law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor) -> Acceptance:
    return draw(as_mutant(NoResidual, law), accept, residual, bonus)


def wrong_bonus(law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor) -> Acceptance:
    return draw(as_mutant(BonusFromTheWrongRow, law), accept, residual, bonus)


def token_residual(
    law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor
) -> Acceptance:
    return draw(replace(law, chain=torch.ones_like(law.chain)), accept, residual, bonus)


def break_at_first_failure(
    law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor
) -> Acceptance:
    first = replace(law, token_probs=law.accept_probs, is_block=torch.zeros_like(law.is_block))
    return draw(first, accept, residual, bonus)


def shared_uniform(
    law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor
) -> Acceptance:
    return draw(law, accept[:, :1].expand_as(accept), residual, bonus)


def half_of_the_threshold(
    law: AcceptanceLaw, accept: Tensor, residual: Tensor, bonus: Tensor
) -> Acceptance:
    half = replace(law, accept_probs=law.accept_probs / 2, token_probs=law.token_probs / 2)
    return draw(half, accept, residual, bonus)


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
@pytest.mark.parametrize(
    "run",
    [
        no_residual,
        wrong_bonus,
        token_residual,
        break_at_first_failure,
        shared_uniform,
        half_of_the_threshold,
    ],
    ids=lambda run: run.__name__,
)
def test_wrong_draws_are_noticed(run: Run, is_block: bool) -> None:
    case = RoundCase(SIZE, DEPTH, random_law(33, SIZE), random_law(34, SIZE), is_block)
    assert distance(case) < EXACT
    if not is_block and run in (token_residual, break_at_first_failure):
        # This is what the token rule does anyway.
        assert distance(case, run) < EXACT
    else:
        assert distance(case, run) > 1e-3


def sharpened(temperature: float) -> Callable[[tuple[int, ...]], np.ndarray]:
    def row_of(prefix: tuple[int, ...]) -> np.ndarray:
        return warped(np.log(random_law(2, SIZE)(prefix)), temperature)

    return row_of


def truncated(prefix: tuple[int, ...]) -> np.ndarray:
    return warped(np.log(random_law(2, SIZE)(prefix)), top_k=2)


def argmax_of(prefix: tuple[int, ...]) -> np.ndarray:
    row = np.zeros(SIZE)
    row[int(random_law(2, SIZE)(prefix).argmax())] = 1.0
    return row


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
@pytest.mark.parametrize(
    ("sampled_from", "declared"),
    [
        pytest.param(sharpened(0.7), random_law(2, SIZE), id="another temperature for the draft"),
        pytest.param(truncated, random_law(2, SIZE), id="top-k on the sampled side only"),
        pytest.param(argmax_of, random_law(2, SIZE), id="highest token declared as sampled"),
    ],
)
def test_wrongly_declared_drafts_are_noticed(
    sampled_from: Callable[[tuple[int, ...]], np.ndarray],
    declared: Callable[[tuple[int, ...]], np.ndarray],
    is_block: bool,
) -> None:
    right = RoundCase(SIZE, DEPTH, random_law(1, SIZE), sampled_from, is_block)
    assert distance(right) < EXACT
    assert distance(replace(right, declared_of=declared)) > 1e-3


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
def test_dropping_an_unlikely_drafted_token_is_noticed(is_block: bool) -> None:
    """The length of a draft must not depend on the token that it would drop."""
    draft = random_law(2, SIZE)

    def is_unlikely(drafted: tuple[int, ...]) -> bool:
        return bool(draft(drafted[:-1])[drafted[-1]] < 0.3)

    case = RoundCase(SIZE, DEPTH, random_law(1, SIZE), draft, is_block)
    assert distance(replace(case, stops=lambda drafted: bool(drafted) and is_unlikely(drafted))) < (
        EXACT
    )
    assert distance(replace(case, drops=is_unlikely)) > 1e-3


def test_truncation_of_the_draft_alone_is_noticed() -> None:
    params = SamplingParams(top_k=2)
    logits = random_law(3, SIZE)

    def target_of(prefix: tuple[int, ...]) -> np.ndarray:
        return warped(np.log(logits(prefix)), top_k=2)

    def rows(chosen: SamplingParams) -> Callable[[list[tuple[int, ...]]], Rows]:
        def make(prefixes: list[tuple[int, ...]]) -> Rows:
            table = torch.tensor(np.log(np.array([logits(prefix) for prefix in prefixes])))
            return warp(table.float(), WarpParameters.of([chosen] * len(prefixes), CPU))

        return make

    case = RoundCase(SIZE, 2, target_of, truncated, True, make_rows=rows(params))
    assert distance(case) < EXACT
    assert distance(replace(case, make_rows=rows(SamplingParams()))) > 1e-3


def test_penalties_of_the_wrong_prefix_are_noticed() -> None:
    """Every verified position must count the drafted tokens before it."""
    params = SamplingParams(repetition_penalty=1.5, presence_penalty=0.8, frequency_penalty=0.6)
    logits = random_law(4, SIZE)
    prompt = (1,)

    def target_of(prefix: tuple[int, ...]) -> np.ndarray:
        return warped(
            edited(
                np.log(logits(prefix)),
                prompt,
                prefix,
                repetition=params.repetition_penalty,
                presence=params.presence_penalty,
                frequency=params.frequency_penalty,
            )
        )

    def rows(
        fork: Callable[[SamplingConstraint, tuple[int, ...]], RowEdits],
    ) -> Callable[[list[tuple[int, ...]]], Rows]:
        def make(prefixes: list[tuple[int, ...]]) -> Rows:
            constraint = SamplingConstraint(params, prompt, ())
            edits = [(row, fork(constraint, prefix)) for row, prefix in enumerate(prefixes)]
            table = torch.tensor(np.log(np.array([logits(prefix) for prefix in prefixes])))
            plain = WarpParameters.of([SamplingParams()] * len(prefixes), CPU)
            return warp(apply_edits(table, RowEdits.join(edits)), plain)

        return make

    def right(constraint: SamplingConstraint, prefix: tuple[int, ...]) -> RowEdits:
        return constraint.fork(prefix, first=len(prefix))

    def committed_only(constraint: SamplingConstraint, prefix: tuple[int, ...]) -> RowEdits:
        return constraint.fork(())

    def one_behind(constraint: SamplingConstraint, prefix: tuple[int, ...]) -> RowEdits:
        return constraint.fork(prefix[:-1], first=len(prefix[:-1]))

    case = RoundCase(SIZE, 2, target_of, random_law(5, SIZE), True, make_rows=rows(right))
    assert distance(case) < EXACT
    for wrong in (committed_only, one_behind):
        assert distance(replace(case, make_rows=rows(wrong))) > 1e-3


def test_a_draft_s_noise_reused_for_the_residual_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = TablePair(seed=3)
    law = pair.law(4)
    assert chi_square(sample(pair, 20_000, 4, 1, AcceptRule.TOKEN).counts, law) > REJECT

    def reused(seeds: object, positions: object, rounds: object, purpose: object) -> object:
        asked = np.asarray(purpose)
        purpose = np.where(asked == Purpose.RESIDUAL, int(Purpose.DRAFT), asked)
        return uniforms(seeds, positions, rounds, purpose)  # type: ignore[arg-type]

    monkeypatch.setattr(verification, "uniforms", reused)
    assert chi_square(sample(pair, 20_000, 4, 1, AcceptRule.TOKEN).counts, law) < REJECT


def test_keys_without_a_round_are_noticed_under_the_block_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rejected draft's noise has shaped the output: used again at its position, it biases."""
    pair = TablePair(vocabulary_size=2, seed=3)
    law = pair.law(4)
    assert chi_square(sample(pair, 20_000, 4, 2, AcceptRule.BLOCK).counts, law) > REJECT

    def without_round(seeds: object, positions: object, rounds: object, purpose: object) -> object:
        return uniforms(seeds, positions, 0, purpose)  # type: ignore[arg-type]

    monkeypatch.setattr(verification, "uniforms", without_round)
    assert chi_square(sample(pair, 20_000, 4, 2, AcceptRule.BLOCK).counts, law) < REJECT


def test_length_before_stop_is_noticed() -> None:
    """Mutated source of the commit: at the same token a stop must win over the length limit."""
    source = inspect.getsource(commit_module)
    right = "if token_id in sequence.request.stop_token_ids:"
    wrong = right[:-1] + " and sequence.num_output < sequence.request.max_new_tokens:"
    assert source.count(right) == 1
    mutant = ModuleType("mutant")
    mutant.__dict__["__name__"] = commit_module.__name__
    exec(compile(source.replace(right, wrong), "mutant", "exec"), mutant.__dict__)
    reasons = []
    for module in (commit_module, mutant):
        request = Request("r", (1,), 2, stop_token_ids=frozenset({9}))
        sequence = Sequence(request, IdText(), 0, 0.0)
        run = [module.DecidedToken(token, TokenSource.ACCEPTED) for token in (5, 9, 6)]
        reasons.append(module.commit(sequence, run, 100).finish)
        assert sequence.token_ids == [1, 5, 9]
    assert reasons == [FinishReason.STOP, FinishReason.LENGTH]
