"""A draft module with its K/V memory, ready for packed passes over paged blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.model.attention import to_device
from paceline.model.attention_cuda import VarlenPagedAttention, varlen_kernel
from paceline.model.attention_native import CpuAttention

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paceline.model.attention import AttentionContext
    from paceline.model.attention_cuda import VarlenKernel
    from paceline.model.batch import PackedBatch
    from paceline.model.draft_folder import LoadedDraft


class DraftModuleRunner:
    """Runs a `DraftModule` as its docstring says, rows laid out like the target's.

    kv_layers: one [2, num_blocks, block_size, Hkv, D] for each layer of the module, on its device
    and in its dtype. kernel: for tests; by default torch's on CUDA.
    """

    def __init__(
        self,
        draft: LoadedDraft,
        kv_layers: Sequence[Tensor],
        *,
        kernel: VarlenKernel | None = None,
    ) -> None:
        self._module = draft.module
        self._layers = tuple(kv_layers)
        self.device = kv_layers[0].device
        self._kernel = varlen_kernel() if kernel is None and self.device.type == "cuda" else kernel
        self._attention = CpuAttention(self._layers)
        config = draft.module.config
        self._scale = config.head_dim**-0.5
        self.output_ids = draft.output_ids
        self.feature_layers = config.feature_layers
        self.feature_width = len(config.feature_layers) * config.hidden_size
        self.zero = torch.zeros((), dtype=draft.module.output.weight.dtype, device=self.device)
        self._no_input = self.zero.expand(1, config.hidden_size)

    @torch.inference_mode()
    def condition(self, features: Tensor) -> Tensor:
        """The target's features [N, F] of the positions before N rows, as their input [N, H]."""
        if not self.feature_layers:
            return self._no_input.expand(len(features), -1)
        return self._module.condition(features.view(len(features), len(self.feature_layers), -1))

    @torch.inference_mode()
    def recur(self, hidden: Tensor) -> Tensor:
        """The hidden rows [N, H] before N drafted rows, as their input [N, H]."""
        return self._module.recur(hidden) if self.feature_layers else torch.zeros_like(hidden)

    @torch.inference_mode()
    def forward(self, batch: PackedBatch, before: Tensor) -> Tensor:
        """Compute the batch's rows; hidden rows [T, H]. Their keys and values are in memory then.

        before: [T, H], from `condition` or `recur`.
        """
        context = self._context(batch)

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return context.attend(layer, query, key, value, self._scale, None)

        inputs = self._module.embed(to_device(batch.token_ids, self.device)) + before
        hidden: Tensor = self._module(inputs, to_device(batch.positions, self.device), attend)
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[N, D] over `output_ids`."""
        return self._module.logits(hidden)

    def _context(self, batch: PackedBatch) -> AttentionContext:
        if self._kernel is not None:
            return VarlenPagedAttention(batch, self._layers, self._kernel, self.device)
        return self._attention.context(batch)
