"""This machine's memory bandwidth and arithmetic, measured in about a second.

Measures the processor, with numpy. The figures of a GPU come from the device table; a running
server measures its own step times and needs neither.
"""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.planning.devices import GIB, MEASURED_EFFICIENCY, Device

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 256 * 1024**2  # several times any last-level cache
_GEMM_SIZE = 1024
_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Measurement:
    """What the machine reached. `gflops` is of float32 matrix products."""

    read_gb_s: float
    gflops: float
    memory_gib: float
    threads: int
    bf16_factor: float


def measure_this_machine(threads: int | None = None) -> Measurement:
    """Measure; takes about a second, a quarter of a GiB of memory, and every core.

    Raises:
        ConfigError: numpy is not installed.
    """
    try:
        import numpy as np
    except ModuleNotFoundError as error:
        raise ConfigError(
            "measuring this machine needs numpy: install it, or name a device", field="device"
        ) from error
    threads = threads or len(os.sched_getaffinity(0))
    values = np.ones(_READ_BYTES // 4, dtype=np.float32)
    chunks = np.array_split(values, threads)
    with ThreadPoolExecutor(threads) as pool:
        # max() reads every byte once, vectorised, and numpy leaves the interpreter lock.
        read = _best_seconds(lambda: list(pool.map(np.max, chunks)))
    left = np.ones((_GEMM_SIZE, _GEMM_SIZE), dtype=np.float32)
    right = np.ones((_GEMM_SIZE, _GEMM_SIZE), dtype=np.float32)
    product = _best_seconds(lambda: np.matmul(left, right))
    return Measurement(
        read_gb_s=_READ_BYTES / read / 1e9,
        gflops=2.0 * _GEMM_SIZE**3 / product / 1e9,
        memory_gib=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB,
        threads=threads,
        bf16_factor=_bf16_factor(),
    )


def _bf16_factor() -> float:
    """How much faster than float32 this processor multiplies 16-bit numbers, by its instructions:
    a BF16 dot product does two multiplications where float32 does one, a matrix unit more."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return 1.0
    if "amx_bf16" in flags:
        return 4.0
    return 2.0 if "avx512_bf16" in flags else 1.0


def device_from(measurement: Measurement) -> Device:
    """The measured machine as a device: float32 products measured, 16-bit ones inferred from the
    processor's instructions, which `source` says."""
    return Device(
        name="this-machine",
        label=f"this machine ({platform.machine()}, {measurement.threads} threads)",
        bandwidth_gb_s=measurement.read_gb_s,
        bf16_tflops=measurement.gflops * measurement.bf16_factor / 1e3,
        fp8_tflops=0.0,
        memory_gib=measurement.memory_gib,
        link_gb_s=10.0,
        link_latency_us=25.0,
        source=f"measured just now: {measurement.gflops:.0f} GFLOPS in float32, "
        f"{measurement.bf16_factor:g} times that assumed in 16 bits",
        efficiency=MEASURED_EFFICIENCY,
    )


def _best_seconds(work: Callable[[], object]) -> float:
    """Least time of a few runs after one to warm up: what the machine can do undisturbed."""
    work()
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best
