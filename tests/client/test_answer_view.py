"""Markdown on a terminal while it is being written."""

from __future__ import annotations

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline_client.answer_view import AnswerView, printable, split_finished

ANSWER = """\
# Generators

A *generator* gives values one by one:

```python
def count():
    yield 1

    yield 2
```

- first
- second

Done.
"""


@pytest.mark.parametrize(
    ("markdown", "finished", "rest"),
    [
        ("", "", ""),
        ("one", "", "one"),
        ("one\n\ntwo", "one\n\n", "two"),
        ("one\n\n```\ncode\n\nmore", "one\n\n", "```\ncode\n\nmore"),
        ("- a\n- b\n\n- c", "", "- a\n- b\n\n- c"),
        ("- a\n\npara", "- a\n\n", "para"),
    ],
)
def test_the_last_block_is_never_finished(markdown: str, finished: str, rest: str) -> None:
    assert split_finished(markdown) == (finished, rest)


@settings(deadline=None)
@given(cuts=st.lists(st.integers(0, len(ANSWER)), max_size=30))
def test_however_it_arrives_the_blocks_are_the_same(cuts: list[int]) -> None:
    """What was finished once stays as it is: streaming gives the whole text's own blocks."""
    done, rest = "", ""
    edges = [0, *sorted(cuts), len(ANSWER)]
    for start, end in zip(edges, edges[1:], strict=False):
        finished, rest = split_finished(rest + ANSWER[start:end])
        done += finished
    assert done + rest == ANSWER
    assert (done, rest) == split_finished(ANSWER)


@given(text=st.text())
def test_nothing_can_steer_the_terminal(text: str) -> None:
    shown = printable(f"\x1b[2J{text}\x07\x9b")
    assert all(
        character in "\n\t" or character.isprintable() or ord(character) > 0x9F
        for character in shown
    )
    assert "\x1b" not in shown


def test_everything_is_on_the_screen_once_at_the_end() -> None:
    file = io.StringIO()
    console = Console(file=file, width=60, height=8, force_terminal=False)
    with AnswerView(console) as view:
        for character in ANSWER:
            view.add(character)
    shown = file.getvalue()
    for text in ("Generators", "gives values one by one", "yield 1", "yield 2", "first", "Done."):
        assert shown.count(text) == 1
    assert "```" not in shown
