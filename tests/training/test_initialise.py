"""The head's start: copied layers, regressed inputs."""

from __future__ import annotations

import torch

from paceline.model.draft_head import DraftModule, DraftModuleConfig, unit_rms
from paceline.training.initialise import copy_from_target, fit_inputs
from tests.tiny_models import tiny_llama
from tests.training.modules import HIDDEN, VOCABULARY, embedding_of, tiny_module


def test_a_linear_relation_is_found() -> None:
    torch.manual_seed(0)
    module = tiny_module(0).float()
    eps = module.config.rms_norm_eps
    true_features = torch.randn(HIDDEN, 3 * HIDDEN) / 8
    true_tokens = torch.randn(HIDDEN, HIDDEN) / 4
    sequences = []
    for _ in range(30):
        ids = torch.randint(0, VOCABULARY, (40,))
        features = torch.randn(40, 3, HIDDEN)
        tokens = unit_rms(module.borrowed_embedding[ids].float(), eps)
        for row in range(1, 40):
            before = unit_rms(features[row - 1], eps).flatten()
            entering = before @ true_features.T + tokens[row] @ true_tokens.T
            features[row, -2] = unit_rms(entering, eps)
        sequences.append((ids, features))
    unexplained = fit_inputs(module, sequences, torch.ones(HIDDEN))
    # The wanted rows are scaled to one size each, which no linear map does exactly.
    assert unexplained < 0.05
    ratio = torch.nn.functional.cosine_similarity(
        module.token_projection.weight.flatten(), true_tokens.flatten(), dim=0
    )
    assert ratio > 0.98


def test_the_targets_last_layer_is_copied() -> None:
    target = tiny_llama(4, layers=3)
    output_ids = torch.tensor([1, 5, 9, 33])
    config = DraftModuleConfig(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_output_ids=4,
        feature_layers=(1, -1),
        rope_theta=10000.0,
        rms_norm_eps=target.config.rms_norm_eps,
    )
    module = DraftModule(config, embedding_of(target))
    copy_from_target(module, target, output_ids, (-1,))
    # Fed with what enters the target's last layer, the draft's layer does what the target does.
    ids = torch.randint(0, 64, (1, 7))
    with torch.no_grad():
        expected = target(ids, output_hidden_states=True)
        entering = expected.hidden_states[-2][0]

        def attend(
            layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
        ) -> torch.Tensor:
            output = torch.nn.functional.scaled_dot_product_attention(
                query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1),
                is_causal=True, enable_gqa=True,
            )  # fmt: skip
            return output.transpose(0, 1)

        hidden = module(entering, torch.arange(7), attend)
        logits = module.logits(hidden)
    torch.testing.assert_close(logits, expected.logits[0][:, output_ids], rtol=1e-4, atol=1e-4)
