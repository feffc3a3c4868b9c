"""Grammars as constraints: what a request's output must look like, token by token.

llguidance does the parsing. Beside xgrammar, which `ops/bench/grammar_engines.py` measures too:

* Compiling is what a request waits for, and agents bring new schemas all the time: llguidance took
  a tenth of the time and less, the more so the larger the vocabulary.
* A single mask took xgrammar a third to a sixth of the time, which its longer compiling pays for.
  Both take microseconds, where a step of the target takes milliseconds.
* Both roll back any number of tokens and copy a matcher, which is what a draft needs. llguidance
  gives forced text as tokens, and masks that agree with them.
* llguidance covers JSON schema, regular expressions and Lark grammars with tokens and lazy parts
  in them (a tool call inside free text), and depends on nothing; MIT licence. xgrammar, under the
  Apache licence, brings torch and transformers along.

The law of a constrained request is the target's law over the tokens that the grammar allows at each
position. Where only one byte sequence can follow, llguidance allows its canonical tokens alone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from paceline.core.errors import RequestError
from paceline.core.request import Grammar, GrammarKind
from paceline.sampling.constraints import AllowedTokens, RowEdits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from llguidance._lib import JsonCompileOptions

_MAX_CACHED = 64
# Tokens at the beginning of an output that are tried when a grammar is compiled.
_NUM_PROBED = 3
# llguidance follows rules from one to the next by calling itself, some kilobytes at each; where the
# stack ends, so does the process. This is address space alone until a grammar makes use of it.
_STACK_BYTES = 64 << 20
_NO_OUTPUT = "no output follows it"
_JSON_STYLE: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""One way to write each value. Free white space would let a model write nothing but that, and
would leave fewer tokens forced; this is the style that models have seen most."""


class GrammarCompiler:
    """Compiles grammars for one vocabulary. Thread-safe.

    read_vocabulary: called once, at the first use; the text of a `tokenizer.json`, and how many ids
    have a meaning. eos_token_ids: those that end an output; a grammar allows them where it may end.
    """

    def __init__(
        self, read_vocabulary: Callable[[], tuple[str, int]], eos_token_ids: Iterable[int]
    ) -> None:
        self._read_vocabulary = read_vocabulary
        self._vocabulary_size = 0
        self._eos_token_ids = sorted(eos_token_ids)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()

    def compile(self, grammar: Grammar) -> None:
        """Make sure that a grammar can be used, and keep it for the constraint that follows.

        Takes milliseconds, and seconds for grammars of a hundred thousand characters: not for the
        engine's thread, and whoever takes grammars from strangers bounds their size. Raises
        RequestError with the engine's own words for one that is wrong or asks for too much.
        """
        self._matcher(grammar)

    def constraint(self, grammar: Grammar) -> GrammarConstraint:
        """A constraint at the beginning of an output; as `compile` otherwise."""
        matcher = self._matcher(grammar)
        return GrammarConstraint(matcher, self._vocabulary_size, frozenset(self._eos_token_ids))

    def _matcher(self, grammar: Grammar) -> LLMatcher:
        with self._lock:
            found = self._compiled.get(grammar)
            if found is not None:
                self._compiled.move_to_end(grammar)
                return found.deep_copy()
            if self._tokenizer is None:
                text, self._vocabulary_size = self._read_vocabulary()
                self._tokenizer = LLTokenizer(
                    text, n_vocab=self._vocabulary_size, eos_token=self._eos_token_ids
                )
            tokenizer = self._tokenizer
        matcher = _on_a_large_stack(lambda: _built(tokenizer, grammar))
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > _MAX_CACHED:
                self._compiled.popitem(last=False)
        return matcher.deep_copy()


class GrammarConstraint:
    """A grammar's state after the committed tokens of one sequence. See `RowConstraint`."""

    def __init__(
        self, matcher: LLMatcher, vocabulary_size: int, eos_token_ids: frozenset[int]
    ) -> None:
        self._matcher = matcher
        self._num_words = -(-vocabulary_size // 32)
        self._eos_token_ids = eos_token_ids
        self._has_ended = False
        self._is_broken = False

    def fork(self, drafted: Sequence[int], first: int = 0) -> RowEdits:
        """See `RowConstraint.fork`. A row behind an impossible or a last token has no mask: it
        cannot be reached, and one without any possible token would be an error."""
        if self._has_ended:
            return RowEdits()
        matcher = self._matcher
        num_consumed = 0
        rows: list[int] = []
        bits = np.zeros((len(drafted) + 1 - first, self._num_words), dtype=np.int32)
        for place in range(len(drafted) + 1):
            if place >= first:
                mask = bits[len(rows)]
                if not self._is_broken and not matcher.is_error():
                    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
                if self._is_broken or matcher.is_error():
                    # It gave up on a grammar without measure, and would let the output end here. A
                    # row without any possible token fails the request instead.
                    mask[:] = 0
                rows.append(place - first)
            if place == len(drafted) or not self._consume(drafted[place]):
                break
            num_consumed += 1
        if not rows and drafted[num_consumed] not in self._eos_token_ids:
            rows.append(0)  # tokens that were to be certain are not: this too fails the request
        if num_consumed and not matcher.is_error():
            matcher.rollback(num_consumed)
        count = len(rows)
        return RowEdits(allowed=AllowedTokens(np.array(rows, dtype=np.int64), bits[:count]))

    def advance(self, committed: Sequence[int]) -> None:
        """See `RowConstraint.advance`."""
        for token_id in committed:
            if self._has_ended or token_id in self._eos_token_ids:
                self._has_ended = True
                return
            if not self._consume(token_id):
                # What the mask allowed can be refused only by a matcher that gave up.
                self._is_broken = True
                return

    def forced(self, limit: int) -> tuple[int, ...]:
        """See `RowConstraint.forced`."""
        if self._has_ended or self._is_broken or limit <= 0 or self._matcher.is_stopped():
            return ()
        tokens = self._matcher.compute_ff_tokens()
        return tuple(tokens[:limit])

    def _consume(self, token_id: int) -> bool:
        """Whether the output can go on after this token; if not, nothing was consumed."""
        if token_id in self._eos_token_ids:
            return False
        return self._matcher.try_consume_tokens([token_id]) == 1


def _built(tokenizer: LLTokenizer, grammar: Grammar) -> LLMatcher:
    """Raises RequestError."""
    matcher = LLMatcher(tokenizer, _serialized(grammar), log_level=0)
    _require_a_beginning(matcher)
    return matcher


def _on_a_large_stack(build: Callable[[], LLMatcher]) -> LLMatcher:
    """What `build` returns or raises, from a thread that the process's end does not wait for."""
    built: list[LLMatcher] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            built.append(build())
        except BaseException as error:  # raised anew by whoever waits
            errors.append(error)

    with _stack_size_lock:
        before = threading.stack_size(_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="paceline-grammar", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join()
    if errors:
        raise errors.pop()
    return built.pop()


_stack_size_lock = threading.Lock()


def _require_a_beginning(matcher: LLMatcher) -> None:
    """Raises RequestError for a grammar that is wrong, that no output follows, or whose beginning
    is already too much for the engine: what would come to light at the first tokens only."""
    probe = matcher.deep_copy()
    for _ in range(_NUM_PROBED):
        if probe.is_stopped():
            break
        # Masks find what nothing follows; tokens, forced ones first, what goes round in circles.
        allowed = np.frombuffer(probe.compute_bitmask(), dtype=np.uint8)
        possible = np.flatnonzero(np.unpackbits(allowed, bitorder="little"))
        if not len(possible) and not probe.is_error():
            raise _wrong(_NO_OUTPUT)
        tokens = probe.compute_ff_tokens()[:1] or possible[:1].tolist()
        if probe.is_error() or not probe.try_consume_tokens(tokens):
            break
    if probe.is_error():
        # Behind the reason stands the engine's inner state, which tells a user nothing.
        reason = probe.get_error().partition("<state>")[0].strip()
        if reason == "NoExtensionBias":
            reason = _NO_OUTPUT
        raise _wrong(reason)


def _serialized(grammar: Grammar) -> str:
    """The grammar in the engine's own form. Raises RequestError."""
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                return LLMatcher.grammar_from_json_schema(grammar.text, overrides=_JSON_STYLE)
            except ValueError as error:
                raise _wrong(str(error)) from None
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)


def _wrong(why: str) -> RequestError:
    return RequestError(f"the grammar cannot be used: {why.strip()}", field="grammar")
