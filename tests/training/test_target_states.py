"""What is stored of the target against what transformers computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from paceline.model.features import FINAL_NORM
from paceline.training import target_states
from paceline.training.target_states import TargetEncoder, log_normaliser, read_states
from paceline.training.token_store import TokenSequence, TokenStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.training.conftest import TinyTarget


def test_blocked_reduction_equals_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target_states, "_VOCABULARY_CHUNK", 7)
    monkeypatch.setattr(target_states, "_ROW_CHUNK", 3)
    torch.manual_seed(0)
    hidden, weight = torch.randn(8, 5) * 3, torch.randn(23, 5)
    normaliser, greedy = log_normaliser(hidden, weight)
    logits = hidden @ weight.T
    torch.testing.assert_close(normaliser, logits.logsumexp(-1))
    assert greedy.tolist() == logits.argmax(-1).tolist()


@pytest.mark.parametrize("layers", [(0, 1, FINAL_NORM), (1,)])
def test_states_are_those_of_the_target(
    tiny_target: TinyTarget, layers: tuple[int, ...], tmp_path: Path
) -> None:
    model = tiny_target.load()
    store = TokenStore(tmp_path)
    sequences = [(5, 9, 1, 30, 22), (7, 8, 9, 10, 11, 12, 13, 14)]
    for ids in sequences:
        store.add(TokenSequence(ids, 2, 1.0))
    store.flush()
    calls: list[int] = []
    path = tmp_path / "states.safetensors"
    TargetEncoder(model, layers).encode_shard(store.paths()[0], path, lambda: calls.append(1))
    states = read_states(path, layers)
    start = 0
    for ids in sequences:
        with torch.no_grad():
            output = model(torch.tensor([ids]), output_hidden_states=True)
        rows = slice(start, start + len(ids))
        for column, layer in enumerate(layers):
            # transformers counts the embedding's output as hidden state 0.
            expected = output.hidden_states[-1 if layer == FINAL_NORM else layer + 1][0]
            torch.testing.assert_close(states.features[rows, column], expected)
        torch.testing.assert_close(states.final[rows], output.hidden_states[-1][0])
        torch.testing.assert_close(states.log_normaliser[rows], output.logits[0].logsumexp(-1))
        assert states.greedy[rows].tolist() == output.logits[0].argmax(-1).tolist()
        start += len(ids)
    assert len(calls) == len(sequences)
    with pytest.raises(ValueError, match="features of layers"):
        read_states(path, (0,))
