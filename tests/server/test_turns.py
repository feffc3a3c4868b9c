"""The store of turns: bounded in tokens, least recently used first out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.server.turns import Turn, TurnStore


def _turn(num_tokens: int) -> Turn:
    return Turn((), None, num_tokens)


def test_what_is_used_stays() -> None:
    store = TurnStore(100)
    store.put("a", _turn(40))
    store.put("b", _turn(40))
    assert store.get("a") is not None
    store.put("c", _turn(40))
    assert [each in store for each in "abc"] == [True, False, True]
    assert store.get("b") is None


def test_the_newest_stays_even_alone_over_the_bound() -> None:
    store = TurnStore(0)
    store.put("a", _turn(40))
    assert "a" in store
    store.put("b", _turn(50))
    assert ("a" in store, "b" in store) == (False, True)


@given(
    st.integers(0, 300),
    st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(1, 100)), max_size=60),
)
def test_the_count_is_that_of_what_is_kept(
    bound: int, actions: list[tuple[bool, int, int]]
) -> None:
    store = TurnStore(bound)
    kept: dict[str, int] = {}
    for number, (is_put, which, num_tokens) in enumerate(actions):
        if is_put:
            store.put(f"{number}", _turn(num_tokens))
            kept[f"{number}"] = num_tokens
        else:
            store.get(f"{which}")
        kept = {name: count for name, count in kept.items() if name in store}
        assert store.num_tokens == sum(kept.values())
        assert len(store) == len(kept)
        assert store.num_tokens <= bound or len(store) == 1
