"""Our own passes over whole rows on a CPU (`kernels/rows.cpp`), where a compiler is at hand.

Each function returns None where it cannot serve, and the caller does the same with torch's
operations.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from paceline.core.native_library import build_library

if TYPE_CHECKING:
    import numpy.typing as npt

_SOURCE = Path(__file__).with_name("kernels") / "rows.cpp"
_POINTER, _LONG, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    path = build_library(_SOURCE)
    if path is None:
        return None
    library = ctypes.CDLL(str(path))
    library.paceline_weigh.argtypes = (
        _POINTER,
        _INT,
        *(_LONG,) * 3,
        *(_POINTER,) * 4,
        _INT,
    )
    library.paceline_excess.argtypes = (
        _POINTER,
        _LONG,
        *(_POINTER,) * 3,
        _LONG,
        _POINTER,
        _LONG,
        _POINTER,
        _INT,
    )
    library.paceline_keep_likely.argtypes = (
        _POINTER,
        _INT,
        *(_LONG,) * 3,
        *(_POINTER,) * 7,
        _INT,
    )
    library.paceline_uniforms.argtypes = (*(_POINTER,) * 4, _LONG, _POINTER)
    for name in (
        "paceline_weigh",
        "paceline_excess",
        "paceline_keep_likely",
        "paceline_uniforms",
    ):
        getattr(library, name).restype = None
    return library


def weigh_rows(
    logits: Tensor, peaks: Tensor, temperature: Tensor, *, keep: bool
) -> tuple[Tensor | None, Tensor] | None:
    """exp((logit - peak) / temperature): float32 [R, V] (None without keep), and row sums in
    float64 [R]. logits: [R, V], rows of contiguous numbers."""
    library = _library() if _serves(logits) else None
    if library is None:
        return None
    num_rows, width = logits.shape
    peaks, inverses = peaks.to(torch.float32).contiguous(), temperature.reciprocal().contiguous()
    weights = torch.empty(num_rows, width, dtype=torch.float32) if keep else None
    totals = torch.empty(num_rows, dtype=torch.float64)
    library.paceline_weigh(
        logits.data_ptr(),
        int(logits.dtype is torch.bfloat16),
        logits.stride(0),
        num_rows,
        width,
        peaks.data_ptr(),
        inverses.data_ptr(),
        None if weights is None else weights.data_ptr(),
        totals.data_ptr(),
        torch.get_num_threads(),
    )
    return weights, totals


def keep_likely(
    logits: Tensor, peaks: Tensor, temperature: Tensor, top_p: Tensor, min_p: Tensor
) -> tuple[Tensor, Tensor] | None:
    """What top-p and min-p leave of each row, in order of rising id: float32 weights as of
    `weigh_rows` and int64 ids, both [R, C], 0 on padding.

    temperature, min_p: float32 [R]. top_p: float64 [R].
    """
    library = _library() if _serves(logits) else None
    if library is None:
        return None
    num_rows, width = logits.shape
    peaks, inverses = peaks.to(torch.float32).contiguous(), temperature.reciprocal().contiguous()
    top_p, min_p = top_p.contiguous(), min_p.contiguous()
    # Memory that is never touched costs nothing: only the starts of rows are.
    weights = torch.empty(num_rows, width, dtype=torch.float32)
    ids = torch.empty(num_rows, width, dtype=torch.int32)
    counts = torch.empty(num_rows, dtype=torch.int64)
    library.paceline_keep_likely(
        logits.data_ptr(),
        int(logits.dtype is torch.bfloat16),
        logits.stride(0),
        num_rows,
        width,
        peaks.data_ptr(),
        inverses.data_ptr(),
        top_p.data_ptr(),
        min_p.data_ptr(),
        weights.data_ptr(),
        ids.data_ptr(),
        counts.data_ptr(),
        torch.get_num_threads(),
    )
    longest = int(counts.max())
    is_listed = torch.arange(longest) < counts[:, None]
    return (
        torch.where(is_listed, weights[:, :longest], 0.0),
        torch.where(is_listed, ids[:, :longest], 0).to(torch.int64),
    )


def _serves(logits: Tensor) -> bool:
    is_served = logits.dtype in (torch.bfloat16, torch.float32)
    return is_served and not logits.is_cuda and logits.stride(1) == 1


def excess_of_rows(
    weights: Tensor, rows: Tensor, factors: Tensor, drafts: Tensor, draft_rows: Tensor
) -> Tensor | None:
    """Sums of max(0, factor * weights[row] - drafts[draft_row]): float64 [N].

    weights: float32 [R, V]. drafts: float32 [P, Vd], zero beyond Vd. rows, draft_rows: int64 [N].
    factors: float32 [N].
    """
    if weights.is_cuda or drafts.dtype is not torch.float32:
        return None
    library = _library()
    if library is None or not (weights.is_contiguous() and drafts.is_contiguous()):
        return None
    rows, draft_rows, factors = rows.contiguous(), draft_rows.contiguous(), factors.contiguous()
    sums = torch.empty(len(rows), dtype=torch.float64)
    library.paceline_excess(
        weights.data_ptr(),
        weights.shape[1],
        rows.data_ptr(),
        factors.data_ptr(),
        drafts.data_ptr(),
        drafts.shape[1],
        draft_rows.data_ptr(),
        len(rows),
        sums.data_ptr(),
        torch.get_num_threads(),
    )
    return sums


def uniforms_of(
    seeds: npt.ArrayLike, positions: npt.ArrayLike, rounds: npt.ArrayLike, purpose: npt.ArrayLike
) -> npt.NDArray[np.float64] | None:
    """`randomness.uniforms` in one pass."""
    library = _library()
    if library is None:
        return None
    keys = (np.asarray(part, dtype=np.uint64) for part in (seeds, positions, rounds, purpose))
    # One array of four rows, so that one address serves.
    table = np.stack(np.broadcast_arrays(*keys))
    out = np.empty(table.shape[1:], dtype=np.float64)
    first, row = table.ctypes.data, out.size * table.itemsize
    library.paceline_uniforms(
        first, first + row, first + 2 * row, first + 3 * row, out.size, out.ctypes.data
    )
    return out
