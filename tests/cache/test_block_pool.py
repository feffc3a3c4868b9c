"""Where blocks are: free, cached or referenced, and never in two places."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.cache.block_pool import BlockPool


def test_free_blocks_go_before_cached_ones_and_the_oldest_cached_one_first() -> None:
    forgotten: list[int] = []
    pool = BlockPool(3, forget=forgotten.append)
    blocks = pool.allocate(3)
    assert blocks is not None
    assert pool.allocate(1) is None
    for block_id in blocks[:2]:
        pool.mark_shareable(block_id)
    pool.release([blocks[1]])
    pool.release([blocks[0]])
    pool.release([blocks[2]])
    assert (pool.num_free, pool.num_cached) == (1, 2)
    assert pool.allocate(1) == [blocks[2]]
    assert forgotten == []
    assert pool.allocate(1) == [blocks[1]]
    assert forgotten == [blocks[1]]


def test_a_shared_block_stays_until_its_last_holder_lets_go() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.share(blocks[0])
    pool.release(blocks)
    assert pool.num_available == 0
    pool.release(blocks)
    assert pool.num_free == 1


def test_releasing_too_often_is_an_error() -> None:
    pool = BlockPool(1)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(ValueError, match="more often"):
        pool.release(blocks)


def test_check_finds_a_table_that_the_books_do_not_know() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    assert blocks is not None
    pool.check([blocks])
    with pytest.raises(AssertionError, match="1 references, in 2 tables"):
        pool.check([blocks, blocks])
    with pytest.raises(AssertionError):
        pool.check([])


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9)), max_size=60))
@settings(max_examples=200, deadline=None)
def test_books_agree_after_any_calls(calls: list[tuple[int, int]]) -> None:
    pool = BlockPool(6)
    tables: list[list[int]] = []
    for action, number in calls:
        if action == 0:
            blocks = pool.allocate(number % 4)
            if blocks is not None:
                tables.append(blocks)
        elif action == 1 and tables:
            pool.release(reversed(tables.pop(number % len(tables))))
        elif action == 2 and tables and tables[number % len(tables)]:
            block_id = tables[number % len(tables)][0]
            pool.share(block_id)
            tables.append([block_id])
        elif action == 3 and tables and tables[number % len(tables)]:
            pool.mark_shareable(tables[number % len(tables)][-1])
        elif action == 4:
            pool.withdraw(number % 6)
        pool.check(tables)
        assert pool.num_referenced == len({block for table in tables for block in table})
