"""What the engine needs of a model: `model.runner.ModelRunner` is one, tests have others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from paceline.model.batch import PackedBatch
    from paceline.model.runner import ForwardOutput


class Runner(Protocol):
    """One causal model with its K/V memory."""

    def forward(self, batch: PackedBatch) -> ForwardOutput:
        """Compute the batch; its keys and values are in memory afterwards."""
        ...
