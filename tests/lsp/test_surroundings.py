from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline_lsp.surroundings import Surroundings

TEXTS = st.text(alphabet="ab \n", max_size=400)


def test_line_ends_become_one_kind() -> None:
    around = Surroundings.of("a\r\nb\rcd\r\ne", 6)
    assert around == Surroundings("a\nb\nc", "d\ne")
    assert (around.line_before, around.line_after, around.lines_below) == ("c", "d", "e")


@given(text=TEXTS, data=st.data(), size=st.integers(4, 100))
def test_windows_hold_what_is_next_to_the_cursor(text: str, data: st.DataObject, size: int) -> None:
    around = Surroundings.of(text, data.draw(st.integers(0, len(text))))
    prefix, suffix = around.prefix(size), around.suffix(size)
    assert len(prefix) <= size
    assert len(suffix) <= size
    assert around.before.endswith(prefix)
    assert around.after.startswith(suffix)
    if len(around.before) <= size:
        assert prefix == around.before
    else:
        assert len(prefix) >= size // 4  # a step, and a line that was cut


@given(before=TEXTS, typed=st.text(alphabet="ab \n", max_size=30), size=st.integers(40, 200))
def test_typing_seldom_moves_the_windows_start(before: str, typed: str, size: int) -> None:
    starts = set()
    for end in range(len(typed) + 1):
        now = Surroundings(before + typed[:end], "")
        starts.add(len(now.before) - len(now.prefix(size)))
    # A line end that is typed within the step can be where the window then starts.
    assert len(starts) <= 3 + len(typed) // (size // 4)


def test_a_window_starts_with_a_line() -> None:
    before = "".join(f"line {number}\n" for number in range(100))
    assert Surroundings(before, "").prefix(100).startswith("line ")
    assert Surroundings("", before).suffix(100).endswith("\n")
