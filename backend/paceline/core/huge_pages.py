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
    """Writable zeros that begin at a huge page, returned to the system with the last reference.

    Untouched pages take no memory. A request is a hint: where there are no huge pages, or for less
    than one of them, this is memory like any other.
    """
    if num_bytes < HUGE_PAGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return memoryview(bytearray(num_bytes))
    memory = mmap.mmap(-1, num_bytes + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
    return memoryview(memory)[start : start + num_bytes]
