"""Grammars: masks at every position of a draft, and the exact law of rounds under them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from paceline.core.errors import RequestError
from paceline.core.request import Grammar, GrammarKind
from paceline.sampling.constraints import JoinedConstraint, RowEdits, SamplingConstraint
from paceline.sampling.edits import apply_edits
from paceline.sampling.grammar import (
    GrammarCompiler,
    GrammarConstraint,
    _require_a_beginning,
)
from paceline.sampling.rows import Rows
from tests.byte_vocabulary import byte_vocabulary
from tests.reference import continue_law, joint_law, total_variation
from tests.sampling.rounds import RoundCase, output_law, random_law

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from tests.reference import RowOf

EXACT = 1e-6
TOKENS = [b"a", b"b", b"c", b"<end>"]
END = 3
SIZE = len(TOKENS)
# Written down as the strings themselves; the regular expression is of the same language.
LANGUAGE = ("ab", "abc", "aab", "b", "bca", "bcc", "bccb")
REGEX = "ab|abc|aab|b|bca|bcc|bccb"


class _Letters:
    """A vocabulary of single letters and an end token."""

    eos_token_id = END
    bos_token_id = None
    tokens = TOKENS
    special_token_ids = (END,)

    def __call__(self, text: bytes) -> list[int]:
        letters = [bytes([byte]) for byte in text]
        return [TOKENS.index(letter) for letter in letters if letter in TOKENS]


@pytest.fixture(scope="module")
def matcher() -> LLMatcher:
    tokenizer = LLTokenizer(TokenizerWrapper(_Letters()), n_vocab=SIZE, eos_token=[END])
    return LLMatcher(tokenizer, LLMatcher.grammar_from_regex(REGEX), log_level=0)


def _constraint(matcher: LLMatcher) -> GrammarConstraint:
    return GrammarConstraint(matcher.deep_copy(), SIZE, frozenset({END}))


def _allowed(prefix: tuple[int, ...]) -> list[int]:
    """What may follow, from the list of strings; everything where nothing is asked any more."""
    if END in prefix:
        return list(range(SIZE))
    text = "".join(TOKENS[token].decode() for token in prefix)
    follows = [
        token
        for token in range(SIZE)
        if token != END and any(word.startswith(text + TOKENS[token].decode()) for word in LANGUAGE)
    ]
    if text in LANGUAGE:
        follows.append(END)
    return follows or list(range(SIZE))


def _masked(row_of: RowOf) -> RowOf:
    def masked(prefix: tuple[int, ...]) -> npt.NDArray[np.float64]:
        row = np.zeros(SIZE)
        row[_allowed(prefix)] = row_of(prefix)[_allowed(prefix)]
        return np.asarray(row / row.sum())

    return masked


def _rows_by(
    matcher: LLMatcher,
    row_of: RowOf,
    edits_of: Callable[[GrammarConstraint, tuple[int, ...]], RowEdits] = (
        lambda constraint, drafted: constraint.fork(drafted)
    ),
) -> Callable[[list[tuple[int, ...]]], Rows]:
    """The target's rows for all prefixes of all drafts, masked by the real constraint."""

    def make(prefixes: list[tuple[int, ...]]) -> Rows:
        logits, parts = [], []
        for place, prefix in enumerate(prefixes):
            logits.append(np.log(row_of(prefix)))
            is_last = place + 1 == len(prefixes) or len(prefixes[place + 1]) <= len(prefix)
            if is_last:  # the whole draft, whose rows are those of its prefixes
                parts.append((place - len(prefix), edits_of(_constraint(matcher), prefix)))
        edited = apply_edits(torch.tensor(np.array(logits)), RowEdits.join(parts))
        return Rows.of(edited.softmax(-1))

    return make


def _distance(case: RoundCase, law: RowOf) -> float:
    length = case.depth + 1
    made = continue_law(output_law(case), law, length, SIZE)
    return total_variation(made, joint_law(law, length, SIZE))


def test_masks_are_the_language(matcher: LLMatcher) -> None:
    constraint = _constraint(matcher)
    drafted = (1, 2, 2, 1, END, 0)
    edited = apply_edits(torch.zeros(7, SIZE), constraint.fork(drafted))
    for length in range(7):
        found = torch.isfinite(edited[length]).nonzero().flatten().tolist()
        assert found == _allowed(drafted[:length])
    # Forking changed nothing, from wherever it began.
    for first in (0, 2, 6):
        again = apply_edits(torch.zeros(7 - first, SIZE), constraint.fork(drafted, first))
        assert torch.equal(again, edited[first:])


def test_only_committed_tokens_advance(matcher: LLMatcher) -> None:
    constraint = _constraint(matcher)
    constraint.fork((0, 0, 1))
    constraint.advance((1,))
    edited = apply_edits(torch.zeros(1, SIZE), constraint.fork(()))
    assert torch.isfinite(edited[0]).tolist() == [False, False, True, True]
    constraint.advance((2, 0, END))
    assert len(constraint.fork((0, 1)).allowed.rows) == 0
    assert constraint.forced(5) == ()


def test_a_matcher_that_gives_up_fails_the_request(matcher: LLMatcher) -> None:
    """It must not look like the end of an output, after which anything goes."""
    constraint = _constraint(matcher)
    constraint.advance((2,))  # no output of the language begins so
    edited = apply_edits(torch.zeros(1, SIZE), constraint.fork(()))
    assert not torch.isfinite(edited).any()
    assert constraint.forced(5) == ()


def test_impossible_drafts_do_no_harm(matcher: LLMatcher) -> None:
    constraint = _constraint(matcher)
    edits = constraint.fork((2, 0, 1))
    assert edits.allowed.rows.tolist() == [0]
    constraint.advance((0,))
    edited = apply_edits(torch.zeros(1, SIZE), constraint.fork(()))
    assert torch.isfinite(edited[0]).nonzero().flatten().tolist() == _allowed((0,))


def test_forced_tokens(matcher: LLMatcher) -> None:
    constraint = _constraint(matcher)
    assert constraint.forced(5) == ()
    constraint.advance((0, 0))
    assert constraint.forced(5) == (1,)
    assert constraint.forced(0) == ()


def test_masks_go_together_with_other_edits(matcher: LLMatcher) -> None:
    from paceline.core.request import SamplingParams

    biased = SamplingConstraint(SamplingParams(logit_bias=((1, 5.0),)), (), ())
    joined = JoinedConstraint([biased, _constraint(matcher)])
    edited = apply_edits(torch.zeros(2, SIZE), joined.fork((1,)))
    assert edited[0].tolist() == [0.0, 5.0, -torch.inf, -torch.inf]
    joined.advance((0, 0))
    assert joined.forced(3) == (1,)


def test_a_draft_with_fewer_ids_is_masked_too(matcher: LLMatcher) -> None:
    ids = torch.tensor([1, 2])
    edited = apply_edits(torch.zeros(1, 2), _constraint(matcher).fork(()), ids)
    assert torch.isfinite(edited[0]).tolist() == [True, False]


class TestLaw:
    """Exact, by every cell of the random numbers."""

    @pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
    @pytest.mark.parametrize("depth", [1, 2, 3])
    @pytest.mark.parametrize("masks_draft", [False, True], ids=["free draft", "masked draft"])
    def test_outputs_follow_the_masked_target(
        self, matcher: LLMatcher, is_block: bool, depth: int, masks_draft: bool
    ) -> None:
        target, draft = random_law(1, SIZE), random_law(2, SIZE)
        law = _masked(target)
        drafting = _masked(draft) if masks_draft else draft
        case = RoundCase(SIZE, depth, law, drafting, is_block, make_rows=_rows_by(matcher, target))
        assert _distance(case, law) < EXACT

    @pytest.mark.parametrize("depth", [1, 2, 3])
    def test_deterministic_drafts(self, matcher: LLMatcher, depth: int) -> None:
        target = random_law(3, SIZE)
        law = _masked(target)
        for draft in (random_law(4, SIZE), _masked(random_law(4, SIZE))):
            case = RoundCase(
                SIZE, depth, law, draft, False, one_hot=True, make_rows=_rows_by(matcher, target)
            )
            assert _distance(case, law) < EXACT

    @pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
    def test_a_mask_one_position_late_is_found(self, matcher: LLMatcher, is_block: bool) -> None:
        target, draft = random_law(1, SIZE), random_law(2, SIZE)
        law = _masked(target)

        def late(constraint: GrammarConstraint, drafted: tuple[int, ...]) -> RowEdits:
            edits = constraint.fork(drafted)
            allowed = edits.allowed
            bits = np.concatenate((allowed.bits[:1], allowed.bits[:-1]))
            return RowEdits(allowed=type(allowed)(allowed.rows, bits))

        case = RoundCase(SIZE, 2, law, draft, is_block, make_rows=_rows_by(matcher, target, late))
        assert _distance(case, law) > 0.05

    @pytest.mark.parametrize("is_block", [False, True], ids=["token", "block"])
    def test_a_draft_cut_at_an_impossible_token_is_found(
        self, matcher: LLMatcher, is_block: bool
    ) -> None:
        """Throwing a sampled token away because of what it is, and drawing anew, is biased."""
        target, draft = random_law(5, SIZE), random_law(6, SIZE)
        law = _masked(target)
        case = RoundCase(
            SIZE,
            2,
            law,
            draft,
            is_block,
            make_rows=_rows_by(matcher, target),
            drops=lambda drafted: drafted[-1] not in _allowed(drafted[:-1]),
        )
        assert _distance(case, law) > 1000 * EXACT

    def test_a_grammar_advanced_by_a_rejected_token_is_found(self, matcher: LLMatcher) -> None:
        """Two rounds of one drafted token: what the second may say depends on what the first
        committed, not on what it drafted."""
        target, draft = random_law(7, SIZE), random_law(8, SIZE)
        law = _masked(target)
        drafted = int(draft(()).argmax())
        first = RoundCase(SIZE, 1, law, draft, False, make_rows=_rows_by(matcher, target))
        replaced = [output for output in output_law(first) if output != (drafted,)]
        errors = {False: 0.0, True: 0.0}
        for output in replaced:
            if len(output) > 1 or output[0] == END:
                continue
            for is_faulty in errors:
                constraint = _constraint(matcher)
                constraint.advance((drafted,) if is_faulty else output)
                logits = torch.tensor(np.log(target(output)))[None]
                row = apply_edits(logits, constraint.fork(())).softmax(-1)[0].double().numpy()
                error = float(np.abs(row - law(output)).max())
                errors[is_faulty] = max(errors[is_faulty], error)
        assert errors[False] < EXACT
        assert errors[True] > 0.05


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_vocabulary, [256])


class TestCompiler:
    @pytest.mark.parametrize(
        ("kind", "text", "why"),
        [
            (GrammarKind.REGEX, "(a", "unclosed group"),
            (GrammarKind.LARK, "start: missing", "missing"),
            (GrammarKind.JSON_SCHEMA, "{", "EOF"),
            (GrammarKind.JSON_SCHEMA, '{"not": {}}', "not"),
            (GrammarKind.JSON_SCHEMA, '{"type": "kangaroo"}', "kangaroo"),
            (GrammarKind.JSON_SCHEMA, '{"$ref": "#"}', "no output follows"),
            (
                GrammarKind.JSON_SCHEMA,
                '{"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}',
                "Too many items",
            ),
            (GrammarKind.LARK, "start: start", "no output follows"),
            (GrammarKind.REGEX, "[a&&b]", "no output follows"),
            (GrammarKind.REGEX, "a{1000000}", "too many expressions"),
        ],
    )
    def test_wrong_grammars_say_why(
        self, compiler: GrammarCompiler, kind: GrammarKind, text: str, why: str
    ) -> None:
        with pytest.raises(RequestError, match=why) as caught:
            compiler.compile(Grammar(kind, text))
        assert caught.value.field == "grammar"

    @pytest.mark.parametrize("text", ["", "a|b", "(ab)*", "a{200}"])
    def test_short_and_long_ones_are_taken(self, compiler: GrammarCompiler, text: str) -> None:
        constraint = compiler.constraint(Grammar(GrammarKind.REGEX, text))
        assert constraint.fork(()).allowed.bits.any()

    def test_one_grammar_serves_many_sequences(self, compiler: GrammarCompiler) -> None:
        grammar = Grammar(GrammarKind.LARK, 'start: "yes" | "no"')
        first, second = compiler.constraint(grammar), compiler.constraint(grammar)
        first.advance((ord("y"),))
        assert first.forced(9) == (ord("e"), ord("s"))
        assert second.forced(9) == ()

    def test_a_schema_forces_its_names(self, compiler: GrammarCompiler) -> None:
        schema = json.dumps(
            {
                "type": "object",
                "properties": {"name": {"type": "integer"}},
                "required": ["name"],
                "additionalProperties": False,
            }
        )
        constraint = compiler.constraint(Grammar(GrammarKind.JSON_SCHEMA, schema))
        assert bytes(constraint.forced(32)) == b'{"name": '

    def test_an_empty_mask_is_told_as_what_it_is(self) -> None:
        """Whether or not the engine calls it an error."""
        with pytest.raises(RequestError, match="no output follows it"):
            _require_a_beginning(cast("LLMatcher", _NothingFollows()))

    @pytest.mark.parametrize(
        ("kind", "text"),
        [
            (
                GrammarKind.LARK,
                "start: r0\n"
                + "".join(f'r{i}: "x" r{i + 1}\n' for i in range(4000))
                + 'r4000: "a"',
            ),
            (
                GrammarKind.JSON_SCHEMA,
                json.dumps(
                    {
                        "$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(4000)}
                        | {"d4000": {"const": 7}},
                        "$ref": "#/$defs/d0",
                    }
                ),
            ),
        ],
        ids=["rules", "definitions"],
    )
    def test_long_chains_of_rules_end_no_process(self, kind: GrammarKind, text: str) -> None:
        """In a process of its own, since a stack that is too small would end this one."""
        program = f"""
import sys

from paceline.core.request import Grammar, GrammarKind
from paceline.sampling.grammar import GrammarCompiler
from tests.byte_vocabulary import byte_vocabulary

grammar = Grammar(GrammarKind({kind.value!r}), sys.stdin.read())
constraint = GrammarCompiler(byte_vocabulary, [256]).constraint(grammar)
constraint.advance(constraint.forced(5))
constraint.fork(constraint.forced(5))
print("compiled")
"""
        root = Path(__file__).parents[2]
        path = ":".join([str(root), str(root / "backend")])
        ended = subprocess.run(
            [sys.executable, "-c", program],
            input=text,
            env={"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (0, "compiled\n"), ended.stderr


class _NothingFollows:
    """A matcher that allows nothing and finds nothing wrong with that."""

    def deep_copy(self) -> _NothingFollows:
        return self

    def is_stopped(self) -> bool:
        return False

    def is_error(self) -> bool:
        return False

    def compute_bitmask(self) -> bytes:
        return bytes(40)

    def compute_ff_tokens(self) -> list[int]:
        return []
