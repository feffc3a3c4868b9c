"""What a request promises about its calls is what its grammar lets through, and no more."""

from __future__ import annotations

import pytest
import torch

from paceline.sampling.edits import apply_edits
from paceline.sampling.grammar import GrammarCompiler
from paceline.server.tool_calls.dialects import DIALECTS, GRANITE, HERMES, LLAMA, MISTRAL, Dialect
from paceline.server.tool_calls.grammars import tools_grammar
from paceline.server.tool_calls.tools import Function, Tools
from tests.byte_vocabulary import byte_vocabulary

END = 256
ADD = Function(
    "add",
    "Adds.",
    {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/Number"}},
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"Number": {"type": "integer"}},
    },
    is_strict=True,
)
WEATHER = Function(
    "weather",
    "",
    {
        "type": "object",
        "properties": {"city": {"$ref": "#/definitions/Number"}},
        "required": ["city"],
        "additionalProperties": False,
        "definitions": {"Number": {"enum": ["Rome", "Bern"]}},
    },
    is_strict=False,
)


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(byte_vocabulary, [END])


def _tools(*, required: bool = False, parallel: bool = True, only: str | None = None) -> Tools:
    names = frozenset({"add", "weather"} if only is None else {only})
    return Tools((ADD, WEATHER), names, required, parallel)


def _lets_through(
    compiler: GrammarCompiler,
    tools: Tools,
    dialect: Dialect,
    text: str,
    otherwise: str | None = None,
) -> bool:
    grammar = tools_grammar(tools, dialect, {}, otherwise)
    assert grammar is not None
    constraint = compiler.constraint(grammar)
    for token in (*text.encode(), END):
        edits = constraint.fork(())
        if len(edits.allowed.rows) == 0:
            return False
        if not torch.isfinite(apply_edits(torch.zeros(1, 257), edits)[0, token]):
            return False
        constraint.advance((token,))
    return True


def _written(dialect: Dialect, *calls: str) -> str:
    if dialect.has_arrays:
        return f"{dialect.begins[0]}[{', '.join(calls)}]"
    if dialect.end is None:
        return "".join(calls)
    return "\n".join(f"{dialect.begins[0]}\n{call}\n{dialect.end}" for call in calls)


def _add(dialect: Dialect, value: str = "3") -> str:
    return f'{{"name": "add", "{dialect.arguments_key}": {{"a": {value}}}}}'


def _weather(dialect: Dialect, city: str = "Rome") -> str:
    return f'{{"name": "weather", "{dialect.arguments_key}": {{"city": "{city}"}}}}'


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
class TestEveryDialect:
    def test_required(self, compiler: GrammarCompiler, dialect: Dialect) -> None:
        tools = _tools(required=True)
        assert _lets_through(compiler, tools, dialect, _written(dialect, _add(dialect)))
        assert _lets_through(compiler, tools, dialect, _written(dialect, _weather(dialect)))
        assert not _lets_through(compiler, tools, dialect, "Sure.")
        assert not _lets_through(compiler, tools, dialect, _written(dialect, _add(dialect, '"x"')))
        wrong_city = _written(dialect, _weather(dialect, "Oslo"))
        assert not _lets_through(compiler, tools, dialect, wrong_city)

    def test_one_function(self, compiler: GrammarCompiler, dialect: Dialect) -> None:
        tools = _tools(required=True, only="add")
        assert _lets_through(compiler, tools, dialect, _written(dialect, _add(dialect)))
        assert not _lets_through(compiler, tools, dialect, _written(dialect, _weather(dialect)))

    def test_several_or_one(self, compiler: GrammarCompiler, dialect: Dialect) -> None:
        if dialect is LLAMA:
            return  # writes one call an answer
        both = _written(dialect, _add(dialect), _weather(dialect))
        assert _lets_through(compiler, _tools(required=True), dialect, both)
        assert not _lets_through(compiler, _tools(required=True, parallel=False), dialect, both)
        assert _lets_through(compiler, _tools(), dialect, both)
        assert not _lets_through(compiler, _tools(parallel=False), dialect, both)

    def test_free_text_and_strict_arguments(
        self, compiler: GrammarCompiler, dialect: Dialect
    ) -> None:
        assert _lets_through(compiler, _tools(), dialect, "Just an answer, 1 < 2.")
        assert _lets_through(compiler, _tools(), dialect, _written(dialect, _add(dialect)))
        wrong = _written(dialect, _add(dialect, "true"))
        assert not _lets_through(compiler, _tools(), dialect, wrong)

    def test_an_answer_in_a_format_of_its_own(
        self, compiler: GrammarCompiler, dialect: Dialect
    ) -> None:
        schema = '{"type": "array", "items": {"type": "integer"}}'
        assert _lets_through(compiler, _tools(), dialect, "[1, 2]", schema)
        assert _lets_through(compiler, _tools(), dialect, _written(dialect, _add(dialect)), schema)
        assert not _lets_through(compiler, _tools(), dialect, "text", schema)


@pytest.mark.parametrize("dialect", [HERMES, MISTRAL, GRANITE], ids=lambda each: each.name)
def test_text_before_a_call(compiler: GrammarCompiler, dialect: Dialect) -> None:
    text = "Let me see. " + _written(dialect, _add(dialect))
    assert _lets_through(compiler, _tools(), dialect, text)


def test_nothing_to_keep_needs_no_grammar() -> None:
    tools = Tools((WEATHER,), frozenset({"weather"}), is_required=False, is_parallel=True)
    assert tools_grammar(tools, HERMES, {}) is None


def test_markers_that_are_tokens_are_named_by_their_ids() -> None:
    grammar = tools_grammar(_tools(required=True), HERMES, {"<tool_call>": 7})
    assert grammar is not None
    assert "<[7]>" in grammar.text
