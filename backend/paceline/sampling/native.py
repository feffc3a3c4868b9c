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

from paceline.core.native_library import INT, LONG, POINTER, open_library

if TYPE_CHECKING:
    import numpy.typing as npt

    from paceline.sampling.acceptance import Drafted
    from paceline.sampling.rows import Rows

_SOURCE = Path(__file__).with_name("kernels") / "rows.cpp"
ROWS = (POINTER, INT, LONG, LONG, LONG)
"""Types of `row_arguments`."""


def serves(logits: Tensor) -> bool:
    """Whether rows of logits [R, V] can be handed over."""
    is_served = logits.dtype in (torch.bfloat16, torch.float32)
    return is_served and not logits.is_cuda and logits.stride(1) == 1


def row_arguments(logits: Tensor) -> tuple[int, int, int, int, int]:
    """Rows as our functions take them: address, whether they are bfloat16, elements from row to
    row, rows, width."""
    num_rows, width = logits.shape
    is_bfloat16 = logits.dtype is torch.bfloat16
    return logits.data_ptr(), int(is_bfloat16), logits.stride(0), num_rows, width


class _Round(ctypes.Structure):
    """`PacelineRound` of the source."""

    _fields_ = (
        *((name, POINTER) for name in ("weights", "ids", "totals")),
        ("width", LONG),
        *((name, POINTER) for name in ("drafts", "vocab_ids")),
        ("draft_width", LONG),
        *(
            (name, POINTER)
            for name in (
                *("draft_ids", "num_drafted", "first_rows", "row_index", "is_block"),
                *("accept", "residual", "bonus"),
            )
        ),
        *((name, LONG) for name in ("num_sequences", "depth")),
        *(
            (name, POINTER)
            for name in (
                *("num_accepted", "next_token", "source", "num_examined", "num_passed"),
                *("survival", "next_prob"),
            )
        ),
    )


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    return open_library(
        _SOURCE,
        {
            "paceline_highest": (*ROWS, POINTER, POINTER, INT),
            "paceline_weigh": (*ROWS, *(POINTER,) * 4, INT),
            "paceline_keep_likely": (*ROWS, *(POINTER,) * 7, INT),
            "paceline_uniforms": (*(POINTER,) * 4, LONG, POINTER),
            "paceline_settle": (POINTER, INT),
            "paceline_match": (*(POINTER,) * 4, LONG, LONG, POINTER, POINTER),
            "paceline_inverse_cdf": (POINTER, LONG, LONG, POINTER, POINTER),
        },
    )


def highest_of(logits: Tensor) -> tuple[Tensor, Tensor] | None:
    """The lowest index of the highest logit of each row [R, V], int64 [R], and that logit, float32
    [R]: NaN, and any index, where the row holds one."""
    library = _library() if serves(logits) else None
    if library is None:
        return None
    places = torch.empty(len(logits), dtype=torch.int64)
    peaks = torch.empty(len(logits), dtype=torch.float32)
    library.paceline_highest(
        *row_arguments(logits), places.data_ptr(), peaks.data_ptr(), torch.get_num_threads()
    )
    return places, peaks


def weigh_rows(
    logits: Tensor, peaks: Tensor, temperature: Tensor, *, keep: bool
) -> tuple[Tensor | None, Tensor] | None:
    """exp((logit - peak) / temperature): float32 [R, V] (None without keep), and row sums in
    float64 [R]. logits: [R, V], rows of contiguous numbers."""
    library = _library() if serves(logits) else None
    if library is None:
        return None
    num_rows, width = logits.shape
    peaks, inverses = peaks.to(torch.float32).contiguous(), temperature.reciprocal().contiguous()
    weights = torch.empty(num_rows, width, dtype=torch.float32) if keep else None
    totals = torch.empty(num_rows, dtype=torch.float64)
    library.paceline_weigh(
        *row_arguments(logits),
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
    library = _library() if serves(logits) else None
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
        *row_arguments(logits),
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


def uniforms_of(
    seeds: npt.ArrayLike, positions: npt.ArrayLike, rounds: npt.ArrayLike, purpose: npt.ArrayLike
) -> npt.NDArray[np.float64] | None:
    """`randomness.uniforms` in one pass."""
    library = _library()
    if library is None:
        return None
    keys = (seeds, positions, rounds, purpose)
    out = np.empty(np.broadcast(*keys).shape, dtype=np.float64)
    # One array of four rows, so that one address serves.
    table = np.empty((4, *out.shape), dtype=np.uint64)
    for place, part in enumerate(keys):
        table[place] = part
    first, row = table.ctypes.data, out.size * table.itemsize
    library.paceline_uniforms(
        first, first + row, first + 2 * row, first + 3 * row, out.size, out.ctypes.data
    )
    return out


def inverse_cdf_of(weights: Tensor, uniforms: Tensor) -> Tensor | None:
    """`draws.inverse_cdf` in one pass."""
    is_served = weights.dtype is torch.float32 and not weights.is_cuda and weights.is_contiguous()
    library = _library() if is_served else None
    if library is None:
        return None
    num_rows, width = weights.shape
    uniforms = uniforms.contiguous()
    out = torch.empty(num_rows, dtype=torch.int64)
    library.paceline_inverse_cdf(
        weights.data_ptr(), num_rows, width, uniforms.data_ptr(), out.data_ptr()
    )
    return out


def match_rounds(samples: Tensor, drafted: Drafted) -> tuple[Tensor, ...] | None:
    """`acceptance.matching_acceptance` in one pass, but for the last field of an `Acceptance`: all
    others in their order."""
    library = None if samples.is_cuda else _library()
    if library is None:
        return None
    samples, draft_ids = samples.contiguous(), drafted.draft_ids.contiguous()
    num_drafted = np.ascontiguousarray(drafted.num_drafted)
    first_rows = np.ascontiguousarray(drafted.first_rows)
    num_sequences, depth = draft_ids.shape
    counts = np.empty((5, num_sequences), dtype=np.int64)
    survival = np.empty((num_sequences, depth), dtype=np.float64)
    library.paceline_match(
        samples.data_ptr(),
        draft_ids.data_ptr(),
        num_drafted.ctypes.data,
        first_rows.ctypes.data,
        num_sequences,
        depth,
        counts.ctypes.data,
        survival.ctypes.data,
    )
    return tuple(torch.from_numpy(part) for part in (*counts, survival))


def settle_rounds(
    target: Rows,
    drafted: Drafted,
    is_block: npt.NDArray[np.bool_],
    accept: npt.NDArray[np.float64],
    residual: npt.NDArray[np.float64],
    bonus: npt.NDArray[np.float64],
) -> tuple[Tensor, ...] | None:
    """`acceptance.draw` of the `acceptance_law` of these arguments, in one pass a sequence: the
    fields of an `Acceptance` in their order."""
    library = None if target.weights.is_cuda else _library()
    if library is None:
        return None
    weights, totals = target.weights.contiguous(), target.totals.contiguous()
    ids = None if target.ids is None else target.ids.contiguous()
    rows = None if drafted.rows is None else drafted.rows.contiguous()
    vocab_ids = None if drafted.vocab_ids is None else drafted.vocab_ids.contiguous()
    draft_ids = drafted.draft_ids.contiguous()
    num_sequences, depth = drafted.draft_ids.shape
    arrays = [
        np.ascontiguousarray(part)
        for part in (drafted.num_drafted, drafted.first_rows, drafted.row_index)
    ]
    flags = np.ascontiguousarray(is_block, dtype=np.uint8)
    noise = [np.ascontiguousarray(part) for part in (accept, residual, bonus)]
    counts = np.empty((5, num_sequences), dtype=np.int64)
    survival = np.empty((num_sequences, depth), dtype=np.float64)
    next_prob = np.empty(num_sequences, dtype=np.float64)
    first, step = counts.ctypes.data, counts.strides[0]
    round_ = _Round(
        weights.data_ptr(),
        None if ids is None else ids.data_ptr(),
        totals.data_ptr(),
        weights.shape[1],
        None if rows is None else rows.data_ptr(),
        None if vocab_ids is None else vocab_ids.data_ptr(),
        0 if rows is None else rows.shape[1],
        draft_ids.data_ptr(),
        *(part.ctypes.data for part in arrays),
        flags.ctypes.data,
        *(part.ctypes.data for part in noise),
        num_sequences,
        depth,
        *(first + field * step for field in range(5)),
        survival.ctypes.data,
        next_prob.ctypes.data,
    )
    library.paceline_settle(ctypes.addressof(round_), torch.get_num_threads())
    return tuple(torch.from_numpy(part) for part in (*counts, survival, next_prob))
