"""Ragged attention over paged K/V, registered with transformers under a name of our own.

Models call it in place of their attention, on every layer: it writes this step's keys and values
into their slots and lets each query see its own sequence up to its own position. All that it needs
beyond the query comes in an `AttentionContext`, made once per forward pass and handed through the
model as a keyword argument. No mask is registered under the name, so transformers builds none and
causality is this module's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from transformers import AttentionInterface

from paceline.core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

# Not a name with "flash", "sdpa", "flex" or "paged|" in it: transformers treats those specially.
ATTENTION_NAME = "ragged_kv"


class AttentionContext(Protocol):
    """Where one forward pass keeps and finds keys and values."""

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scale: float,
        sliding_window: int | None,
    ) -> Tensor:
        """Write key and value [T, Hkv, D] (rotary embedding applied), then attend.

        Args:
            layer: index of the layer. query: [T, Hq, D].
            scale: factor on the scores. sliding_window: how many positions, its own included, a
                query sees; None for all up to its own.

        Returns:
            [T, Hq, D].
        """
        ...


def ragged_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    attention_context: AttentionContext | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' attention function: query [1, Hq, T, D], key and value [1, Hkv, T, D].

    What would change the result and is not implemented is refused, never ignored.
    """
    for name in ("softcap", "s_aux"):
        if kwargs.get(name) is not None:
            raise UnsupportedModelError(f"attention with {name} is not supported")
    if attention_context is None or attention_mask is not None or dropout:
        raise UnsupportedModelError(
            "this attention needs an attention context and takes neither mask nor dropout"
        )
    if scaling is None:
        scaling = query.shape[-1] ** -0.5
    output = attention_context.attend(
        int(module.layer_idx),  # type: ignore[arg-type]
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        scaling,
        sliding_window,
    )
    return output.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, ragged_attention)


def write_rows(layer: Tensor, slots: Tensor, key: Tensor, value: Tensor) -> None:
    """Put key and value [T, Hkv, D] into their slots of a layer [2, blocks, block_size, Hkv, D]."""
    flat = layer.flatten(1, 2)
    flat[0].index_copy_(0, slots, key)
    flat[1].index_copy_(0, slots, value)


def to_device(array: Any, device: torch.device) -> Tensor:
    """A numpy array as a tensor on the device, without waiting for it."""
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
