"""The training loop: time-boxed, resumable at any moment.

The learning rate and the unrolling depth follow the share of the time budget that is used up, not a
number of steps, so the result is as good as the budget allows whatever the machine. The weights
that are kept are an exponential moving average over steps.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from paceline.training.loss import LossWeights, output_loss
from paceline.training.unroll import rows_with_depth, unroll

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import Tensor

    from paceline.model.draft_head import DraftModule
    from paceline.training.batches import Batch, BatchSource

_START_ACCEPTANCE = 0.2
_EMA_EVERY = 2
_DEEP_ROWS = 0.6
"""Part of the rows whose loss is computed beyond depth 1: the output layer is half of the work."""


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """``learning_rate`` is the peak; the output layer has half of it. ``deepen_at``: the shares of
    the time budget from which depth 2, 3, ... are trained. ``depth_decay`` weighs depth ``d``
    by its ``d - 1``-th power."""

    learning_rate: float = 8e-4
    batch_sequences: int = 4
    warmup_steps: int = 100
    weight_decay: float = 0.05
    deepen_at: tuple[float, ...] = (0.3, 0.62)
    depth_decay: float = 0.8
    average_decay: float = 0.998
    loss: LossWeights = field(default_factory=LossWeights)


@dataclass(slots=True)
class Progress:
    """What the loop has done: ``step`` steps, ``tokens`` rows at depth 1, in ``elapsed_s`` seconds;
    ``acceptance``: running mean of alpha on training answers at each depth."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    acceptance: list[float] = field(default_factory=list)


class Trainer:
    """Trains ``module`` on batches of ``source``.

    ``checkpoint``: file that holds everything needed to go on; loaded now if it is there.
    """

    def __init__(
        self,
        module: DraftModule,
        source: BatchSource,
        options: TrainingOptions,
        checkpoint: Path,
    ) -> None:
        self._module = module
        self._source = source
        self._options = options
        self._checkpoint = checkpoint
        self._parameters: list[Tensor] = list(module.parameters())
        self._optimizer = _optimizer(module, options)
        self._average = [parameter.detach().clone() for parameter in self._parameters]
        max_depth = 1 + (len(options.deepen_at) if module.has_features else 0)
        self.progress = Progress(acceptance=[_START_ACCEPTANCE] * max_depth)
        if checkpoint.is_file():
            self._load()

    def run(
        self,
        budget_s: float,
        on_step: Callable[[Progress], None] = lambda progress: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Train until ``budget_s`` seconds are used up, counting those of earlier runs.

        ``on_step`` is called after every step and may raise to stop; what was done since the last
        :meth:`save` is then lost.
        """
        while self.progress.elapsed_s < budget_s:
            started = clock()
            share = self.progress.elapsed_s / budget_s
            batch = self._source.draw(self._options.batch_sequences)
            self._step(batch, self._depth(share), self._learning_rate(share))
            self.progress.step += 1
            self.progress.tokens += len(batch.answer)
            self.progress.elapsed_s += clock() - started
            on_step(self.progress)

    def averaged(self) -> _Averaged:
        """A context in which the module holds the averaged weights."""
        return _Averaged(self._parameters, self._average)

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        state = {
            "module": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "average": self._average,
            "progress": {
                "step": self.progress.step,
                "tokens": self.progress.tokens,
                "elapsed_s": self.progress.elapsed_s,
                "acceptance": self.progress.acceptance,
            },
        }
        partial = self._checkpoint.with_name(self._checkpoint.name + ".partial")
        torch.save(state, partial)
        partial.replace(self._checkpoint)

    def _load(self) -> None:
        state: dict[str, Any] = torch.load(
            self._checkpoint, map_location=self._parameters[0].device, weights_only=True
        )
        self._module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._average = state["average"]
        self.progress = Progress(**state["progress"])

    def _depth(self, share: float) -> int:
        reached = 1 + sum(share >= at for at in self._options.deepen_at)
        return min(reached, len(self.progress.acceptance))

    def _learning_rate(self, share: float) -> float:
        warmup = min(1.0, (self.progress.step + 1) / self._options.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
        return self._options.learning_rate * warmup * (0.03 + 0.97 * cosine)

    def _step(self, batch: Batch, depth: int, learning_rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate * group["rate_factor"]
        loss = self._loss(batch, depth)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        if self.progress.step % _EMA_EVERY == 0:
            self._update_average()

    def _loss(self, batch: Batch, depth: int) -> Tensor:
        device = self._parameters[0].device
        with torch.autocast(device.type, torch.bfloat16):
            states = unroll(self._module, batch.rows, depth)
        total = torch.zeros((), device=device)
        for index, hidden in enumerate(states):
            chosen = rows_with_depth(batch.rows.lengths, index + 1, device)[batch.chosen]
            if index:
                chosen &= torch.rand(len(chosen), device=device) < _DEEP_ROWS
            places = chosen.nonzero()[:, 0]
            if not len(places):
                continue
            rows = batch.chosen[places]
            parts = output_loss(
                self._module.output_norm(hidden[rows].float()),
                self._module.output.weight,
                batch.target.select(places),
                self._options.loss,
                self.progress.acceptance[index],
            )
            answered = parts.acceptance[batch.answer[rows]]
            if len(answered):
                mean = self.progress.acceptance[index]
                self.progress.acceptance[index] = 0.98 * mean + 0.02 * float(answered.mean())
            total = total + parts.loss * self._options.depth_decay**index
        return total

    @torch.no_grad()
    def _update_average(self) -> None:
        # Short at first, so that the average forgets the start quickly.
        step = self.progress.step
        decay = min(self._options.average_decay, (step + 1) / (step + 20)) ** _EMA_EVERY
        torch._foreach_lerp_(self._average, self._parameters, 1 - decay)


class _Averaged:
    def __init__(self, parameters: list[Tensor], average: list[Tensor]) -> None:
        self._parameters = parameters
        self._average = average
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def __enter__(self) -> None:
        self._kept = [parameter.detach().clone() for parameter in self._parameters]
        torch._foreach_copy_(self._parameters, self._average)

    @torch.no_grad()
    def __exit__(self, *error: object) -> None:
        torch._foreach_copy_(self._parameters, self._kept)


def _optimizer(module: DraftModule, options: TrainingOptions) -> torch.optim.AdamW:
    norms: list[Tensor] = []
    output: list[Tensor] = []
    rest: list[Tensor] = []
    for name, parameter in module.named_parameters():
        chosen = norms if "norm" in name else output if name.startswith("output.") else rest
        chosen.append(parameter)
    groups = [
        {"params": rest, "weight_decay": options.weight_decay, "rate_factor": 1.0},
        {"params": output, "weight_decay": options.weight_decay, "rate_factor": 0.5},
        {"params": norms, "weight_decay": 0.0, "rate_factor": 1.0},
    ]
    return torch.optim.AdamW(groups, lr=options.learning_rate, betas=(0.9, 0.98), fused=True)
