"""A head that drafts before it is trained.

Two facts give it a start. The target's last layer is a good last layer, so the head's layer is a
copy of it. And what that layer expects, the hidden state that enters it at position ``i``, is
largely a linear function of the features of position ``i - 1`` and the embedding of token ``i``: a
ridge regression over some tens of thousands of positions gives the head's input projections. On
SmolLM2-135M this alone reaches the acceptance of hundreds of steps of training from a copy without
it.

Where the target has no layers of the expected names, the parts that don't fit stay random.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from paceline.model.draft_head import unit_rms
from paceline.model.features import FINAL_NORM

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor, nn
    from transformers import PreTrainedModel

    from paceline.model.draft_head import DraftLayer, DraftModule

RIDGE = 3e-3
_log = logging.getLogger(__name__)


@torch.no_grad()
def copy_from_target(
    module: DraftModule, model: PreTrainedModel, output_ids: Tensor, layers: Sequence[int]
) -> None:
    """Copy the target's decoder layers ``layers`` (one for each of the draft's, negative from the
    end), its final norm and its output rows."""
    target: Any = model
    decoder = target.base_model.layers
    for draft_layer, index in zip(module.layers, layers, strict=True):
        copied = _copy_layer(draft_layer, decoder[index])  # type: ignore[arg-type]
        _log.info("draft layer from layer %d of the target: %s", index, copied)
    _copy(module.output_norm, target.base_model.norm)
    module.output.weight.copy_(target.get_output_embeddings().weight[output_ids])
    if not module.has_features:
        # The first layer expects the embedding as the target feeds it: the draft scales rows to
        # unit root mean square first, so the typical scale is put back.
        scale = module.borrowed_embedding.float().pow(2).mean().sqrt()
        module.token_projection.weight.copy_(torch.eye(module.config.hidden_size) * scale)


def _copy_layer(layer: DraftLayer, source: Any) -> str:
    """What could be copied, for the log."""
    attention, feed_forward = source.self_attn, source.mlp
    stacked = {
        "query_key_value": [getattr(attention, f"{name}_proj", None) for name in "qkv"],
        "gate_up": [getattr(feed_forward, f"{name}_proj", None) for name in ("gate", "up")],
        "attention_output": [getattr(attention, "o_proj", None)],
        "down": [getattr(feed_forward, "down_proj", None)],
    }
    copied = []
    for name, parts in stacked.items():
        mine = getattr(layer, name).weight
        if any(part is None for part in parts):
            continue
        weight = torch.cat([part.weight for part in parts])  # type: ignore[union-attr]
        if weight.shape == mine.shape:
            mine.copy_(weight)
            copied.append(name)
    copied += [name for name, done in _copy_norms(layer, source) if done]
    return ", ".join(copied) or "nothing"


def _copy_norms(layer: DraftLayer, source: Any) -> list[tuple[str, bool]]:
    return [
        ("attention_norm", _copy(layer.attention_norm, getattr(source, "input_layernorm", None))),
        (
            "feed_forward_norm",
            _copy(layer.feed_forward_norm, getattr(source, "post_attention_layernorm", None)),
        ),
    ]


def _copy(mine: nn.Module, theirs: Any) -> bool:
    if theirs is None or theirs.weight.shape != mine.weight.shape:
        return False
    mine.weight.copy_(theirs.weight)  # type: ignore[operator]
    return True


@torch.no_grad()
def fit_inputs(
    module: DraftModule,
    sequences: Sequence[tuple[Tensor, Tensor]],
    final_norm: Tensor,
) -> float:
    """Regress what enters the target's last layer on what the head is given, and set the input
    projections to the result.

    ``sequences``: token ids ``[n]`` and features ``[n, F, H]`` of each; the features must end with
    the input of the last layer and the final norm, in this order. ``final_norm [H]``: the weight of
    the target's final norm. Returns the fraction of variance left unexplained.
    """
    config = module.config
    if len(config.feature_layers) < 2 or config.feature_layers[-1] != FINAL_NORM:
        raise ValueError(
            "feature_layers must end with the layer before the last and the final norm (-1), not "
            f"{config.feature_layers}"
        )
    hidden, eps = config.hidden_size, config.rms_norm_eps
    width = hidden * len(config.feature_layers)
    inputs, wanted, finals = [], [], []
    for ids, features in sequences:
        # Row 1 is left out: the first position attends to nothing and looks like no other.
        before = unit_rms(features[1:-1].float(), eps).flatten(1)
        tokens = unit_rms(module.borrowed_embedding[ids[2:]].float(), eps)
        inputs.append(torch.cat((before, tokens), dim=1))
        wanted.append(features[2:, -2].float())
        finals.append(unit_rms(features[1:-1, -1].float() / final_norm.float(), eps))
    x, y, final = torch.cat(inputs), torch.cat(wanted), torch.cat(finals)
    scale = y.pow(2).mean(1, keepdim=True).sqrt()
    y = y / scale * scale.median()
    solution = _ridge(x, y)
    unexplained = (y - x @ solution.T).pow(2).mean() / y.pow(2).mean()
    module.feature_projection.weight.copy_(solution[:, :width])
    module.token_projection.weight.copy_(solution[:, width:])
    # The head's own hidden row stands for the state before the final norm, whose direction the
    # final norm's output gives once its weight is divided out.
    rest = y - x[:, width:] @ solution[:, width:].T
    module.recurrent_projection.weight.copy_(_ridge(final, rest))
    return float(unexplained)


def _ridge(x: Tensor, y: Tensor) -> Tensor:
    """``W`` that minimises ``|x W' - y|^2`` with a ridge scaled to unit-variance inputs."""
    gram = x.T @ x + torch.eye(x.shape[1], device=x.device) * (RIDGE * len(x))
    solution: Tensor = torch.linalg.solve(gram, x.T @ y)
    return solution.T
