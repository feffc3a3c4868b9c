"""Full committed blocks are found again by their whole prefix, and by nothing else."""

from __future__ import annotations

from paceline.cache.prefix import PrefixCache


def registered(cache: PrefixCache, tokens: list[int], salt: str = "") -> list[int]:
    """Blocks of all full blocks of `tokens`, registered and released."""
    keys = cache.keys(tokens, salt)
    blocks = cache.allocate(len(keys))
    assert blocks is not None
    for block_id, key in zip(blocks, keys, strict=True):
        cache.register(block_id, key)
    cache.pool.release(reversed(blocks))
    return blocks


def test_the_longest_registered_prefix_is_found() -> None:
    cache = PrefixCache(8, 2)
    blocks = registered(cache, [1, 2, 3, 4, 5, 6])
    tokens = [1, 2, 3, 4, 9, 9, 9]
    assert cache.match(cache.keys(tokens, ""), len(tokens)) == blocks[:2]


def test_the_last_token_is_always_computed() -> None:
    cache = PrefixCache(8, 2)
    blocks = registered(cache, [1, 2, 3, 4])
    assert cache.match(cache.keys([1, 2, 3, 4], ""), 4) == blocks[:1]
    assert cache.match(cache.keys([1, 2, 3, 4, 5], ""), 5) == blocks


def test_equal_blocks_behind_other_prefixes_are_not_the_same() -> None:
    cache = PrefixCache(8, 2)
    registered(cache, [1, 2, 3, 4])
    assert cache.match(cache.keys([7, 7, 3, 4, 5], ""), 5) == []


def test_another_salt_shares_nothing() -> None:
    cache = PrefixCache(8, 2)
    registered(cache, [1, 2, 3, 4], salt="tenant a")
    assert cache.match(cache.keys([1, 2, 3, 4, 5], "tenant b"), 5) == []


def test_an_evicted_block_is_forgotten_and_the_tail_goes_first() -> None:
    cache = PrefixCache(3, 2)
    blocks = registered(cache, [1, 2, 3, 4, 5, 6])
    assert cache.allocate(1) == [blocks[2]]
    tokens = [1, 2, 3, 4, 5, 6, 7]
    assert cache.match(cache.keys(tokens, ""), 7) == blocks[:2]


def test_the_same_contents_twice_keep_the_first_block() -> None:
    cache = PrefixCache(8, 2)
    first = registered(cache, [1, 2])
    second = cache.allocate(1)
    assert second is not None
    cache.register(second[0], cache.keys([1, 2], "")[0])
    assert cache.match(cache.keys([1, 2, 3], ""), 3) == first
    cache.pool.release(second)
    assert not cache.pool.is_cached(second[0])


def test_draft_rows_are_a_leading_run_and_reset_with_the_block() -> None:
    cache = PrefixCache(4, 4)
    blocks = cache.allocate(3)
    assert blocks is not None
    assert cache.num_leading_draft_rows(blocks) == 0
    cache.record_draft_rows(blocks, 0, 6)
    assert cache.num_leading_draft_rows(blocks) == 6
    cache.record_draft_rows(blocks, 8, 12)
    assert cache.num_leading_draft_rows(blocks) == 6
    cache.record_draft_rows(blocks, 6, 8)
    assert cache.num_leading_draft_rows(blocks) == 12
    cache.pool.release(reversed(blocks))
    again = cache.allocate(4)
    assert again is not None
    assert cache.num_leading_draft_rows(again) == 0


def test_switched_off_it_finds_and_keeps_nothing() -> None:
    cache = PrefixCache(4, 2, enabled=False)
    registered(cache, [1, 2, 3, 4])
    assert cache.pool.num_cached == 0
    assert cache.match(cache.keys([1, 2, 3], ""), 3) == []
