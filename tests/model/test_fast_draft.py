"""A draft module in our kernels gives what the module gives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from paceline.model import native
from paceline.model.batch import Segment, pack
from paceline.model.draft_folder import DraftDescription, DraftTarget, LoadedDraft
from paceline.model.draft_head import DraftModule, DraftModuleConfig
from paceline.model.draft_runner import DraftModuleRunner
from paceline.model.fast.draft import speed_up_draft

if TYPE_CHECKING:
    from torch import Tensor

BLOCK_SIZE = 4
VOCABULARY_SIZE = 80
NUM_OUTPUTS = 50

_KERNELS = native.load_kernels()
pytestmark = pytest.mark.skipif(
    _KERNELS is None or not _KERNELS.has_products,
    reason="no C++ compiler, or no bfloat16 dot products on this machine",
)


def draft_module(
    *, feature_layers: tuple[int, ...] = (1, -1), num_layers: int = 2, head_dim: int = 32
) -> DraftModule:
    """Random, in bfloat16, with norms that are not ones."""
    torch.manual_seed(9)
    config = DraftModuleConfig(
        hidden_size=64,
        intermediate_size=96,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        num_output_ids=NUM_OUTPUTS,
        feature_layers=feature_layers,
        num_layers=num_layers,
    )
    module = DraftModule(config, torch.randn(VOCABULARY_SIZE, 64).to(torch.bfloat16))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (parameter.dim() == 1))
    module.requires_grad_(False)
    return module.to(torch.bfloat16)


def as_float32(module: DraftModule) -> DraftModule:
    wide = DraftModule(module.config, module.borrowed_embedding.float())
    wide.load_state_dict({name: value.float() for name, value in module.state_dict().items()})
    return wide.requires_grad_(False)


def run(module: DraftModule, *, allow_native: bool) -> Tensor:
    """Logits of a catch-up of two sequences and of two drafted tokens behind each."""
    config, dtype = module.config, module.output.weight.dtype
    shape = (2, 8, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
    layers = [torch.zeros(shape, dtype=dtype) for _ in range(config.num_layers)]
    target = DraftTarget("tiny", "", VOCABULARY_SIZE, config.hidden_size, 3)
    description = DraftDescription(Path("nowhere"), config, target)
    draft = LoadedDraft(module, torch.arange(NUM_OUTPUTS), description)
    runner = DraftModuleRunner(draft, layers, allow_native=allow_native)
    generator = torch.Generator().manual_seed(2)
    features = torch.randn(9, runner.feature_width, generator=generator).to(dtype)
    tables = [[2, 0, 5], [4, 1]]
    batch = pack(
        [Segment([3, 9, 4, 7, 5], 0, tables[0], 1), Segment([1, 8, 6], 0, tables[1], 1)], BLOCK_SIZE
    )
    slots = batch.slots
    runner.keep_features(slots, features, np.arange(len(slots)))
    before = np.array([-1, *slots[:4], -1, *slots[5:7]])
    hidden = runner.forward(batch, runner.condition(before))
    outputs = [runner.logits(hidden)]
    last = hidden[[4, 7]]
    for depth in range(2):
        batch = pack(
            [
                Segment([11 + depth], 5 + depth, tables[0], 1),
                Segment([21 + depth], 3 + depth, tables[1], 1),
            ],
            BLOCK_SIZE,
        )
        last = runner.forward(batch, runner.recur(last))
        outputs.append(runner.logits(last))
    return torch.cat(outputs).float()


@pytest.mark.parametrize(
    ("feature_layers", "num_layers"), [((1, -1), 1), ((0, 1, -1), 2), ((), 1), ((), 3)]
)
def test_it_is_as_exact_as_the_module(feature_layers: tuple[int, ...], num_layers: int) -> None:
    def fresh() -> DraftModule:
        return draft_module(feature_layers=feature_layers, num_layers=num_layers)

    exact = run(as_float32(fresh()), allow_native=False)
    original = run(fresh(), allow_native=False)
    module = fresh()
    value = run(module, allow_native=True)
    assert module.output.weight.numel() == 0, "the weights have not moved into our kernels"
    scale = exact.norm()
    assert (value - exact).norm() / scale <= 1.3 * (original - exact).norm() / scale


def test_other_modules_stay_as_they_are() -> None:
    narrow = draft_module(head_dim=16)
    assert speed_up_draft(narrow, _KERNELS) is None
    assert narrow.output.weight.numel() > 0
    assert speed_up_draft(as_float32(draft_module()), _KERNELS) is None
    assert speed_up_draft(draft_module(), None) is None


def test_a_module_that_computes_something_else_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def scaled(self: DraftModule, hidden: Tensor) -> Tensor:
        return self.output(self.output_norm(hidden)) * 1.05  # type: ignore[no-any-return]

    monkeypatch.setattr(DraftModule, "logits", scaled)
    assert speed_up_draft(draft_module(), _KERNELS) is None
