"""Draft folders: written, read back, refused."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.errors import ModelError
from paceline.model.draft_folder import (
    DraftTarget,
    describe_draft,
    fingerprint,
    is_draft_folder,
    load_draft,
    save_draft,
)
from paceline.model.draft_head import DraftModule, DraftModuleConfig
from tests.tiny_models import tiny_llama
from tests.training.modules import embedding_of

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

IDS = torch.tensor([2, 3, 5, 8, 13, 21])


def _save(
    folder: Path, target: PreTrainedModel, features: tuple[int, ...] = (0, -1)
) -> DraftModule:
    torch.manual_seed(9)
    config = DraftModuleConfig(
        hidden_size=32,
        intermediate_size=40,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_output_ids=len(IDS),
        feature_layers=features,
    )
    module = DraftModule(config, embedding_of(target))
    made_for = DraftTarget.of(target, "tiny")
    tail = torch.arange(made_for.vocabulary_rows - len(IDS)) / 8
    save_draft(folder, module, IDS, tail, made_for, "# card\n", {"steps": 1})
    return module


@pytest.mark.parametrize(("features", "kind"), [((0, -1), "head"), ((), "decoder")])
def test_a_draft_comes_back_in_the_targets_dtype(
    tmp_path: Path, features: tuple[int, ...], kind: str
) -> None:
    target = tiny_llama(1)
    module = _save(tmp_path, target, features)
    assert is_draft_folder(tmp_path)
    description = describe_draft(tmp_path)
    assert (description.kind, description.config) == (kind, module.config)
    loaded = load_draft(description, target, "tiny")
    assert loaded.output_ids.tolist() == IDS.tolist()
    num_others = description.target.vocabulary_rows - len(IDS)
    assert loaded.tail_logits is not None
    assert loaded.tail_logits.tolist() == [index / 8 for index in range(num_others)]
    assert loaded.module.output.weight.dtype == torch.float32
    for name, tensor in module.state_dict().items():
        expected = tensor.to(torch.bfloat16).float()
        torch.testing.assert_close(loaded.module.state_dict()[name], expected)
    assert not any(parameter.requires_grad for parameter in loaded.module.parameters())
    assert (tmp_path / "README.md").read_text() == "# card\n"


def test_a_draft_without_a_tail_is_one_all_the_same(tmp_path: Path) -> None:
    target = tiny_llama(1)
    _save(tmp_path, target)
    _rewrite(tmp_path, None)
    assert load_draft(describe_draft(tmp_path), target, "tiny").tail_logits is None


@pytest.mark.parametrize(
    "tail", [torch.zeros(3), torch.zeros(0), torch.full((58,), float("nan"))], ids=len
)
def test_a_tail_that_does_not_fit_is_refused(tmp_path: Path, tail: Tensor) -> None:
    target = tiny_llama(1)
    _save(tmp_path, target)
    _rewrite(tmp_path, tail)
    with pytest.raises(ModelError, match="tail_logits .* it takes 58 finite numbers"):
        load_draft(describe_draft(tmp_path), target, "tiny")


def _rewrite(folder: Path, tail: Tensor | None) -> None:
    """Another tail in the folder's weights, or none."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    del weights["tail_logits"]
    if tail is not None:
        weights["tail_logits"] = tail
    save_file(weights, path)


def test_the_fingerprint_ignores_dtype_and_sees_weights() -> None:
    target = tiny_llama(1)
    embedding, norm = embedding_of(target), target.model.norm.weight
    rounded = fingerprint(embedding.bfloat16(), norm.bfloat16())
    assert rounded == fingerprint(embedding, norm)
    assert rounded != fingerprint(embedding_of(tiny_llama(2)), norm)


def test_other_weights_are_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _save(tmp_path, tiny_llama(1))
    with caplog.at_level(logging.WARNING):
        load_draft(describe_draft(tmp_path), tiny_llama(2), "tiny")
    assert "other weights" in caplog.text


def test_another_structure_is_refused(tmp_path: Path) -> None:
    _save(tmp_path, tiny_llama(1))
    with pytest.raises(ModelError, match="num_layers 2"):
        load_draft(describe_draft(tmp_path), tiny_llama(1, layers=3), "other")


def test_what_is_no_draft_folder_says_so(tmp_path: Path) -> None:
    assert not is_draft_folder(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(ModelError, match="no draft folder"):
        describe_draft(tmp_path)


def test_a_broken_folder_is_refused(tmp_path: Path) -> None:
    target = tiny_llama(1)
    _save(tmp_path, target)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    config["module"]["num_output_ids"] = 5
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match="6 output ids"):
        load_draft(describe_draft(tmp_path), target, "tiny")
    del config["module"]["head_dim"]
    path.write_text(json.dumps(config))
    with pytest.raises(ModelError, match="is broken"):
        describe_draft(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    _save(tmp_path / "again", target)
    (tmp_path / "again" / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        load_draft(describe_draft(tmp_path / "again"), target, "tiny")
