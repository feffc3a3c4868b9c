"""A draft module with its memory, ready for packed passes over paged blocks.

Beside keys and values the memory holds the target's features of every position that the target has
computed, under the same slots. So they are there whenever the module catches up: after a long time
without drafting, and behind a prefix that another sequence computed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import nn

from paceline.model.attention import to_device
from paceline.model.attention_cuda import VarlenInputs, VarlenPagedAttention, varlen_kernel
from paceline.model.attention_native import CpuAttention, NativePagedAttention
from paceline.model.fast.draft import NativeDraft, speed_up_draft
from paceline.model.fast.projection import PackedProjection, can_prepack
from paceline.model.native import load_kernels

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from paceline.model.attention import AttentionContext
    from paceline.model.attention_cuda import VarlenKernel
    from paceline.model.batch import Int64s, PackedBatch
    from paceline.model.draft_folder import DraftTarget, LoadedDraft
    from paceline.model.draft_head import DraftModuleConfig

# A table of all tokens' inputs is made where it takes no more than this.
_TOKEN_TABLE_BYTES = 128 << 20


def feature_bytes_per_token(config: DraftModuleConfig, num_bytes: int) -> int:
    """What the features of one position take, at `num_bytes` a number."""
    return len(config.feature_layers) * config.hidden_size * num_bytes


def token_table_bytes(config: DraftModuleConfig, target: DraftTarget, num_bytes: int) -> int:
    """What the table of all tokens' inputs takes; 0 where it is not made."""
    borrowed = target.vocabulary_rows * target.hidden_size * num_bytes
    is_made = borrowed <= _TOKEN_TABLE_BYTES
    return target.vocabulary_rows * config.hidden_size * num_bytes if is_made else 0


class DraftModuleRunner:
    """Runs a `DraftModule` as its docstring says, rows laid out like the target's.

    draft: taken over; its weights are rearranged. kv_layers: one
    [2, num_blocks, block_size, Hkv, D] for each layer of the module, on its device and in its
    dtype. allow_native: False keeps plain torch on a CPU. kernel: for tests; by default torch's on
    CUDA.
    """

    def __init__(
        self,
        draft: LoadedDraft,
        kv_layers: Sequence[Tensor],
        *,
        allow_native: bool = True,
        kernel: VarlenKernel | None = None,
    ) -> None:
        self._module = draft.module
        self._layers = tuple(kv_layers)
        self.device = kv_layers[0].device
        self._kernel = varlen_kernel() if kernel is None and self.device.type == "cuda" else kernel
        self._attention = CpuAttention(self._layers, allow_native=allow_native)
        config = draft.module.config
        self._scale = config.head_dim**-0.5
        self.output_ids = draft.output_ids
        self.tail_logits = draft.tail_logits
        self.feature_layers = config.feature_layers
        self.feature_width = len(config.feature_layers) * config.hidden_size
        num_slots = kv_layers[0].shape[1] * kv_layers[0].shape[2]
        self._features = torch.zeros(
            num_slots, self.feature_width, dtype=kv_layers[0].dtype, device=self.device
        )
        table_bytes = draft.module.borrowed_embedding.numel() * kv_layers[0].dtype.itemsize
        if table_bytes <= _TOKEN_TABLE_BYTES:
            draft.module.fold_tokens()
        self._native: NativeDraft | None = None
        if allow_native and self.device.type == "cpu":
            self._native = speed_up_draft(draft.module, load_kernels())
            if self._native is None:
                _prepack(draft.module)

    @torch.inference_mode()
    def keep_features(self, slots: Int64s, features: Tensor, rows: Int64s) -> None:
        """Put the target's features of N positions into their slots. features: [T, F], of which
        `rows` [N] are those positions'."""
        places, sources = to_device(slots, self.device), to_device(rows, self.device)
        if self._native is not None:
            self._native.kernels.put_(self._features, places, features, sources)
        else:
            self._features.index_copy_(0, places, features.index_select(0, sources))

    @torch.inference_mode()
    def condition(self, slots: Int64s) -> Tensor:
        """What features contribute to N rows: [N, hidden_size].

        slots: of the position before each row; -1 where there is none.
        """
        if not self.feature_layers:
            return self._features.new_zeros(len(slots), self._module.config.hidden_size)
        wanted = to_device(slots, self.device)
        shape = (len(slots), len(self.feature_layers), -1)
        if self._native is not None:
            features = self._native.kernels.pick(self._features, wanted)
            return self._native.condition(features.view(shape))
        features = self._features[wanted.clamp_min(0)]
        if bool((slots < 0).any()):
            features[wanted < 0] = 0.0
        return self._module.condition(features.view(shape))

    @torch.inference_mode()
    def recur(self, hidden: Tensor) -> Tensor:
        """The hidden rows [N, H] before N drafted rows, as their input [N, H]."""
        if not self.feature_layers:
            return torch.zeros_like(hidden)
        return (self._native or self._module).recur(hidden)

    @torch.inference_mode()
    def forward(self, batch: PackedBatch, before: Tensor) -> Tensor:
        """Compute the batch's rows; hidden rows [T, H]. Their keys and values are in memory then.

        before: [T, H], from `condition` or `recur`.
        """
        context = self._context(batch)
        token_ids = to_device(batch.token_ids, self.device)
        positions = to_device(batch.positions, self.device)
        if self._native is not None and isinstance(context, NativePagedAttention):
            rows = self._native.inputs(token_ids, before)
            return self._native.forward_(rows, positions, context)
        inputs = self._module.embed(token_ids) + before

        def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return context.attend(layer, query, key, value, self._scale, None)

        hidden: Tensor = self._module(inputs, positions, attend)
        return hidden

    @torch.inference_mode()
    def select(self, hidden: Tensor, places: Sequence[int]) -> Tensor:
        """hidden[places]; the very rows where that is all of them in their order."""
        if len(places) == len(hidden) and list(places) == list(range(len(hidden))):
            return hidden
        wanted = to_device(np.array(places, dtype=np.int64), self.device)
        if self._native is not None:
            return self._native.kernels.pick(hidden, wanted)
        return hidden.index_select(0, wanted)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[N, D] over `output_ids`."""
        return (self._native or self._module).logits(hidden)

    def _context(self, batch: PackedBatch) -> AttentionContext:
        if self._kernel is not None:
            inputs = VarlenInputs.of(batch, self.device)
            return VarlenPagedAttention(inputs, self._layers, self._kernel)
        return self._attention.context(batch)


class _PackedLinear(nn.Module):
    """A linear layer whose weight was laid out once."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight = linear.weight
        self._product = PackedProjection(linear.weight, None)

    def forward(self, rows: Tensor) -> Tensor:
        return self._product(rows)


def _prepack(module: nn.Module) -> None:
    for name, child in list(module.named_children()):
        if isinstance(child, nn.Linear) and can_prepack(child.weight):
            setattr(module, name, _PackedLinear(child))
        else:
            _prepack(child)
