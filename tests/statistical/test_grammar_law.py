"""Requests with a grammar through the real engine against the exact law of the masked model.

Drafts come from a model, whose rows are masked too, and from the grammar where it leaves no choice.
Each comparison rejects a right implementation with probability 1e-6 (seeds of unseeded requests are
fresh in every run). Run with `-m slow -s` to see the rounds.
"""

from __future__ import annotations

import itertools
import sys
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest

from paceline.core.request import DrafterKind, Grammar, GrammarKind, SamplingParams
from paceline.sampling.acceptance import AcceptRule
from paceline.sampling.constraints import RowEdits
from paceline.sampling.grammar import GrammarCompiler, GrammarConstraint
from tests.reference import chi_square
from tests.statistical.letters import END, LETTERS, letters
from tests.statistical.test_engine_law import continuation, marginal
from tests.statistical.tiny_law import MEASURED, NUM_TOKENS, VOCABULARY_SIZE, ExactLaw, serve

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tests.statistical.tiny_law import Served

pytestmark = [pytest.mark.slow, pytest.mark.statistical, pytest.mark.timeout(900)]

NUMBER = 20_000
REJECT = 1e-6
# Written down twice: as what the engine gets, and as pieces whose rows make up the language. After
# f two letters are forced, after c one; after ab and at the start of a piece there is a choice.
UNITS = ("abc", "abd", "ad", "b", "ce", "fga")
GRAMMAR = Grammar(GrammarKind.REGEX, "(abc|abd|ad|b|ce|fga){1,7}")
CASES = {
    "block rule": SamplingParams(),
    "every cut": SamplingParams(
        temperature=1.6, top_k=6, top_p=0.97, min_p=0.02, repetition_penalty=1.15
    ),
    "seeded": SamplingParams(seed=0),
}


@cache
def _words() -> frozenset[str]:
    """Words of the language, those that are longer than an output as far as their last piece."""
    words = {""}
    for _ in range(NUM_TOKENS + 1):
        words |= {word + unit for word in words for unit in UNITS if len(word) <= NUM_TOKENS}
    return frozenset(words - {""})


@cache
def _beginnings() -> frozenset[str]:
    return frozenset(word[:length] for word in _words() for length in range(len(word) + 1))


@cache
def _allowed(prefix: tuple[int, ...]) -> tuple[int, ...]:
    """What may follow, by the list of words."""
    text = "".join(LETTERS[token] for token in prefix)
    follows = [token for token, letter in enumerate(LETTERS) if text + letter in _beginnings()]
    return (*follows, END) if text in _words() else tuple(follows)


class MaskedLaw(ExactLaw):
    """The model's law under the language; nothing but the end follows the end."""

    def row_of(self, prefix: tuple[int, ...]) -> npt.NDArray[np.float64]:
        row = np.zeros(VOCABULARY_SIZE)
        if END in prefix:
            row[END] = 1
            return row
        allowed = list(_allowed(prefix))
        if not allowed:  # no word goes there: no output can ask
            return row
        kept = self._logits[prefix]
        self._logits[prefix] = np.where(np.isin(np.arange(len(kept)), allowed), kept, -np.inf)
        try:
            return super().row_of(prefix)
        finally:
            self._logits[prefix] = kept


def _serve(params: SamplingParams, number: int = NUMBER, *, may_fail: bool = False) -> Served:
    served = serve(
        number,
        params,
        AcceptRule.BLOCK,
        DrafterKind.MODEL,
        grammar=GRAMMAR,
        grammars=GrammarCompiler(letters, [END]),
        stop_token_ids=frozenset({END}),
        preempts=0.5,
        may_fail=may_fail,
    )
    rest = [END] * (NUM_TOKENS + 1)
    served.outputs = [(*output, *rest)[: NUM_TOKENS + 1] for output in served.outputs]
    return served


@pytest.mark.parametrize("name", list(CASES))
def test_outputs_follow_the_masked_law(name: str) -> None:
    exact = MaskedLaw(CASES[name], MEASURED)
    served = _serve(CASES[name])
    law = exact.law(MEASURED)
    chances = {
        "first four": chi_square(served.counts(0, MEASURED), law),
        "pair 1-2": chi_square(served.counts(0, 2), marginal(law, 0, 2)),
        "pair 3-4": chi_square(served.counts(2, 4), marginal(law, 2, 4)),
    }
    continued = {
        f"after {accepted} accepted": continuation(served, exact, accepted)
        for accepted in (0, 1, 2)
    }
    # Which of them occur behind enough different beginnings depends on the model.
    chances |= {name: chance for name, chance in continued.items() if chance is not None}
    assert len(chances) > 3
    total = sum(served.rounds.values())
    rejected = sum(count for (_, accepted), count in served.rounds.items() if accepted == 0)
    sys.stdout.write(
        f"\n{name}: {total} rounds, nothing accepted in {rejected / total:.1%}, "
        f"{served.num_preempted} preemptions, {served.num_cancelled} neighbours cancelled; "
        + ", ".join(f"{what} {chance:.3g}" for what, chance in chances.items())
        + "\n"
    )
    assert 0.05 < rejected / total < 0.95
    assert served.num_preempted > 0
    assert served.num_cancelled > 0
    assert min(chances.values()) > REJECT
    # Whole outputs: words, or beginnings of words that were cut off.
    for output in {output[:NUM_TOKENS] for output in served.outputs}:
        text = "".join(LETTERS[token] for token in itertools.takewhile(END.__ne__, output))
        assert text in (_beginnings() if len(text) == NUM_TOKENS else _words())


def test_a_law_that_is_slightly_wrong_is_noticed() -> None:
    """Negative control: a temperature of 1.12 in place of 1."""
    exact = MaskedLaw(SamplingParams(), MEASURED)
    served = _serve(SamplingParams(temperature=1.12), NUMBER // 2)
    assert chi_square(served.counts(0, MEASURED), exact.law(MEASURED)) < REJECT


def test_masks_that_let_through_too_much_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: behind a drafted token the mask of the position before it counts too."""
    fork = GrammarConstraint.fork

    def wide(self: GrammarConstraint, drafted: Sequence[int], first: int = 0) -> RowEdits:
        edits = fork(self, drafted, first)
        bits = edits.allowed.bits.copy()
        bits[1:] |= edits.allowed.bits[:-1]
        return RowEdits(allowed=type(edits.allowed)(edits.allowed.rows, bits))

    monkeypatch.setattr(GrammarConstraint, "fork", wide)
    exact = MaskedLaw(SamplingParams(), MEASURED)
    # A token that the grammar refuses is committed first, and fails its request then.
    served = _serve(SamplingParams(), 3000, may_fail=True)
    assert chi_square(served.counts(0, MEASURED), exact.law(MEASURED)) < REJECT
