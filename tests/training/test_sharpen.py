"""The factor of the output norm."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch

from paceline.training.batches import BatchSource
from paceline.training.evaluation import evaluate
from paceline.training.sharpen import FACTORS, sharpen
from paceline.training.target_states import TargetStates
from paceline.training.token_store import TokenSequence, TokenStore, write_atomically
from tests.training.modules import HIDDEN, OUTPUTS, VOCABULARY, tiny_module

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path) -> BatchSource:
    """Answers of a target whose states are drawn at random."""
    torch.manual_seed(1)
    store = TokenStore(tmp_path)
    for _ in range(6):
        ids = tuple(torch.randint(0, VOCABULARY, (12,)).tolist())
        store.add(TokenSequence(ids, 3, 1.0))
    store.flush()
    (tokens,) = store.paths()
    count = 6 * 12
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=torch.float64)
    features = torch.randn(count, 3, HIDDEN, dtype=torch.float64)
    logits = features[:, -1] @ weight.T
    states = TargetStates(features, features[:, -1], logits.logsumexp(-1), logits.argmax(-1).int())
    path = tmp_path / "states-00000.safetensors"
    write_atomically(
        {
            "features": states.features,
            "log_normaliser": states.log_normaliser,
            "greedy": states.greedy,
        },
        path,
        {"feature_layers": "0,2,-1"},
    )
    output_ids = torch.arange(OUTPUTS)
    batches = BatchSource((0, 2, -1), output_ids, weight[output_ids], VOCABULARY, random.Random(0))
    batches.add(tokens, path)
    return batches


def test_the_best_factor_is_found_and_folded_in(source: BatchSource) -> None:
    module = tiny_module(2)
    norm = module.output_norm.weight.detach().clone()
    acceptances = {}
    for factor in FACTORS:
        with torch.no_grad():
            module.output_norm.weight.copy_(norm * factor)
        acceptances[factor] = evaluate(module, source, source.training, 1).mean_acceptance
    with torch.no_grad():
        module.output_norm.weight.copy_(norm)
    factor = sharpen(module, source, source.training)
    torch.testing.assert_close(module.output_norm.weight.detach(), norm * factor)
    found = evaluate(module, source, source.training, 1).mean_acceptance
    # Depth 2 has a say as well, so depth 1 may be a little off its own best.
    assert found >= acceptances[1.0] - 1e-3
    assert found >= max(acceptances.values()) - 0.02
