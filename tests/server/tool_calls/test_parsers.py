"""Parsers get text cut anywhere and lose nothing of it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.server.tool_calls.calls import CallParser
from paceline.server.tool_calls.dialects import (
    DIALECTS,
    GENERIC,
    GRANITE,
    HERMES,
    LLAMA,
    MISTRAL,
    dialect_of,
)
from paceline.server.tool_calls.pieces import (
    ArgumentsPiece,
    CallBegun,
    CallEnded,
    PlainText,
    ReasoningPiece,
    TextPiece,
)
from paceline.server.tool_calls.reasoning import ReasoningParser

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.server.tool_calls.dialects import Dialect
    from paceline.server.tool_calls.pieces import OutputParser, Piece

NAMES = ("add", "weather")


def _shape(pieces: Iterable[Piece]) -> list[Any]:
    """Pieces with adjacent texts joined: text as a string, a call as [name, arguments, ended]."""
    shape: list[Any] = []
    for piece in pieces:
        match piece:
            case TextPiece(text):
                if shape and isinstance(shape[-1], str):
                    shape[-1] += text
                else:
                    shape.append(text)
            case ReasoningPiece(text):
                if shape and isinstance(shape[-1], tuple):
                    shape[-1] = (shape[-1][0] + text,)
                else:
                    shape.append((text,))
            case CallBegun(name):
                shape.append([name, "", False])
            case ArgumentsPiece(text):
                shape[-1][1] += text
            case CallEnded():
                shape[-1][2] = True
    return shape


def _parse(parser: OutputParser, parts: Iterable[str]) -> list[Any]:
    pieces: list[Piece] = []
    for part in parts:
        pieces += parser.push(part)
    return _shape(pieces + parser.finish())


def _calls(dialect: Dialect, *parts: str) -> list[Any]:
    return _parse(CallParser(dialect, NAMES), parts)


CASES: list[tuple[str, Dialect, str, list[Any]]] = [
    (
        "one",
        HERMES,
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [2, "}"]}}\n</tool_call>',
        [["add", '{"a": 1, "b": [2, "}"]}', True]],
    ),
    (
        "text around two",
        HERMES,
        'I will.\n<tool_call>\n{"name":"add","arguments":{}}\n</tool_call>\n<tool_call>\n'
        '{"arguments": {"c": "\\"x\\""}, "name": "weather"}\n</tool_call>\nDone <b>.',
        [
            "I will.\n",
            ["add", "{}", True],
            ["weather", '{"c": "\\"x\\""}', True],
            "\nDone <b>.",
        ],
    ),
    (
        "arguments as a string",
        HERMES,
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>',
        [["add", '{"a": 1}', True]],
    ),
    ("no arguments", HERMES, '<tool_call>{"name": "add"}</tool_call>', [["add", "{}", True]]),
    (
        "nested function",
        HERMES,
        '<tool_call>{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}'
        "</tool_call>",
        [["add", '{"a": 1}', True]],
    ),
    ("not JSON", HERMES, "<tool_call>add(1, 2)</tool_call>", ["<tool_call>add(1, 2)</tool_call>"]),
    ("no name", HERMES, '<tool_call>{"a": 1}</tool_call>', ['<tool_call>{"a": 1}</tool_call>']),
    ("only an end", HERMES, "a </tool_call> b", ["a </tool_call> b"]),
    ("a marker's beginning", HERMES, "if a <tool", ["if a <tool"]),
    (
        "cut in the arguments",
        HERMES,
        '<tool_call>{"name":"add","arguments":{"a"',
        [["add", '{"a"', False]],
    ),
    ("cut before the name", HERMES, '<tool_call>{"na', ['<tool_call>{"na']),
    ("cut in the end", HERMES, '<tool_call>{"name":"add"}</tool', [["add", "{}", True]]),
    (
        "llama",
        LLAMA,
        '{"name": "add", "parameters": {"a": 1}}',
        [["add", '{"a": 1}', True]],
    ),
    (
        "llama with its tag, two",
        LLAMA,
        '<|python_tag|>{"name": "add", "parameters": {}}; {"name": "weather", "parameters": {}}',
        [["add", "{}", True], ["weather", "{}", True]],
    ),
    ("llama answers in JSON", LLAMA, '{"answer": {"name": "x"}}', ['{"answer": {"name": "x"}}']),
    ("llama names another", LLAMA, '{"name": "Rome", "size": 3}', ['{"name": "Rome", "size": 3}']),
    ("llama talks", LLAMA, " Hello {you}", [" Hello {you}"]),
    (
        "mistral",
        MISTRAL,
        '[TOOL_CALLS][{"name": "add", "arguments": {"a": [1]}}, {"name": "weather", '
        '"arguments": {}}]',
        [["add", '{"a": [1]}', True], ["weather", "{}", True]],
    ),
    (
        "mistral, newer",
        MISTRAL,
        'Now[TOOL_CALLS]add[ARGS]{"a": "{"}[TOOL_CALLS]weather{"c": 2}',
        ["Now", ["add", '{"a": "{"}', True], ["weather", '{"c": 2}', True]],
    ),
    (
        "granite",
        GRANITE,
        '<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]',
        [["add", '{"a": 1}', True]],
    ),
    (
        "granite, older",
        GRANITE,
        '<tool_call>[{"name":"add","arguments":{}}]',
        [["add", "{}", True]],
    ),
    ("generic", GENERIC, '\n{"name": "add", "arguments": {"a": 1}}', [["add", '{"a": 1}', True]]),
    (
        "generic with tags",
        GENERIC,
        'Yes: <tool_call>{"name": "add", "parameters": {"a": 1}}</tool_call>',
        ["Yes: ", ["add", '{"a": 1}', True]],
    ),
]
IDS = [case[0] for case in CASES]


@pytest.mark.parametrize(("dialect", "text", "wanted"), [case[1:] for case in CASES], ids=IDS)
def test_what_families_write(dialect: Dialect, text: str, wanted: list[Any]) -> None:
    assert _calls(dialect, text) == wanted
    assert _calls(dialect, *text) == wanted  # character by character


def _cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in zip(edges, edges[1:], strict=False)]


@settings(max_examples=200, deadline=None)
@given(case=st.sampled_from(CASES), places=st.lists(st.integers(0, 10**6), max_size=12))
def test_any_split_of_a_stream_gives_the_same(
    case: tuple[str, Dialect, str, list[Any]], places: list[int]
) -> None:
    _, dialect, text, wanted = case
    assert _calls(dialect, *_cut(text, places)) == wanted


_WORDS = st.lists(
    st.sampled_from(
        [
            "hello ",
            "\n",
            "{",
            "}",
            "[",
            "]",
            '"name"',
            ": ",
            '"add"',
            ",",
            "<tool_call>",
            "<tool",
            "</tool_call>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "<|tool_call|>",
            "add",
            ";",
            '"arguments"',
            "1",
            "é",
            "\\",
            '{"name": "add", "arguments": {"a": 1}}',
        ]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(
    dialect=st.sampled_from(sorted(DIALECTS)),
    text=_WORDS,
    places=st.lists(st.integers(0, 10**6), max_size=8),
)
def test_any_text_at_all(dialect: str, text: str, places: list[int]) -> None:
    """However wild, every split says the same, and text without a call comes out as it went in."""
    whole = _calls(DIALECTS[dialect], text)
    assert _calls(DIALECTS[dialect], *_cut(text, places)) == whole
    if all(isinstance(each, str) for each in whole):
        assert "".join(whole) == text


@settings(max_examples=200, deadline=None)
@given(
    dialect=st.sampled_from([HERMES, LLAMA, GENERIC, GRANITE]),
    arguments=st.dictionaries(
        st.text(max_size=5),
        st.recursive(
            st.text(max_size=5) | st.integers() | st.none(),
            lambda inner: st.lists(inner, max_size=3),
        ),
        max_size=4,
    ),
    places=st.lists(st.integers(0, 10**6), max_size=8),
)
def test_arguments_come_out_character_by_character(
    dialect: Dialect, arguments: dict[str, Any], places: list[int]
) -> None:
    written = json.dumps(arguments, ensure_ascii=False)
    call = f'{{"name": "add", "{dialect.arguments_key}": {written}}}'
    text = f"{dialect.begins[0]}{call}{dialect.end or ''}"
    assert _calls(dialect, *_cut(text, places)) == [["add", written, True]]


@pytest.mark.parametrize(
    ("text", "is_open", "wanted"),
    [
        ("<think>\nHm.\n</think>\n\nYes.", False, [("Hm.",), "Yes."]),
        ("Hm.\nSo.\n</think>\nYes.", True, [("Hm.\nSo.",), "Yes."]),
        ("Yes.", False, ["Yes."]),
        ("<thin air", False, ["<thin air"]),
        ("<think>\n\n</think>\n\nYes.", False, ["Yes."]),
        ("<think>Hm", False, [("Hm",)]),
        (
            '<think>Add.</think>\n<tool_call>{"name":"add","arguments":{}}</tool_call>',
            False,
            [("Add.",), ["add", "{}", True]],
        ),
    ],
)
def test_thoughts(text: str, is_open: bool, wanted: list[Any]) -> None:
    def parser() -> ReasoningParser:
        return ReasoningParser(CallParser(HERMES, NAMES), is_open=is_open)

    assert _parse(parser(), [text]) == wanted
    assert _parse(parser(), list(text)) == wanted


def test_plain_text() -> None:
    assert _parse(PlainText(), ["a", "", "b"]) == ["ab"]


@pytest.mark.parametrize(
    ("template", "dialect"),
    [
        (None, GENERIC),
        ("{{ messages }}", GENERIC),
        ("{% if tools %}<tool_call>{% endif %}", HERMES),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
        ("<|tool_call|>", GRANITE),
        ("Environment: ipython <|python_tag|>", LLAMA),
    ],
)
def test_the_template_says_which(template: str | None, dialect: Dialect) -> None:
    assert dialect_of(template) is dialect
