"""Logits without the tokens that a grammar rules out."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from paceline.core.native_library import INT, LONG, POINTER, open_library
from paceline.sampling.native import ROWS, row_arguments, serves

if TYPE_CHECKING:
    import ctypes

    from paceline.sampling.constraints import AllowedTokens

_SOURCE = Path(__file__).with_name("kernels") / "grammar_masks.cpp"


def masked(logits: Tensor, allowed: AllowedTokens, vocab_ids: Tensor | None = None) -> Tensor:
    """A float32 copy in which the other tokens of the rows of `allowed` are minus infinity.

    Args:
        logits: [R, V], any float type.
        allowed: a token beyond its bits is not allowed.
        vocab_ids: int64 [V], the token of each column, rising; None where column c is token c.
    """
    native = _masked_natively(logits, allowed, vocab_ids)
    if native is not None:
        return native
    edited = logits.to(torch.float32, copy=True)
    at = torch.from_numpy(allowed.rows).to(edited.device)
    is_allowed = _unpacked(allowed, edited.device)
    if vocab_ids is None:
        missing = edited.shape[1] - is_allowed.shape[1]
        is_allowed = torch.nn.functional.pad(is_allowed, (0, missing))
    else:
        is_known = vocab_ids < is_allowed.shape[1]
        is_allowed = is_allowed[:, torch.where(is_known, vocab_ids, 0)] & is_known
    edited[at] = edited[at].masked_fill(~is_allowed, float("-inf"))
    return edited


def _unpacked(allowed: AllowedTokens, device: torch.device) -> Tensor:
    """Bool [N, V], V rounded up to a multiple of 32."""
    octets = torch.from_numpy(allowed.bits.view("uint8")).to(device)
    shifts = torch.arange(8, dtype=torch.uint8, device=device)
    return ((octets[:, :, None] >> shifts) & 1).to(torch.bool).flatten(1)


@lru_cache(maxsize=1)
def _library() -> ctypes.CDLL | None:
    types = (*ROWS, *(POINTER,) * 3, LONG, POINTER, INT)
    return open_library(_SOURCE, {"paceline_mask_rows": types})


def _masked_natively(
    logits: Tensor, allowed: AllowedTokens, vocab_ids: Tensor | None
) -> Tensor | None:
    """The same in one pass over the rows; None where that cannot be."""
    library = _library() if serves(logits) else None
    if library is None:
        return None
    num_rows, width = logits.shape
    mask_of_row = np.full(num_rows, -1, dtype=np.int64)
    mask_of_row[allowed.rows] = np.arange(len(allowed.rows))
    bits = np.ascontiguousarray(allowed.bits)
    ids = None if vocab_ids is None else vocab_ids.contiguous()
    edited = torch.empty(num_rows, width, dtype=torch.float32)
    library.paceline_mask_rows(
        *row_arguments(logits),
        None if ids is None else ids.data_ptr(),
        mask_of_row.ctypes.data,
        bits.ctypes.data,
        bits.shape[1],
        edited.data_ptr(),
        torch.get_num_threads(),
    )
    return edited
