"""Positions and edits, against a plain reading of the protocol."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_lsp.documents import (
    Document,
    Documents,
    PositionEncoding,
    Span,
    num_units,
    offset_at,
)

ENCODINGS: tuple[PositionEncoding, ...] = ("utf-8", "utf-16", "utf-32")
CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
# Line ends, what Python's splitlines takes for some, and characters of every width.
TEXTS = st.text(alphabet="ab\n\r\x0c\x85\u2028é語😀👩‍🚀", max_size=40)


def _position(text: str, offset: int, encoding: PositionEncoding) -> tuple[int, int]:
    """Line and character of an index, by encoding what stands before it."""
    lines = re.split("\r\n|\n|\r", text[:offset])
    codec, width = CODECS[encoding]
    return len(lines) - 1, len(lines[-1].encode(codec)) // width


@given(text=TEXTS, data=st.data(), encoding=st.sampled_from(ENCODINGS))
def test_a_position_leads_back_to_its_index(
    text: str, data: st.DataObject, encoding: PositionEncoding
) -> None:
    offset = data.draw(st.integers(0, len(text)))
    if text[max(0, offset - 1) : offset + 1] == "\r\n":
        return  # between the two is no position
    line, character = _position(text, offset, encoding)
    assert offset_at(text, line, character, encoding) == offset


@pytest.mark.parametrize(
    ("line", "character", "offset"),
    [
        (0, 0, 0),
        (0, 1, 1),
        (0, 2, 1),  # within the emoji
        (0, 3, 2),
        (0, 99, 3),  # beyond the line's end
        (1, 0, 5),
        (1, 99, 7),
        (9, 9, 7),  # beyond the last line
    ],
)
def test_positions_in_utf_16(line: int, character: int, offset: int) -> None:
    assert offset_at("a😀b\r\ncd", line, character, "utf-16") == offset


@given(text=TEXTS, encoding=st.sampled_from(ENCODINGS))
def test_units_are_those_of_the_encoding(text: str, encoding: PositionEncoding) -> None:
    codec, width = CODECS[encoding]
    assert num_units(text, encoding) == len(text.encode(codec)) // width


@given(text=TEXTS, new=TEXTS, data=st.data(), encoding=st.sampled_from(ENCODINGS))
def test_an_edit_replaces_its_range_and_nothing_else(
    text: str, new: str, data: st.DataObject, encoding: PositionEncoding
) -> None:
    places = [at for at in range(len(text) + 1) if text[max(0, at - 1) : at + 1] != "\r\n"]
    start = data.draw(st.sampled_from(places))
    end = data.draw(st.sampled_from([at for at in places if at >= start]))
    documents = Documents(encoding)
    documents.open(Document("file:///a", "python", 1, text))
    span = Span(_position(text, start, encoding), _position(text, end, encoding))
    documents.change("file:///a", 2, [(span, new)])
    document = documents.get("file:///a")
    assert document is not None
    assert document.text == text[:start] + new + text[end:]
    assert document.version == 2


def test_edits_of_one_change_build_on_each_other() -> None:
    documents = Documents()
    documents.open(Document("a", "text", 1, "one\ntwo\n"))
    insert = Span((1, 0), (1, 0))
    documents.change("a", 2, [(insert, "x"), (insert, "y"), (Span((0, 0), (1, 0)), "")])
    assert documents.get("a") == Document("a", "text", 2, "yxtwo\n")
    documents.change("a", 3, [(None, "all new")])
    assert documents.get("a") == Document("a", "text", 3, "all new")


def test_a_form_feed_is_no_line_end() -> None:
    """Python's own source has them between sections."""
    documents = Documents()
    documents.open(Document("a", "python", 1, "x = 1\n\x0c\ny = 2\n"))
    documents.change("a", 2, [(Span((2, 4), (2, 5)), "3")])
    document = documents.get("a")
    assert document is not None
    assert document.text == "x = 1\n\x0c\ny = 3\n"


def test_what_is_not_open_is_not_changed() -> None:
    documents = Documents()
    documents.change("a", 2, [(None, "x")])
    assert documents.get("a") is None
    documents.open(Document("a", "text", 1, "x"))
    documents.close("a")
    documents.close("a")
    assert documents.get("a") is None
