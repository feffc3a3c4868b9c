"""How many threads the engine computes with: chosen once, before any weights are read."""

from __future__ import annotations

import os
from pathlib import Path

import psutil
import torch


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


def _quota() -> int | None:
    """Whole cores of a container's CPU quota (Linux, cgroup v2), at least one; None without."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))
