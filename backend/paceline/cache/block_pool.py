"""Who holds which block of K/V memory. Counts and ids only; the tensors are elsewhere.

A block is in exactly one of three places:

    free        nobody's, contents worthless            (`_free`)
    cached      nobody's, contents still worth sharing  (`_cached`, least recently used first)
    referenced  in at least one block table             (`_num_references` > 0)

so that free + cached + referenced == num_blocks after every call. `check` verifies it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class BlockPool:
    """Allocation of `num_blocks` blocks by reference counts.

    forget: called with a block id when its cached contents are about to be overwritten.
    """

    def __init__(self, num_blocks: int, forget: Callable[[int], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self._forget = forget
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._is_shareable = [False] * num_blocks
        self._num_references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` can hand out: free ones, then cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_referenced(self) -> int:
        return self.num_blocks - self.num_available

    def num_references(self, block_id: int) -> int:
        return self._num_references[block_id]

    def is_cached(self, block_id: int) -> bool:
        return block_id in self._cached

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with one reference each, or None (and no change) when there are fewer.

        Free blocks go first; then the least recently used cached block loses its contents.
        """
        if count > self.num_available:
            return None
        blocks = []
        for _ in range(count):
            if self._free:
                block_id = self._free.pop()
            else:
                block_id, _ = self._cached.popitem(last=False)
                self._is_shareable[block_id] = False
                if self._forget is not None:
                    self._forget(block_id)
            self._num_references[block_id] = 1
            blocks.append(block_id)
        return blocks

    def share(self, block_id: int) -> None:
        """One more block table holds this block, which is cached or already referenced."""
        if self._num_references[block_id] == 0:
            del self._cached[block_id]
        self._num_references[block_id] += 1

    def mark_shareable(self, block_id: int) -> None:
        """Its contents may be found by others: on its last release it is cached, not freed."""
        self._is_shareable[block_id] = True

    def release(self, blocks: Iterable[int]) -> None:
        """One block table lets go of these blocks.

        Pass a table from its end to its start, so that of one prefix the tail is evicted first:
        a block is found only while all blocks before it are there.
        """
        for block_id in blocks:
            count = self._num_references[block_id] - 1
            if count < 0:
                raise ValueError(f"block {block_id} is released more often than it was taken")
            self._num_references[block_id] = count
            if count == 0:
                if self._is_shareable[block_id]:
                    self._cached[block_id] = None
                else:
                    self._free.append(block_id)

    def withdraw(self, block_id: int) -> None:
        """The contents are not to be shared any more (they proved worthless)."""
        self._is_shareable[block_id] = False
        if block_id in self._cached:
            del self._cached[block_id]
            self._free.append(block_id)

    def check(self, block_tables: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless the books agree with the given tables (all that exist)."""
        held = Counter(block_id for table in block_tables for block_id in table)
        for block_id in range(self.num_blocks):
            counted = self._num_references[block_id]
            if counted != held[block_id]:
                raise AssertionError(
                    f"block {block_id}: {counted} references, in {held[block_id]} tables"
                )
        free, cached = set(self._free), set(self._cached)
        referenced = {b for b in range(self.num_blocks) if self._num_references[b] > 0}
        if len(free) != len(self._free):
            raise AssertionError("a block is free twice")
        if free & cached or free & referenced or cached & referenced:
            raise AssertionError("a block is in two places")
        if len(free) + len(cached) + len(referenced) != self.num_blocks:
            raise AssertionError("a block is lost")
