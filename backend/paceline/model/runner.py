"""One causal language model and its K/V memory, ready for packed forward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from paceline.model.attention import to_device
from paceline.model.attention_cuda import VarlenInputs, VarlenPagedAttention, varlen_kernel
from paceline.model.attention_native import CpuAttention
from paceline.model.features import FeatureTap

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor
    from transformers import PreTrainedModel

    from paceline.model.attention import AttentionContext
    from paceline.model.attention_cuda import VarlenKernel
    from paceline.model.batch import PackedBatch
    from paceline.model.fast.lean import LeanDecoder


@dataclass(frozen=True, slots=True)
class ForwardOutput:
    """logits: [R, V], the model's own dtype, in the order of `PackedBatch.logit_rows`.
    features: [T, F], or None when none were asked for."""

    logits: Tensor
    features: Tensor | None = None


class ModelRunner:
    """Runs a transformers model, loaded with `ATTENTION_NAME`, over paged K/V.

    kv_layers: one [2, num_blocks, block_size, Hkv, D] per layer, on the model's device and in its
    dtype. feature_layers: see `FeatureTap`. decoder: what `speed_up` made of the model, runs in its
    place. allow_native: see `CpuAttention`. kernel: for tests; by default torch's on CUDA.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        kv_layers: Sequence[Tensor],
        *,
        feature_layers: Sequence[int] = (),
        decoder: LeanDecoder | None = None,
        allow_native: bool = True,
        kernel: VarlenKernel | None = None,
    ) -> None:
        self._model = model
        self._layers = tuple(kv_layers)
        self._decoder = decoder
        self._feature_layers = tuple(feature_layers)
        self._tap = FeatureTap(model, () if decoder is not None else feature_layers)
        self.device = kv_layers[0].device
        self._kernel = varlen_kernel() if kernel is None and self.device.type == "cuda" else kernel
        self._attention = CpuAttention(self._layers, allow_native=allow_native)

    @torch.inference_mode()
    def forward(self, batch: PackedBatch) -> ForwardOutput:
        """Compute the batch; its keys and values are in memory afterwards."""
        return self._compute(
            to_device(batch.token_ids, self.device),
            to_device(batch.positions, self.device),
            to_device(batch.logit_rows, self.device),
            self._context(batch),
        )

    @torch.inference_mode()
    def forward_from(
        self, token_ids: Tensor, positions: Tensor, logit_rows: Tensor, inputs: VarlenInputs
    ) -> ForwardOutput:
        """The same from tensors that are on the device: nothing is copied there and nothing waited
        for, so that the pass can be recorded. token_ids, positions: int64 [T]; logit_rows: [R].

        Raises RuntimeError without a kernel for paged attention.
        """
        if self._kernel is None:
            raise RuntimeError("passes from device tensors need a kernel for paged attention")
        context = VarlenPagedAttention(inputs, self._layers, self._kernel)
        return self._compute(token_ids, positions, logit_rows, context)

    def _compute(
        self, token_ids: Tensor, positions: Tensor, logit_rows: Tensor, context: AttentionContext
    ) -> ForwardOutput:
        if self._decoder is not None:
            logits, features = self._decoder.forward(
                token_ids, positions, logit_rows, context, self._feature_layers
            )
            return ForwardOutput(logits, features)
        self._tap.begin()
        output = self._model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=logit_rows,
            attention_context=context,
        )
        return ForwardOutput(output.logits[0], self._tap.take())

    def _context(self, batch: PackedBatch) -> AttentionContext:
        if self._kernel is not None:
            inputs = VarlenInputs.of(batch, self.device)
            return VarlenPagedAttention(inputs, self._layers, self._kernel)
        return self._attention.context(batch)
