"""Memory for what every step reads, in huge pages where the system has them.

The processor keeps the addresses of the pages it used last, a few thousand of them. Weights and K/V
in pages of 4 KiB are tens of thousands, so that each page read begins with a walk through the page
tables, and prefetching stops at its end. Linux gives 2 MiB at once to a process that asks for it
(`madvise`); then the first touch of a page takes longer, and none afterwards.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap

HUGE_PAGE = 2 << 20


def zeroed_memory(num_bytes: int) -> memoryview:
    """Writable zeros, returned to the system with the last reference. What is never touched takes
    no memory, and who cannot wait when it is touched touches it before.

    From one huge page on it begins at a huge page and asks for them. That is a hint: where there
    are none it is memory like any other.
    """
    is_large = num_bytes >= HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE")
    memory = _anonymous(num_bytes + HUGE_PAGE if is_large else max(1, num_bytes))
    start = 0
    if is_large:
        with contextlib.suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
        start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
    return memoryview(memory)[start : start + num_bytes]


def _anonymous(num_bytes: int) -> mmap.mmap:
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, num_bytes)
