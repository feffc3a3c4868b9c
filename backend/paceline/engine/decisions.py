"""What the target decided in a step, on the device and read back to the host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from paceline.core.events import TokenLogprob
from paceline.sampling.acceptance import NextSource, match_greedy

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.sampling.acceptance import Acceptance
    from paceline.sampling.logprobs import RowLogprobs


@dataclass(frozen=True, slots=True)
class Decision:
    """Outcome of a round for one sequence; the fields are those of `sampling.Acceptance`.

    is_usable: False where the target's rows were not; nothing else counts then.
    logprobs: of the accepted tokens and the next one, empty unless they were asked for.
    """

    num_accepted: int
    next_token: int
    source: int
    is_usable: bool
    num_examined: int
    num_passed: int
    survival: tuple[float, ...]
    next_prob: float
    logprobs: tuple[TokenLogprob, ...] = ()


class Verdict(Protocol):
    """Outcome of a step for its sampled entries, not yet read back."""

    def read(self) -> list[Decision]:
        """Wait for the device and copy the outcome to the host."""
        ...


@dataclass(frozen=True, slots=True)
class GreedyVerdict:
    """That of entries which are all greedy and don't ask for logprobs: the drafts only have to be
    compared, which takes less time than to lay them out in tensors.

    highest, peaks: token and logit, [R], of the rows packed by entry. drafts: what was drafted for
    each entry and has rows. first_rows: where each one's rows begin. num_certain: as for
    `DrawnVerdict`.
    """

    highest: Tensor
    peaks: Tensor
    drafts: tuple[Many[int], ...]
    first_rows: tuple[int, ...]
    num_certain: tuple[int, ...]

    def read(self) -> list[Decision]:
        highest, peaks = self.highest.tolist(), self.peaks.tolist()
        decisions = []
        for draft, first, certain in zip(
            self.drafts, self.first_rows, self.num_certain, strict=True
        ):
            end = first + len(draft) + 1
            accepted, token = match_greedy(highest[first:end], draft)
            source = NextSource.BONUS if accepted == len(draft) else NextSource.RESIDUAL
            if not draft and not certain:
                source = NextSource.PLAIN
            decisions.append(
                Decision(
                    certain + accepted,
                    token,
                    source,
                    all(map(math.isfinite, peaks[first:end])),
                    certain + min(accepted + 1, len(draft)),
                    certain + accepted,
                    (1.0,) * (certain + accepted) + (0.0,) * (len(draft) - accepted),
                    1.0,
                )
            )
        return decisions


@dataclass(frozen=True, slots=True)
class DrawnVerdict:
    """That of any B entries.

    is_usable: bool [B]. num_certain: drafted tokens that were accepted unseen, of which acceptance
    and num_drafted know nothing. logprobs: packed by entry, num_accepted + 1 for each entry whose
    num_top is not None; None if there is none such.
    """

    acceptance: Acceptance
    is_usable: Tensor
    num_drafted: tuple[int, ...]
    num_certain: tuple[int, ...]
    num_top: tuple[int | None, ...]
    logprobs: RowLogprobs | None

    def read(self) -> list[Decision]:
        acceptance = self.acceptance
        fields = (
            acceptance.num_accepted,
            acceptance.next_token,
            acceptance.source,
            self.is_usable,
            acceptance.num_examined,
            acceptance.num_passed,
        )
        if self.is_usable.is_cuda:
            # Each read waits for the device, so there is one.
            counts = torch.stack([field.to(torch.int64) for field in fields], 1).tolist()
            odds = torch.cat((acceptance.next_prob[:, None], acceptance.survival), 1).tolist()
        else:
            counts = list(zip(*(field.tolist() for field in fields), strict=True))
            survivals = acceptance.survival.tolist()
            next_probs = acceptance.next_prob.tolist()
            odds = [[prob, *rest] for prob, rest in zip(next_probs, survivals, strict=True)]
        by_entry = self._read_logprobs([row[0] for row in counts])
        decisions = []
        for index, (row, (next_prob, *survival)) in enumerate(zip(counts, odds, strict=True)):
            accepted, token, source, usable, examined, passed = row
            certain = self.num_certain[index]
            decisions.append(
                Decision(
                    certain + accepted,
                    token,
                    int(NextSource.BONUS) if certain else source,
                    bool(usable),
                    certain + examined,
                    certain + passed,
                    (1.0,) * certain + tuple(survival[: self.num_drafted[index]]),
                    next_prob,
                    by_entry.get(index, ()),
                )
            )
        return decisions

    def _read_logprobs(self, num_accepted: list[int]) -> dict[int, tuple[TokenLogprob, ...]]:
        if self.logprobs is None:
            return {}
        rows = zip(
            self.logprobs.chosen.tolist(),
            self.logprobs.top_ids.tolist(),
            self.logprobs.top.tolist(),
            strict=True,
        )
        by_entry = {}
        for index, (accepted, num_top) in enumerate(zip(num_accepted, self.num_top, strict=True)):
            if num_top is not None:
                mine = [next(rows) for _ in range(accepted + 1)]
                by_entry[index] = tuple(
                    TokenLogprob(chosen, tuple(zip(ids[:num_top], top[:num_top], strict=True)))
                    for chosen, ids, top in mine
                )
        return by_entry
