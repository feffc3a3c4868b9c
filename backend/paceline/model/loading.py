"""Weights into memory: transformers' causal LMs with our attention, ready to run and never to
train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from transformers import AutoModelForCausalLM

from paceline.core.config import Device, Dtype
from paceline.core.errors import ModelError
from paceline.model.attention import ATTENTION_NAME
from paceline.model.source import fetch_weights, find_source
from paceline.model.support import ModelDescription, describe_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PreTrainedModel

_TORCH_DTYPES = {
    Dtype.FLOAT32: torch.float32,
    Dtype.BFLOAT16: torch.bfloat16,
    Dtype.FLOAT16: torch.float16,
}


def torch_dtype(dtype: Dtype) -> torch.dtype:
    """The torch type of a decided dtype (not AUTO)."""
    return _TORCH_DTYPES[dtype]


def load_model(
    description: ModelDescription,
    *,
    dtype: Dtype,
    device: Device,
    attn_implementation: str = ATTENTION_NAME,
    setting: str = "target",
) -> PreTrainedModel:
    """Reads a described model's weights, in evaluation mode and without gradients.

    A GGUF file is dequantised in float32 and rounded once to `dtype`.

    Raises ModelError when a file is missing or broken, or lacks a tensor: transformers would put
    random numbers in its place.
    """
    source = description.source
    fetch_weights(source, field=setting)
    options: dict[str, Any] = {}
    if source.gguf_file is not None:
        from transformers import GgufConfig

        options["gguf_file"] = source.gguf_file
        options["quantization_config"] = GgufConfig(dequantize=True)
    load: Callable[..., tuple[PreTrainedModel, dict[str, Any]]] = (
        AutoModelForCausalLM.from_pretrained  # type: ignore[assignment]
    )
    try:
        model, report = load(
            str(source.folder),
            dtype=torch_dtype(dtype),
            attn_implementation=attn_implementation,
            output_loading_info=True,
            local_files_only=True,
            **options,
        )
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise ModelError(
            f"the weights of {setting} {source.name} cannot be read: "
            f"{lines[0] if lines else type(error).__name__}",
            field=setting,
        ) from error
    wrong = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if wrong:
        raise ModelError(
            f"the weights of {setting} {source.name} do not fit its configuration: "
            f"{len(wrong)} tensors are missing or have another shape, the first is {wrong[0]}",
            field=setting,
        )
    model.requires_grad_(False)
    model.train(False)
    move: Callable[[torch.device], PreTrainedModel] = model.to  # type: ignore[assignment]
    return move(torch.device(device.value))


def load_target(
    spec: str,
    *,
    dtype: Dtype = Dtype.BFLOAT16,
    device: Device = Device.CPU,
    attn_implementation: str = ATTENTION_NAME,
    setting: str = "target",
) -> PreTrainedModel:
    """Finds, checks and loads a model in one call: a folder, a GGUF file or a hub id."""
    return load_model(
        describe_model(find_source(spec, field=setting), setting=setting),
        dtype=dtype,
        device=device,
        attn_implementation=attn_implementation,
        setting=setting,
    )
