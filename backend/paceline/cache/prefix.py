"""Reuse of committed K/V: full blocks found again by everything that came before them.

A block's key is a chained digest of its own tokens, its parent's key and the salt, so equal keys
mean equal prefixes. Only full blocks of committed tokens are registered: call `register` after
rollback, never before.

Each block also records how many of its leading rows are valid for the draft model, whose cursor
may lag behind the target's. The target's rows of a registered block never change; the draft's rows
are a function of its tokens, so whoever computes the missing ones may fill them in.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import TYPE_CHECKING

from paceline.cache.block_pool import BlockPool

if TYPE_CHECKING:
    from collections.abc import Sequence

Digest = bytes


class PrefixCache:
    """The block pool with memory of what its blocks hold."""

    def __init__(self, num_blocks: int, block_size: int, *, enabled: bool = True) -> None:
        self.block_size = block_size
        self.enabled = enabled
        self.pool = BlockPool(num_blocks, forget=self._forget)
        self._block_of: dict[Digest, int] = {}
        self._key_of: dict[int, Digest] = {}
        self._num_draft_rows = [0] * num_blocks
        self.num_queried_tokens = 0
        self.num_hit_tokens = 0

    def keys(
        self, token_ids: Sequence[int], salt: str, known: Sequence[Digest] = ()
    ) -> list[Digest]:
        """Keys of all full blocks of `token_ids`; `known` are those already computed for it."""
        keys = list(known)
        parent = keys[-1] if keys else hashlib.blake2b(salt.encode(), digest_size=16).digest()
        for index in range(len(keys), len(token_ids) // self.block_size):
            start = index * self.block_size
            tokens = array("q", token_ids[start : start + self.block_size])
            parent = hashlib.blake2b(parent + tokens.tobytes(), digest_size=16).digest()
            keys.append(parent)
        return keys

    def match(self, keys: Sequence[Digest], num_tokens: int) -> list[int]:
        """Blocks, shared with the caller, of the longest registered prefix.

        At least the last of `num_tokens` is left out, since its logits must be computed.
        """
        if not self.enabled:
            return []
        matched: list[int] = []
        for key in keys[: (num_tokens - 1) // self.block_size]:
            block_id = self._block_of.get(key)
            if block_id is None:
                break
            self.pool.share(block_id)
            matched.append(block_id)
        self.num_queried_tokens += num_tokens
        self.num_hit_tokens += len(matched) * self.block_size
        return matched

    def register(self, block_id: int, key: Digest) -> None:
        """A referenced block is full and committed; others may find it under `key`.

        If another block holds the same contents already, this one simply stays private.
        """
        if not self.enabled or block_id in self._key_of or key in self._block_of:
            return
        self._block_of[key] = block_id
        self._key_of[block_id] = key
        self.pool.mark_shareable(block_id)

    def withdraw(self, block_id: int) -> None:
        """Never find this block again (its contents proved worthless)."""
        self._forget(block_id)
        self.pool.withdraw(block_id)

    def allocate(self, count: int) -> list[int] | None:
        """Fresh blocks, without valid draft rows, or None when there are too few."""
        blocks = self.pool.allocate(count)
        if blocks is not None:
            for block_id in blocks:
                self._num_draft_rows[block_id] = 0
        return blocks

    def record_draft_rows(self, block_table: Sequence[int], start: int, end: int) -> None:
        """Draft rows of positions `start` up to `end` are now valid and committed."""
        size = self.block_size
        for index in range(start // size, -(-end // size)):
            rows = min(size, end - index * size)
            block_id = block_table[index]
            self._num_draft_rows[block_id] = max(self._num_draft_rows[block_id], rows)

    def num_leading_draft_rows(self, block_table: Sequence[int]) -> int:
        """Length of the leading run of positions whose draft rows are valid."""
        total = 0
        for block_id in block_table:
            rows = self._num_draft_rows[block_id]
            total += rows
            if rows < self.block_size:
                break
        return total

    def _forget(self, block_id: int) -> None:
        key = self._key_of.pop(block_id, None)
        if key is not None:
            del self._block_of[key]
