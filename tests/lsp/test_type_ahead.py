from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline_lsp.surroundings import Surroundings
from paceline_lsp.type_ahead import TypeAhead

TEXT = st.text(alphabet="ab\n😀", max_size=12)


@given(before=TEXT, after=TEXT, text=TEXT.filter(bool), data=st.data())
def test_typing_what_was_predicted_leaves_the_rest(
    before: str, after: str, text: str, data: st.DataObject
) -> None:
    ahead = TypeAhead()
    ahead.store("a", Surroundings(before, after), text)
    typed = data.draw(st.integers(0, len(text) - 1))
    now = Surroundings(before + text[:typed], after)
    assert ahead.rest("a", now) == text[typed:]
    assert ahead.rest("b", now) is None


def test_all_of_it_typed_leaves_nothing() -> None:
    ahead = TypeAhead()
    ahead.store("a", Surroundings("x", ""), "yz")
    assert ahead.rest("a", Surroundings("xyz", "")) is None


def test_anything_else_needs_a_request() -> None:
    ahead = TypeAhead()
    ahead.store("a", Surroundings("x", "end"), "yz")
    assert ahead.rest("a", Surroundings("xq", "end")) is None
    assert ahead.rest("a", Surroundings("xy", "END")) is None
    assert ahead.rest("a", Surroundings("", "end")) is None


def test_going_back_finds_an_earlier_prediction() -> None:
    ahead = TypeAhead()
    ahead.store("a", Surroundings("x", ""), "yz")
    ahead.store("a", Surroundings("xq", ""), "rs")
    assert ahead.rest("a", Surroundings("xq", "")) == "rs"
    assert ahead.rest("a", Surroundings("x", "")) == "yz"
    ahead.forget("a")
    assert ahead.rest("a", Surroundings("x", "")) is None


def test_only_so_many_documents_are_kept() -> None:
    ahead = TypeAhead()
    for number in range(40):
        ahead.store(str(number), Surroundings("x", ""), "y")
    assert ahead.rest("0", Surroundings("x", "")) is None
    assert ahead.rest("39", Surroundings("x", "")) == "y"
