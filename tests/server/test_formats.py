"""Choices become a grammar of exactly these texts, and sizes have bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from paceline.sampling.grammar import GrammarCompiler
from paceline.server.formats import (
    MAX_CHOICES,
    MAX_LARK_CHARACTERS,
    MAX_REGEX_CHARACTERS,
    MAX_SCHEMA_CHARACTERS,
    MAX_SCHEMA_OBJECTS,
    format_of,
)
from paceline_protocol.errors import ProtocolError
from paceline_protocol.requests import GrammarOptions, PacelineOptions, ResponseCreate
from tests.byte_vocabulary import byte_vocabulary

if TYPE_CHECKING:
    from paceline.core.request import Grammar

END = 256


def _grammar(**options: Any) -> Grammar:
    message = ResponseCreate(input="x", paceline=PacelineOptions(grammar=GrammarOptions(**options)))
    form = format_of(message)
    assert form is not None
    return form.grammar


def _allowed(compiler: GrammarCompiler, grammar: Grammar, prefix: bytes) -> set[int]:
    constraint = compiler.constraint(grammar)
    constraint.advance(tuple(prefix))
    bits = constraint.fork(()).allowed.bits
    return set(np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")).tolist())


def test_choices_allow_exactly_their_texts() -> None:
    """Byte for byte, at every place; the end wherever a text ends."""
    texts = [
        "yes",
        "yes!",
        "y",
        "no",
        'a "quoted" \\ / word',
        "zwei\nZeilen",
        "für",
        "🙂",
        "🙃",
        "no",
    ]
    words = {text.encode() for text in texts}
    compiler = GrammarCompiler(byte_vocabulary, [END])
    grammar = _grammar(choice=texts)
    for prefix in {word[:length] for word in words for length in range(len(word) + 1)}:
        follows = {
            word[len(prefix)] for word in words if word.startswith(prefix) and word != prefix
        }
        follows |= {END} if prefix in words else set()
        assert _allowed(compiler, grammar, prefix) == follows, prefix


def test_as_many_choices_as_there_may_be_compile() -> None:
    grammar = _grammar(choice=[f"choice {number}" for number in range(MAX_CHOICES - 1)] + ["x"])
    compiler = GrammarCompiler(byte_vocabulary, [END])
    assert _allowed(compiler, grammar, b"") == {ord("c"), ord("x")}
    assert _allowed(compiler, grammar, b"choice 12") == {END, *b"0123456789"}


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({"choice": ["x"] * (MAX_CHOICES + 1)}, MAX_CHOICES),
        ({"choice": ["x" * (MAX_SCHEMA_CHARACTERS + 1)]}, MAX_SCHEMA_CHARACTERS),
        ({"regex": "x" * (MAX_REGEX_CHARACTERS + 1)}, MAX_REGEX_CHARACTERS),
        ({"lark": "x" * (MAX_LARK_CHARACTERS + 1)}, MAX_LARK_CHARACTERS),
        ({"json_schema": {"const": "x" * MAX_SCHEMA_CHARACTERS}}, MAX_SCHEMA_CHARACTERS),
        ({"json_schema": {"prefixItems": [{}] * MAX_SCHEMA_OBJECTS}}, MAX_SCHEMA_OBJECTS),
        ({"json_schema": {"items": {"pattern": "x" * 16_385}}}, MAX_REGEX_CHARACTERS),
        (
            {"json_schema": {"anyOf": [{"patternProperties": {"x" * 8_193: {}}}] * 2}},
            MAX_REGEX_CHARACTERS,
        ),
    ],
)
def test_what_is_too_large_is_refused_with_its_limit(options: dict[str, Any], most: int) -> None:
    with pytest.raises(ProtocolError, match=f"it must have at most {most}") as caught:
        _grammar(**options)
    assert caught.value.param == f"paceline.grammar.{next(iter(options))}"


def test_up_to_the_limits_it_is_taken() -> None:
    assert _grammar(regex="x" * MAX_REGEX_CHARACTERS)
    assert _grammar(lark="x" * MAX_LARK_CHARACTERS)
    assert _grammar(json_schema={"pattern": "x" * MAX_REGEX_CHARACTERS})
    assert _grammar(json_schema={"prefixItems": [{}] * (MAX_SCHEMA_OBJECTS - 1)})
