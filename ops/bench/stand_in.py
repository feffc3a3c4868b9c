"""A stand-in for a trained draft: the target's first layers under its own head."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import torch
from transformers import AutoModelForCausalLM

from paceline.model.default_weights import ensure_default_target
from paceline.model.source import find_source

if TYPE_CHECKING:
    from pathlib import Path


def stand_in_draft(target: str | None, num_layers: int, folder: Path) -> Path:
    """A model folder below `folder` with the first layers of a target. Untrained, so it is a poor
    draft, but a real one: it costs what a model of its size costs."""
    source = find_source(target or str(ensure_default_target()), field="target")
    model = AutoModelForCausalLM.from_pretrained(source.folder, dtype=torch.bfloat16)
    model.model.layers = model.model.layers[:num_layers]
    model.config.num_hidden_layers = num_layers
    layer_types = getattr(model.config, "layer_types", None)
    if layer_types:
        model.config.layer_types = layer_types[:num_layers]
    made = folder / f"first-{num_layers}-layers"
    model.save_pretrained(made)
    for path in source.folder.glob("*token*"):
        shutil.copy(path, made / path.name)
    return made
