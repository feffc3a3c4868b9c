"""Draft folders: what `paceline distill` writes and `--draft` takes.

    config.json         format, kind ("head" or "decoder"), shape, and the target it was made for
    model.safetensors   the weights, and `output_ids`: the target's token ids of the output columns;
                        `tail_logits`, where there are any: what is said of the other ids at high
                        temperatures (`sampling.tail`)
    README.md           model card

The target's embedding is borrowed, so it is not in the folder, and a draft works with its own
target alone. Its structure must fit (an error otherwise); weights that differ, as those of another
quantisation do, cost acceptance but nothing else, and are reported as a warning.
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from paceline.core.errors import ModelError
from paceline.model.draft_head import DraftModule, DraftModuleConfig

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

FORMAT = "paceline-draft-1"
OUTPUT_IDS = "output_ids"
TAIL_LOGITS = "tail_logits"
_SAMPLED_ROWS = 64
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftTarget:
    """The target that a draft was made for.

    ``name`` is for people; ``weights`` a digest from :func:`fingerprint`; the sizes must match.
    """

    name: str
    weights: str
    vocabulary_rows: int
    hidden_size: int
    num_layers: int

    @classmethod
    def of(cls, model: PreTrainedModel, name: str) -> DraftTarget:
        """Describes a loaded target."""
        base: Any = model.base_model
        embedding = _embedding(model)
        return cls(
            name=name,
            weights=fingerprint(embedding, base.norm.weight),
            vocabulary_rows=embedding.shape[0],
            hidden_size=embedding.shape[1],
            num_layers=len(base.layers),
        )


@dataclass(frozen=True, slots=True)
class DraftDescription:
    """A draft folder, known without its weights. ``target`` is what it was made for."""

    folder: Path
    config: DraftModuleConfig
    target: DraftTarget

    @property
    def kind(self) -> str:
        """ "head" (on the target's hidden states) or "decoder" (on token ids alone)."""
        return "head" if self.config.feature_layers else "decoder"


@dataclass(frozen=True, slots=True)
class LoadedDraft:
    """A draft ready to run. ``output_ids [D]`` int64, ascending: the target's token id of each
    column of its logits. ``tail_logits [V - D]`` float32: see `sampling.tail.Tail`."""

    module: DraftModule
    output_ids: Tensor
    description: DraftDescription
    tail_logits: Tensor | None = None


def fingerprint(embedding: Tensor, final_norm: Tensor) -> str:
    """A digest of a target's weights from a sample of them, rounded to bfloat16 so that the dtype
    they were loaded in does not matter."""
    step = max(1, len(embedding) // _SAMPLED_ROWS)
    digest = hashlib.sha256()
    for part in (embedding[::step], final_norm):
        rounded = part.detach().to("cpu", torch.bfloat16).contiguous()
        digest.update(rounded.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:32]


def is_draft_folder(folder: Path) -> bool:
    """Whether this is a folder of ours rather than a model of transformers."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("format") == FORMAT


def describe_draft(folder: Path) -> DraftDescription:
    """Read a draft folder's configuration.

    Raises ModelError when it is not one or is broken.
    """
    if not is_draft_folder(folder):
        raise ModelError(
            f"draft {folder} is no draft folder: its config.json does not say "
            f'"format": "{FORMAT}"; make one with `paceline distill`',
            field="draft",
        )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    try:
        return DraftDescription(
            folder, DraftModuleConfig.from_dict(config["module"]), DraftTarget(**config["target"])
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{folder / 'config.json'} is broken: {error}", field="draft") from error


def load_draft(
    description: DraftDescription, target: PreTrainedModel, target_name: str
) -> LoadedDraft:
    """Load a draft beside its target, in the target's dtype and on its device.

    Raises ModelError when it was made for a target of another structure, or a weight is missing.
    """
    _check_target(description, DraftTarget.of(target, target_name))
    embedding = _embedding(target)
    path = description.folder / "model.safetensors"
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{path} cannot be read: {error}", field="draft") from error
    output_ids = tensors.pop(OUTPUT_IDS, torch.empty(0)).long()
    if len(output_ids) != description.config.num_output_ids:
        raise ModelError(
            f"{path} has {len(output_ids)} output ids, its config.json says "
            f"{description.config.num_output_ids}",
            field="draft",
        )
    tail_logits = tensors.pop(TAIL_LOGITS, None)
    if tail_logits is not None:
        num_others = description.target.vocabulary_rows - len(output_ids)
        if tail_logits.shape != (num_others,) or not bool(tail_logits.isfinite().all()):
            raise ModelError(
                f"{path} has {TAIL_LOGITS} of shape {list(tail_logits.shape)}; it takes "
                f"{num_others} finite numbers, one for each id that the draft has no output for",
                field="draft",
            )
        tail_logits = tail_logits.float().to(embedding.device)
    module = DraftModule(description.config, embedding)
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise ModelError(f"{path} does not fit its config.json: {error}", field="draft") from error
    module.to(device=embedding.device, dtype=embedding.dtype)
    module.requires_grad_(False)
    module.train(False)
    return LoadedDraft(module, output_ids.to(embedding.device), description, tail_logits)


def save_draft(
    folder: Path,
    module: DraftModule,
    output_ids: Tensor,
    tail_logits: Tensor,
    target: DraftTarget,
    card: str,
    figures: dict[str, Any],
) -> None:
    """Write a draft folder. ``figures`` go into config.json as they are; ``card`` is README.md."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {
        name: tensor.detach().to("cpu", torch.bfloat16).contiguous()
        for name, tensor in module.state_dict().items()
    }
    weights[OUTPUT_IDS] = output_ids.to("cpu", torch.int32)
    weights[TAIL_LOGITS] = tail_logits.to("cpu", torch.float32)
    partial = folder / "model.safetensors.partial"
    save_file(weights, partial, {"format": "pt"})
    config = {
        "format": FORMAT,
        "kind": "head" if module.has_features else "decoder",
        "module": module.config.to_dict(),
        "target": {name: getattr(target, name) for name in DraftTarget.__dataclass_fields__},
        "figures": figures,
    }
    (folder / "README.md").write_text(card, encoding="utf-8")
    partial.chmod(0o644)
    partial.replace(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _check_target(description: DraftDescription, found: DraftTarget) -> None:
    made_for = description.target
    for name in ("vocabulary_rows", "hidden_size", "num_layers"):
        wanted, actual = getattr(made_for, name), getattr(found, name)
        if wanted != actual:
            raise ModelError(
                f"draft {description.folder} was made for {made_for.name} with {name} {wanted}; "
                f"{found.name} has {actual}",
                field="draft",
            )
    if made_for.weights != found.weights:
        _log.warning(
            "draft %s was made for other weights of %s: outputs stay exact, but fewer drafted "
            "tokens may be accepted",
            description.folder.name,
            made_for.name,
        )


def _embedding(model: PreTrainedModel) -> Tensor:
    embedding: Any = model.get_input_embeddings()
    weight: Tensor = embedding.weight
    return weight.detach()
