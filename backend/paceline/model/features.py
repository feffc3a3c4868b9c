"""Hidden states of the target that a drafter asks for, tapped while the forward pass runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from paceline.core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

FINAL_NORM = -1


class FeatureTap:
    """Collects the outputs of decoder layers (by index) and of the final norm (`FINAL_NORM`).

    Lives as long as the model. Between `begin` and `take` one forward pass must run.
    """

    def __init__(self, model: nn.Module, layers: Sequence[int]) -> None:
        self._layers = tuple(layers)
        self._captured: dict[int, Tensor] = {}
        if not self._layers:
            return
        base = getattr(model, "base_model", model)
        decoder = getattr(base, "layers", None)
        norm = getattr(base, "norm", None)
        if decoder is None or norm is None:
            raise UnsupportedModelError(
                f"{type(model).__name__} has no `layers` and `norm` to take features from; "
                "use an independent draft model instead of a head"
            )
        for index in set(self._layers):
            module = norm if index == FINAL_NORM else decoder[index]
            module.register_forward_hook(self._hook(index))

    def begin(self) -> None:
        self._captured.clear()

    def take(self) -> Tensor | None:
        """[T, F]: the features side by side in the order asked for; None if none was."""
        if not self._layers:
            return None
        parts = [self._captured[index][0] for index in self._layers]
        self._captured.clear()
        return torch.cat(parts, dim=-1)

    def _hook(self, index: int) -> Any:
        def capture(module: nn.Module, args: object, output: Tensor | tuple[Tensor, ...]) -> None:
            self._captured[index] = output[0] if isinstance(output, tuple) else output

        return capture
