"""Many sequences of two table models at once, through the real drafting and verification.

A table model's logits depend on the last two tokens, so exact laws are easily written down and a
hundred thousand sequences cost seconds. Everything but the forward passes is the real thing: noise
keys, warping, drafting, rules.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch

from paceline.core.request import SamplingParams
from paceline.sampling.acceptance import AcceptRule, Drafted
from paceline.sampling.verification import NoiseKeys, draft_tokens, verify
from tests.reference import joint_law, warped

if TYPE_CHECKING:
    import numpy.typing as npt
    from torch import Tensor

    from tests.reference import Law

    Int64s = npt.NDArray[np.int64]


@dataclass
class TablePair:
    """A target and a draft over a small vocabulary. params: of every sequence."""

    vocabulary_size: int = 3
    seed: int = 0
    spread: float = 1.2
    params: SamplingParams = field(default_factory=SamplingParams)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        shape = (self.vocabulary_size + 1, self.vocabulary_size + 1, self.vocabulary_size)
        self.target = torch.from_numpy(generator.normal(size=shape) * self.spread).float()
        self.draft = torch.from_numpy(generator.normal(size=shape) * self.spread).float()

    def law(self, length: int) -> Law:
        """Exact law of the first tokens."""

        def row_of(prefix: tuple[int, ...]) -> npt.NDArray[np.float64]:
            before, last = ((self.vocabulary_size,) * 2 + prefix)[-2:]
            p = self.params
            return warped(
                self.target[before, last].double().numpy(),
                p.temperature,
                p.top_k,
                p.top_p,
                p.min_p,
            )

        return joint_law(row_of, length, self.vocabulary_size)


@dataclass
class Sampled:
    """counts: of the first tokens. rounds: Counter of (drafted, accepted)."""

    counts: Counter[tuple[int, ...]]
    rounds: Counter[tuple[int, int]]


def sample(
    pair: TablePair, num_sequences: int, length: int, depth: int, rule: AcceptRule
) -> Sampled:
    """Run whole sequences of `length` tokens, round by round."""
    size = pair.vocabulary_size
    tokens = np.full((num_sequences, length + depth + 3), size, dtype=np.int64)
    ends = np.full(num_sequences, 2, dtype=np.int64)
    seeds = np.random.default_rng(1234).integers(0, 2**63, num_sequences).astype(np.uint64)
    rounds: Counter[tuple[int, int]] = Counter()
    everyone = np.arange(num_sequences)
    for number in range(length):
        open_ = everyone[ends < length + 2]
        if not len(open_):
            break
        mine, end = tokens[open_], ends[open_]
        params = [pair.params] * len(open_)
        at = np.arange(len(open_))
        numbers = np.full(len(open_), number)
        draft_rows: list[Tensor] = []
        for step in range(depth):
            logits = pair.draft[mine[at, end + step - 2], mine[at, end + step - 1]]
            keys = NoiseKeys(seeds[open_], end + step, numbers)
            made = draft_tokens(logits, params, keys, size)
            mine[at, end + step] = made.token_ids.numpy()
            if made.rows is not None:
                draft_rows.append(made.rows)
        logits = torch.stack(
            [
                pair.target[mine[at, end + step - 2], mine[at, end + step - 1]]
                for step in range(depth + 1)
            ],
            1,
        ).flatten(0, 1)
        index = np.full((len(open_), depth), -1)
        if draft_rows:
            index = at[:, None] + np.arange(depth) * len(open_)
        drafted = Drafted(
            torch.from_numpy(mine[at[:, None], end[:, None] + np.arange(depth)]),
            np.full(len(open_), depth),
            at * (depth + 1),
            torch.cat(draft_rows) if draft_rows else None,
            index,
        )
        made_, _ = verify(logits, drafted, params, NoiseKeys(seeds[open_], end, numbers), rule)
        accepted, following = made_.num_accepted.numpy(), made_.next_token.numpy()
        mine[at, end + accepted] = following
        tokens[open_] = mine
        ends[open_] = end + accepted + 1
        rounds.update((depth, int(count)) for count in accepted)
    counts = Counter(tuple(row) for row in tokens[:, 2 : 2 + length].tolist())
    return Sampled(counts, rounds)
