"""Look-ups scored in the shadow: every committed token, whether it was drafted or not."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from paceline.core.request import DrafterKind, Request, SamplingParams
from paceline.engine.drafters.ngram import MAX_TOKENS, NgramDrafter, NgramIndex
from paceline.engine.plan import Outcome
from paceline.engine.sequence import Sequence
from tests.tiny_models import IdText


def sequence_of(tokens: list[int], drafter: DrafterKind = DrafterKind.AUTO) -> Sequence:
    request = Request("r", tuple(tokens), 100, SamplingParams(temperature=0.0), drafter=drafter)
    return Sequence(request, IdText(), 0, 0.0)


def test_a_match_is_the_longest_suffix_and_counts_up_to_16() -> None:
    index = NgramIndex()
    tokens = [1, 2, 3, 9, 1, 2, 3]
    index.extend(tokens)
    assert index.match(tokens, len(tokens)) == (3, 3)
    long = [*range(30), *range(30)]
    index = NgramIndex()
    index.extend(long[:45])
    assert index.match(long, 45) == (15, 15)
    index.extend(long[:55])
    assert index.match(long, 55) == (25, 16)
    assert NgramIndex().match([1], 1) == (0, 0)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=34))
def test_a_match_is_the_one_that_a_plain_search_finds(tokens: list[int]) -> None:
    index = NgramIndex()
    for total in range(1, len(tokens) + 1):
        best = (0, 0)
        for end in range(2, total):
            size = 0
            while size < min(16, end) and tokens[end - size - 1] == tokens[total - size - 1]:
                size += 1
            if size >= 2 and min(size, 5) >= min(best[1], 5):
                best = (end, size)
        index.extend(tokens[:total])
        assert index.match(tokens, total) == best


def test_scores_say_what_was_foretold() -> None:
    index = NgramIndex()
    tokens = [5, 6, 7, 8, 5, 6]
    index.extend(tokens)
    tokens += [7, 8, 9]
    # 5 6 -> 7 was right, then 5 6 7 -> 8 too, then 5 6 7 8 -> 5 was not.
    assert index.score(tokens) == [(2, True), (3, True), (4, False)]
    assert index.score(tokens) == []


def test_scoring_leaves_the_index_as_extending_does() -> None:
    rng = random.Random(1)
    scored, extended = NgramIndex(), NgramIndex()
    tokens = [rng.randrange(4) for _ in range(20)]
    scored.extend(tokens)
    for _ in range(50):
        tokens += [rng.randrange(4) for _ in range(rng.randint(1, 4))]
        scored.score(tokens)
    extended.extend(tokens)
    assert scored._latest == extended._latest
    assert scored._earlier == extended._earlier
    assert scored._num_indexed == extended._num_indexed


def test_offers_follow_the_request_and_scores_are_taken_once() -> None:
    drafter = NgramDrafter()
    sequence = sequence_of([5, 6, 7, 5, 6])
    drafter.admit(sequence)
    assert drafter.offer(sequence) == (MAX_TOKENS, 2)
    sequence.token_ids.append(7)
    drafter.observe([Outcome(sequence, 5, 0, 0, 1, 0, 1)], None)
    assert drafter.take_scored(sequence) == [(2, True)]
    assert drafter.take_scored(sequence) == []
    drafter.release(sequence)
    refusing = sequence_of([5, 6, 7, 5, 6], DrafterKind.MODEL)
    drafter.admit(refusing)
    assert drafter.offer(refusing) == (0, 0)
