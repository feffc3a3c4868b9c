"""The law of whole outputs equals the target's, exactly, for every rule and every odd case."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from paceline.core.request import SamplingParams
from paceline.sampling.acceptance import Drafted, acceptance_law, draw, matching_acceptance
from paceline.sampling.rows import Rows, row_sums
from paceline.sampling.warping import WarpParameters, argmax_lowest, warp
from tests.reference import (
    continue_law,
    expected_accepted,
    joint_law,
    total_variation,
    warped,
)
from tests.sampling.rounds import RoundCase, output_law, random_law, restrict, settled

if TYPE_CHECKING:
    from tests.reference import Law, RowOf
    from tests.sampling.rounds import Draw

EXACT = 1e-6


@pytest.fixture(params=[draw, settled], ids=["two stages", "one pass"])
def run(request: pytest.FixtureRequest) -> Draw:
    """Both ways of running a round; the one pass is what serves on a CPU."""
    way: Draw = request.param
    return way


def distance(case: RoundCase, run: Draw) -> float:
    """Total variation between the outputs of one round, continued by the target, and the target."""
    length = case.depth + 1
    made = continue_law(output_law(case, run), case.target_of, length, case.vocabulary_size)
    return total_variation(made, joint_law(case.target_of, length, case.vocabulary_size))


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
@pytest.mark.parametrize(("vocabulary_size", "depth"), [(3, 1), (3, 2), (3, 3), (4, 2), (5, 2)])
@pytest.mark.parametrize("zeros", [0.0, 0.4], ids=["dense", "zeros"])
def test_outputs_follow_the_target(
    run: Draw, is_block: bool, vocabulary_size: int, depth: int, zeros: float
) -> None:
    target = random_law(1, vocabulary_size, zeros=zeros)
    draft = random_law(2, vocabulary_size, zeros=zeros)
    assert distance(RoundCase(vocabulary_size, depth, target, draft, is_block), run) < EXACT


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
def test_a_perfect_draft_is_always_accepted(run: Draw, is_block: bool) -> None:
    target = random_law(3, 4)
    case = RoundCase(4, 2, target, target, is_block)
    outputs = output_law(case, run)
    assert distance(case, run) < EXACT
    assert sum(weight for output, weight in outputs.items() if len(output) == 3) > 1 - EXACT


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
def test_draft_and_target_without_a_common_token(run: Draw, is_block: bool) -> None:
    def on(ids: tuple[int, ...]) -> RowOf:
        return restrict(random_law(4, 4), ids)

    case = RoundCase(4, 2, on((0, 1)), on((2, 3)), is_block)
    assert distance(case, run) < EXACT
    assert all(len(output) == 1 for output in output_law(case, run))


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
def test_ragged_drafts_that_end_at_a_drafted_token(run: Draw, is_block: bool) -> None:
    """Drafting stops behind token 0, and at once after token 1: lengths depend on the data."""
    case = RoundCase(
        3,
        3,
        random_law(5, 3),
        random_law(6, 3, zeros=0.3),
        is_block,
        stops=lambda drafted: drafted[-1:] == (0,) or drafted[:1] == (1,),
    )
    assert {len(ids) for ids, _ in case.drafts()} == {1, 2, 3}
    assert distance(case, run) < EXACT


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
def test_drafts_that_end_where_the_draft_is_unsure(run: Draw, is_block: bool) -> None:
    """The stop depends on the draft's next row, before anything is sampled from it."""
    draft = random_law(40, 3)

    def is_unsure(drafted: tuple[int, ...]) -> bool:
        return len(drafted) > 0 and max(draft(drafted)) < 0.6

    case = RoundCase(3, 3, random_law(8, 3), draft, is_block, stops=is_unsure)
    assert len({len(ids) for ids, _ in case.drafts()}) > 1
    assert distance(case, run) < EXACT


def test_nothing_drafted_is_plain_sampling(run: Draw) -> None:
    case = RoundCase(4, 0, random_law(9, 4), random_law(10, 4), True)
    assert distance(case, run) < EXACT


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
@pytest.mark.parametrize("kept", [(1, 3), (0, 2, 4), (4,)])
def test_a_draft_over_some_of_the_ids(run: Draw, is_block: bool, kept: tuple[int, ...]) -> None:
    """A draft head with a trimmed vocabulary has probability zero elsewhere."""
    target = random_law(11, 5, zeros=0.2)
    draft = restrict(random_law(12, 5), kept)
    assert distance(RoundCase(5, 2, target, draft, is_block, trimmed=kept), run) < EXACT


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_deterministic_drafts(run: Draw, depth: int) -> None:
    case = RoundCase(4, depth, random_law(13, 4), random_law(14, 4), False, one_hot=True)
    assert distance(case, run) < EXACT


WARPS = [
    SamplingParams(temperature=0.7),
    SamplingParams(top_k=2),
    SamplingParams(top_p=0.7),
    SamplingParams(min_p=0.4),
    SamplingParams(temperature=1.4, top_k=3, top_p=0.8, min_p=0.2),
]


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
@pytest.mark.parametrize("params", WARPS, ids=str)
@pytest.mark.parametrize("kept", [None, (0, 2, 3)], ids=["whole", "trimmed"])
def test_warped_outputs_follow_the_warped_target(
    run: Draw, is_block: bool, params: SamplingParams, kept: tuple[int, ...] | None
) -> None:
    """The real warping in front of the real law, against the reference's warping."""
    logits = random_law(15, 4)

    def target_of(prefix: tuple[int, ...]) -> np.ndarray:
        return warped(
            np.log(logits(prefix)), params.temperature, params.top_k, params.top_p, params.min_p
        )

    def make_rows(prefixes: list[tuple[int, ...]]) -> Rows:
        table = torch.tensor(np.log(np.array([logits(prefix) for prefix in prefixes])))
        return warp(table.to(torch.float32), WarpParameters.of([params] * len(prefixes), CPU))

    draft = random_law(16, 4) if kept is None else restrict(random_law(16, 4), kept)
    case = RoundCase(4, 2, target_of, draft, is_block, trimmed=kept, make_rows=make_rows)
    assert distance(case, run) < EXACT


CPU = torch.device("cpu")


def test_rules_side_by_side_in_one_batch() -> None:
    """A ragged batch of token and block rows gives each row what it gets alone."""
    target, draft = random_law(17, 4), random_law(18, 4)
    laws = {}
    for is_block in (False, True):
        law, drafts = RoundCase(4, 3, target, draft, is_block).law()
        laws[is_block] = law.accept_probs
    law, drafts = RoundCase(4, 3, target, draft, True).law()
    mixed = np.arange(len(drafts)) % 2 == 0
    both = acceptance_law(law.target, law.drafted, mixed)
    expected = torch.where(torch.from_numpy(mixed)[:, None], laws[True], laws[False])
    assert torch.equal(both.accept_probs, expected)
    assert (laws[True] != laws[False]).any()


@pytest.mark.parametrize("seed", range(6))
def test_expected_accepted_tokens_match_theory(run: Draw, seed: int) -> None:
    """Mean accepted tokens of both rules, and the block rule's are never fewer."""
    target, draft = random_law(seed, 3), random_law(seed + 100, 3)
    measured = {}
    for rule, is_block in (("token", False), ("block", True)):
        outputs = output_law(RoundCase(3, 3, target, draft, is_block), run)
        measured[rule] = sum(weight * (len(output) - 1) for output, weight in outputs.items())
        assert measured[rule] == pytest.approx(expected_accepted(target, draft, 3, rule), abs=1e-6)
    assert measured["block"] >= measured["token"] - 1e-9


def test_the_paper_s_toy_example(run: Draw) -> None:
    """Two tokens, target (1/3, 2/3), draft (2/3, 1/3), depth 2: 10/9 against 11/9 accepted."""
    target: RowOf = lambda prefix: np.array([1 / 3, 2 / 3])  # noqa: E731
    draft: RowOf = lambda prefix: np.array([2 / 3, 1 / 3])  # noqa: E731
    means = []
    for is_block in (False, True):
        outputs = output_law(RoundCase(2, 2, target, draft, is_block), run)
        means.append(sum(weight * (len(output) - 1) for output, weight in outputs.items()))
    assert means == pytest.approx([10 / 9, 11 / 9], abs=1e-6)


@pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
def test_survival_sums_to_the_expected_accepted(run: Draw, is_block: bool) -> None:
    target, draft = random_law(19, 3), random_law(20, 3)
    law, drafts = RoundCase(3, 3, target, draft, is_block).law()
    half = torch.full(law.accept_probs.shape, 0.5, dtype=torch.float64)
    made = run(law, half, half[:, 0], half[:, 0])
    weights = torch.tensor([weight for _, weight in drafts], dtype=torch.float64)
    mean = float((made.survival.sum(1) * weights).sum())
    rule = "block" if is_block else "token"
    assert mean == pytest.approx(expected_accepted(target, draft, 3, rule), abs=1e-6)


def test_examined_positions_mean_the_same_under_both_rules(run: Draw) -> None:
    """The same uniforms give the same examined and passed counts; only acceptance differs."""
    target, draft = random_law(21, 3), random_law(22, 3)
    made = []
    for is_block in (False, True):
        law, drafts = RoundCase(3, 3, target, draft, is_block).law()
        generator = torch.Generator().manual_seed(0)
        accept = torch.rand(law.accept_probs.shape, dtype=torch.float64, generator=generator)
        last = torch.rand(len(drafts), dtype=torch.float64, generator=generator)
        made.append(run(law, accept, last, last))
    token, block = made
    assert torch.equal(token.num_examined, block.num_examined)
    assert torch.equal(token.num_passed, block.num_passed)
    assert torch.equal(token.num_passed, token.num_accepted)
    assert (block.num_accepted != token.num_accepted).any()


def matching_law(case: RoundCase) -> Law:
    """Sampled verification on every combination of the target rows' own samples."""
    size, depth = case.vocabulary_size, case.depth
    outputs: Law = {}
    for ids, weight in case.drafts():
        drafted = Drafted(
            torch.tensor([ids], dtype=torch.int64).view(1, depth),
            np.array([len(ids)]),
            np.array([0]),
            None,
            np.full((1, depth), -1),
        )
        laws = [case.target_of(ids[:place]) for place in range(len(ids) + 1)]
        for samples in itertools.product(range(size), repeat=len(laws)):
            chance = weight * float(np.prod([law[s] for law, s in zip(laws, samples, strict=True)]))
            made = matching_acceptance(torch.tensor(samples), drafted, None)
            output = (*ids[: int(made.num_accepted)], int(made.next_token))
            outputs[output] = outputs.get(output, 0.0) + chance
    return outputs


def test_sampled_verification_follows_the_target() -> None:
    case = RoundCase(3, 2, random_law(23, 3, zeros=0.2), random_law(24, 3), False)
    made = continue_law(matching_law(case), case.target_of, 3, 3)
    assert total_variation(made, joint_law(case.target_of, 3, 3)) < EXACT


def test_greedy_rows_give_the_first_mismatch(run: Draw) -> None:
    """One-hot rows under the general law and the greedy shortcut agree."""
    sharp = random_law(25, 4)

    def target_of(prefix: tuple[int, ...]) -> np.ndarray:
        return warped(np.log(sharp(prefix)), temperature=0)

    case = RoundCase(4, 3, target_of, random_law(26, 4), False)
    law, drafts = case.law()
    half = torch.full(law.accept_probs.shape, 0.5, dtype=torch.float64)
    general = run(law, half, half[:, 0], half[:, 0])
    short = matching_acceptance(argmax_lowest(law.target.weights), law.drafted, None)
    assert torch.equal(general.num_accepted, short.num_accepted)
    assert torch.equal(general.next_token, short.next_token)
    assert torch.equal(general.source, short.source)


def test_a_uniform_of_zero_accepts_nothing_impossible(run: Draw) -> None:
    target: RowOf = lambda prefix: np.array([0.0, 1.0])  # noqa: E731
    draft: RowOf = lambda prefix: np.array([1.0, 0.0])  # noqa: E731
    for is_block in (False, True):
        law, _ = RoundCase(2, 2, target, draft, is_block).law()
        zeros = torch.zeros(law.accept_probs.shape, dtype=torch.float64)
        made = run(law, zeros, zeros[:, 0], zeros[:, 0])
        assert made.num_accepted.tolist() == [0]
        assert made.next_token.tolist() == [1]


def test_thresholds_are_strict() -> None:
    """Just under a threshold passes, at it and over it does not."""
    case = RoundCase(3, 1, random_law(27, 3), random_law(28, 3), True)
    law, drafts = case.law()
    at = law.accept_probs
    some = torch.full((len(drafts),), 0.5, dtype=torch.float64)
    under = draw(law, torch.nextafter(at, torch.zeros_like(at)), some, some)
    assert under.num_accepted.tolist() == [1] * len(drafts)
    below_one = at[:, 0] < 1
    for uniform in (at, torch.nextafter(at, torch.full_like(at, 2.0))):
        made = draw(law, uniform, some, some)
        assert (made.num_accepted[below_one] == 0).all()


@pytest.mark.parametrize("subset", ["whole", "ordered", "shuffled"])
@pytest.mark.parametrize("trimmed", [False, True], ids=["first ids", "trimmed"])
@pytest.mark.parametrize("draft", ["token", "block", "one-hot"])
def test_one_pass_decides_as_the_two_stages_do(subset: str, trimmed: bool, draft: str) -> None:
    """Ragged rounds over a vocabulary of many groups, with entries without weight among them."""
    generator = torch.Generator().manual_seed(31)
    size, width, depth = 1500, 700, 4
    lengths = np.array([0, 1, 4, 3, 2, 4] * 8)
    num_rows = int((lengths + 1).sum())
    weights = torch.rand(num_rows, size, generator=generator).pow(12)
    weights[torch.rand(num_rows, size, generator=generator) < 0.3] = 0.0
    ids = None
    if subset != "whole":
        ids = torch.stack([torch.randperm(4000, generator=generator)[:size] for _ in weights])
        ids = ids.sort(-1).values if subset == "ordered" else ids
    target = Rows(weights, row_sums(weights), ids)
    drafts = torch.rand(int(lengths.sum()), width, generator=generator).pow(12)
    drafts /= drafts.sum(-1, keepdim=True)
    vocab_ids = torch.randperm(1500, generator=generator)[:width].sort().values
    columns = torch.multinomial(drafts, 1, generator=generator)[:, 0]
    tokens = vocab_ids[columns] if trimmed else columns
    is_drafted = np.arange(depth) < lengths[:, None]
    index, draft_ids = np.full(is_drafted.shape, -1), np.zeros(is_drafted.shape, dtype=np.int64)
    index[is_drafted], draft_ids[is_drafted] = np.arange(len(tokens)), tokens.numpy()
    has_rows = draft != "one-hot"
    drafted = Drafted(
        torch.from_numpy(draft_ids),
        lengths,
        np.cumsum(lengths + 1) - lengths - 1,
        drafts if has_rows else None,
        index if has_rows else np.full_like(index, -1),
        vocab_ids if trimmed else None,
    )
    law = acceptance_law(target, drafted, np.full(len(lengths), draft == "block"))
    num_accepted = 0
    for _ in range(20):
        accept = torch.rand(len(lengths), depth, dtype=torch.float64, generator=generator).pow(9)
        last = torch.rand(2, len(lengths), dtype=torch.float64, generator=generator)
        ours, theirs = settled(law, accept, *last), draw(law, accept, *last)
        for name in ("num_accepted", "next_token", "source", "num_examined", "num_passed"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
        assert torch.allclose(ours.survival, theirs.survival)
        assert torch.allclose(ours.next_prob, theirs.next_prob)
        num_accepted += int(ours.num_accepted.sum())
    assert 0 < num_accepted < 20 * int(lengths.sum())
