"""What transformers itself says about an output: the yardstick of the equality tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import PreTrainedModel

# float32 logits of order 10 summed in another order differ by less than this.
ROUNDING = 2e-4


@dataclass(frozen=True, slots=True)
class Comparison:
    """num_ties: tokens that are not the reference's own choice, but whose logit is nearer to it
    than rounding explains. wrong: positions where it is not, with the distance."""

    num_tokens: int
    num_ties: int
    wrong: tuple[tuple[int, float], ...]


@torch.no_grad()
def compare_greedy(
    reference: PreTrainedModel, prompt: Sequence[int], output: Sequence[int]
) -> Comparison:
    """Walk along an output that was decoded greedily, in one pass of the unchanged model.

    At a tie the comparison goes on along the given text, so each token is judged by the
    reference's distribution after exactly the tokens before it.
    """
    tokens = torch.tensor([[*prompt, *output]])
    logits = reference(input_ids=tokens, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
    chosen = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
    distance = logits.amax(-1) - chosen
    is_same = logits.argmax(-1) == torch.tensor(output)
    is_tie = ~is_same & (distance < ROUNDING * logits.abs().amax())
    wrong = (~is_same & ~is_tie).nonzero()[:, 0].tolist()
    return Comparison(
        num_tokens=len(output),
        num_ties=int(is_tie.sum()),
        wrong=tuple((index, float(distance[index])) for index in wrong),
    )
