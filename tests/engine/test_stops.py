"""Stop strings are found wherever text is cut, and nothing from the match on is shown."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.engine.stops import StopScanner


def scan(pieces: list[str], stops: list[str]) -> tuple[str, str | None]:
    scanner = StopScanner(stops)
    shown = ""
    for piece in pieces:
        shown += scanner.push(piece)
        if scanner.match is not None:
            return shown, scanner.match
    return shown + scanner.flush(), None


def test_a_stop_across_token_borders() -> None:
    assert scan(["one tw", "o th", "ree"], ["two three"]) == ("one ", "two three")


def test_a_false_start_is_shown_after_all() -> None:
    scanner = StopScanner(["</end>"])
    assert scanner.push("a </en") == "a "
    assert scanner.push("try>") == "</entry>"


def test_the_earliest_start_wins_and_then_the_longest() -> None:
    assert scan(["xxabcd"], ["cd", "ab", "abc"]) == ("xx", "abc")


def test_without_stops_nothing_is_held_back() -> None:
    assert StopScanner([]).push("text") == "text"


letters = st.text(alphabet="ab", max_size=14)


@given(letters, st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3), st.data())
@settings(max_examples=400, deadline=None)
def test_any_cut_shows_the_same_as_the_whole_text(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=5)))
    bounds = [0, *cuts, len(text)]
    pieces = [text[a:b] for a, b in zip(bounds, bounds[1:], strict=False)]
    shown, match = scan(pieces, stops)
    ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
    if not ends:
        assert (shown, match) == (text, None)
        return
    assert match in stops
    assert text.startswith(shown + match)
    # What was shown holds no whole stop string, however the text was cut.
    assert not any(stop in shown for stop in stops)
