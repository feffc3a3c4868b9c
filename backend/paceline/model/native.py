"""The kernels of `kernels/`, built once for this machine and kept in the user's cache.

Needs a C++ compiler with OpenMP, as `torch.compile` does. Without one everything still works, on
torch's own operations.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.core.native_library import FLOAT, INT, LONG, POINTER, declare, open_library

if TYPE_CHECKING:
    import ctypes

    from torch import Tensor

    from paceline.core.native_library import Functions

_FOLDER = Path(__file__).with_name("kernels")
_SOURCE = _FOLDER / "kernels.cpp"
_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-Wno-psabi")
_FUNCTIONS: Functions = {
    "paceline_pick": (*(POINTER,) * 3, LONG, LONG, POINTER),
    "paceline_put": (*(POINTER,) * 4, LONG, LONG),
    "paceline_norm": (*(POINTER,) * 4, FLOAT, LONG, LONG, POINTER, INT),
    "paceline_rotate": (POINTER, LONG, *(POINTER,) * 3, FLOAT, *(LONG,) * 3, INT),
    "paceline_silu_mul": (POINTER, LONG, LONG, POINTER, INT),
    "paceline_attend": (*(POINTER,) * 5, *(LONG,) * 4, FLOAT, LONG, POINTER, INT),
}
_PRODUCTS = {
    "paceline_product": (POINTER, POINTER, LONG, INT, POINTER, INT),
    "paceline_layer": (*(POINTER,) * 7, INT),
}


class Kernels:
    """The built library. All tensors are bfloat16 on the CPU unless said otherwise.

    attend: `paceline_attend`, for `attention_native`. product, layer: `paceline_product` and
    `paceline_layer`, for `native_layer`; there if `has_products`. name: differs where source,
    compiler, processor or the unit that computes products do.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._pick = library.paceline_pick
        self._put = library.paceline_put
        self._norm = library.paceline_norm
        self._rotate = library.paceline_rotate
        self._silu_mul = library.paceline_silu_mul
        self.attend = library.paceline_attend
        self.has_products = bool(library.paceline_has_products())
        unit = "tiles" if library.paceline_uses_tiles() else "vectors"
        self.name = f"{Path(library._name).stem} {unit}"
        if self.has_products:
            declare(library, _PRODUCTS)
            self.product = library.paceline_product
            self.layer = library.paceline_layer
        # The library shares torch's OpenMP threads, so it takes as many as torch does.
        self.num_threads = torch.get_num_threads()

    def pick(self, table: Tensor, places: Tensor, added: Tensor | None = None) -> Tensor:
        """table[places], plus added: [N, W]; a negative place stands for zeros.

        table: contiguous [M, W]. places: contiguous int64 [N], below M, which nobody checks. added:
        contiguous [N, W].
        """
        num_rows, width = len(places), table.shape[1]
        output = table.new_empty(num_rows, width)
        self._pick(
            table.data_ptr(),
            places.data_ptr(),
            None if added is None else added.data_ptr(),
            num_rows,
            width,
            output.data_ptr(),
        )
        return output

    def put_(self, table: Tensor, places: Tensor, rows: Tensor, sources: Tensor) -> None:
        """table[places] = rows[sources]: [M, W] and [R, W] of one dtype, int64 [N] each, in range,
        which nobody checks. Raises ValueError for rows of another width or dtype."""
        if rows.shape[1] != table.shape[1] or rows.dtype is not table.dtype:
            raise ValueError(f"{rows.dtype} {tuple(rows.shape)} does not fit the table")
        rows = rows.contiguous()
        self._put(
            table.data_ptr(),
            places.data_ptr(),
            rows.data_ptr(),
            sources.data_ptr(),
            len(places),
            table.shape[1],
        )

    def norm(self, rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """RMSNorm of rows [T, H]; weight: float32 [H]."""
        rows = rows.contiguous()
        output = torch.empty_like(rows)
        self._norm(
            rows.data_ptr(),
            None,
            None,
            weight.data_ptr(),
            epsilon,
            rows.shape[0],
            rows.shape[1],
            output.data_ptr(),
            self.num_threads,
        )
        return output

    def add_norm(
        self, rows: Tensor, added: Tensor, weight: Tensor, epsilon: float
    ) -> tuple[Tensor, Tensor]:
        """rows + added, contiguous [T, H] each, and its RMSNorm."""
        total, output = torch.empty_like(rows), torch.empty_like(rows)
        self._norm(
            rows.data_ptr(),
            added.data_ptr(),
            total.data_ptr(),
            weight.data_ptr(),
            epsilon,
            rows.shape[0],
            rows.shape[1],
            output.data_ptr(),
            self.num_threads,
        )
        return total, output

    def rotate_(
        self, heads: Tensor, cos: Tensor, sin: Tensor, weight: Tensor | None, epsilon: float
    ) -> None:
        """Rotary embedding of heads [T, H, D] in place, after RMSNorm of each head if there is a
        weight (float32 [H, D]). cos, sin: contiguous [T, D]."""
        self._rotate(
            heads.data_ptr(),
            heads.stride(0),
            cos.data_ptr(),
            sin.data_ptr(),
            None if weight is None else weight.data_ptr(),
            epsilon,
            heads.shape[0],
            heads.shape[1],
            heads.shape[2],
            self.num_threads,
        )

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of contiguous [T, 2 * I]."""
        num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        output = gate_up.new_empty(num_rows, width)
        self._silu_mul(gate_up.data_ptr(), num_rows, width, output.data_ptr(), self.num_threads)
        return output


@lru_cache(maxsize=1)
def load_kernels() -> Kernels | None:
    """The kernels for this machine, built now if they are not in the cache (some seconds, once);
    None, with a line in the log, where they cannot be built."""
    headers = sorted(_FOLDER.glob("*.h"))
    library = open_library(_SOURCE, _FUNCTIONS, headers=headers, flags=_FLAGS)
    return None if library is None else Kernels(library)
