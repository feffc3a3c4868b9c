"""How many threads the engine computes with: chosen once, before any weights are read."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
from pathlib import Path

import psutil
import torch

_OMP_PAUSE_SOFT = 1
_OPENMP = re.compile(r"/lib(gomp|omp|iomp5)[-.\w]*$")


def usable_cores() -> int:
    """Cores of this machine that the process may use: hardware threads of one core count once, and
    a container's quota counts."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    physical = psutil.cpu_count(logical=False)
    limits = [limit for limit in (allowed, physical, _quota()) if limit]
    return min(limits, default=1)


def use_threads(count: int) -> None:
    """Make torch, and the kernels that share its threads, compute with this many. Only the engine
    computes, so nothing else competes for them."""
    torch.set_num_threads(count)


def release_threads() -> None:
    """End the worker threads that the calling thread's parallel work has left waiting.

    For whoever prepares what another thread will compute with. OpenMP gives each thread workers of
    its own and counts them all: where they outnumber the cores, workers sleep at every barrier
    instead of spinning, and a step has hundreds of barriers. With the workers of the thread that
    read the weights left over, a step of one row took 13.6 ms instead of 7.7. New ones are made as
    soon as the calling thread needs them.
    """
    for runtime in _openmp_runtimes():
        runtime.omp_pause_resource_all(_OMP_PAUSE_SOFT)


def _openmp_runtimes() -> list[ctypes.CDLL]:
    """Those loaded into this process, as torch may bring its own beside the system's; none where
    that cannot be told."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8")
    except OSError:
        return []
    # Five fields, then the path, in which spaces may be.
    paths = {line.split(maxsplit=5)[5] for line in maps.splitlines() if _OPENMP.search(line)}
    found = []
    for path in sorted(paths):
        with contextlib.suppress(OSError):
            runtime = ctypes.CDLL(path)
            if hasattr(runtime, "omp_pause_resource_all"):
                found.append(runtime)
    return found


def _quota() -> int | None:
    """Whole cores of a container's CPU quota (Linux, cgroup v2), at least one; None without."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))
