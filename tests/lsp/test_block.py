"""Where completions end."""

from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_lsp.block import block_end, is_single_line, shape, without_repeated
from paceline_lsp.surroundings import Surroundings

LINES = st.lists(
    st.sampled_from(
        [
            "",
            "  ",
            "x = 1",
            "    y = 2",
            "        z",
            "}",
            "    }",
            "else:",
            "    else {",
            ")",
            "if a:",
        ]
    ),
    max_size=12,
).map("\n".join)
BEFORE = st.sampled_from(["", "def f():", "    ", "    x", "    if a:", "foo("])


def _shape(before: str, text: str, after: str = "", max_lines: int = 20) -> str:
    around = Surroundings(before, after)
    return shape(text, around, single_line=is_single_line(around), max_lines=max_lines)


def test_a_function_ends_before_the_next() -> None:
    text = "\n    x = 1\n\n    return x\n\n\ndef g():\n    pass\n"
    assert _shape("def f():", text) == "\n    x = 1\n\n    return x"


def test_a_body_that_is_begun_ends_with_its_function() -> None:
    assert _shape("def f():\n    ", "x = 1\n    return x\n\ndef g():") == "x = 1\n    return x"


def test_a_body_may_have_several_statements() -> None:
    text = "if n < 2:\n        return n\n    return f(n - 1)\n\n\nprint(f(9))\n"
    assert _shape("def f(n):\n    ", text) == "if n < 2:\n        return n\n    return f(n - 1)"
    text = "def f():\n    return 1\n\n\ndef g():\n    return 2\n"
    assert _shape("import os\n\n", text) == "def f():\n    return 1"


def test_a_closing_bracket_belongs_to_its_block() -> None:
    text = " {\n    a();\n}\n\nvoid g() {\n}\n"
    assert _shape("void f()", text) == " {\n    a();\n}"


def test_else_belongs_to_if() -> None:
    text = "\n        b()\n    else:\n        c()\n    d()\n"
    assert _shape("def f():\n    if a:", text) == "\n        b()\n    else:\n        c()"
    text = " {\n    b();\n} else {\n    c();\n}\nd();\n"
    assert _shape("if (a)", text) == " {\n    b();\n} else {\n    c();\n}"


def test_statements_of_one_level_stay_together() -> None:
    text = "import sys\nimport re\n\nfrom a import b\n"
    assert _shape("import os\n", text) == "import sys\nimport re"


def test_no_more_than_the_lines_allowed() -> None:
    assert _shape("", "a\nb\nc\nd\n", max_lines=2) == "a\nb"


def test_tabs_count_as_indentation() -> None:
    assert _shape("func f() {\n\tif a {", "\n\t\tb()\n\t}\n\tc()\n}\n") == "\n\t\tb()\n\t}"


def test_only_the_line_when_something_follows_in_it() -> None:
    assert _shape("foo(", "a, b\nmore", ")") == "a, b"


@given(text=LINES, before=BEFORE, max_lines=st.integers(1, 12), data=st.data())
def test_an_end_once_found_stays(
    text: str, before: str, max_lines: int, data: st.DataObject
) -> None:
    """A stream may be stopped at the first end: what would have come changes nothing."""
    shown = text[: data.draw(st.integers(0, len(text)))]
    end = block_end(shown, before, max_lines=max_lines)
    if end is not None:
        assert 0 <= end <= len(shown)
        assert block_end(text, before, max_lines=max_lines) == end


@given(text=LINES, before=BEFORE, after=st.sampled_from(["", ")", "\n    y = 2\n", "\n}"]))
def test_what_is_offered_is_a_beginning_of_what_was_written(
    text: str, before: str, after: str
) -> None:
    offered = _shape(before, text, after)
    assert text.startswith(offered)
    assert offered == offered.rstrip()
    assert offered == "" or offered.strip()


# What the document has already


@pytest.mark.parametrize(
    ("before", "text", "after", "offered"),
    [
        ("print(", "x)", ")", "x"),
        ("print(", "x))", "))\n", "x"),
        ("call(", "a, b);", ");\n", "a, b"),
        ("f(g(", "1", "))", "1"),
        ('name = "', 'Ada"', '"', "Ada"),
        ("x = foo(", ")", ")", ""),
        ("    ", "return x", "\n    return x\n", ""),
        ("    x = 1", "\n    return x", "\n    return x\n", ""),
        ("def f():", "\n    a = 1\n    return a", "\n    return a\n", "\n    a = 1"),
        ("if (a) {", "\n    b();\n}", "\n}\n", "\n    b();"),
        ("    if (a) {", "\n        b();\n    }", "\n}\n", "\n        b();\n    }"),
        ("a = [", "\n    1,\n]", "\n\n]\n", "\n    1,"),
    ],
)
def test_what_stands_behind_is_not_offered_again(
    before: str, text: str, after: str, offered: str
) -> None:
    assert without_repeated(text, Surroundings(before, after)).rstrip() == offered


@given(text=LINES, after=LINES, before=BEFORE)
def test_without_repeated_only_takes_from_the_end(text: str, after: str, before: str) -> None:
    kept = without_repeated(text, Surroundings(before, after))
    assert text.startswith(kept)


def test_a_closing_bracket_in_the_middle_stays() -> None:
    text = dedent(
        """\

            if a:
                b(
                )
            c()"""
    )
    assert without_repeated(text, Surroundings("def f():", "\n    )\n")) == text
