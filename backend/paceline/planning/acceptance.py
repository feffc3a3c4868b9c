"""How much of a draft is accepted: profiles of workloads, and profiles measured by you.

A profile holds the conditional acceptance at each depth, given that all depths before were
accepted, and the part of steps in which the drafter proposes anything (an n-gram drafter often
finds no match and then costs nothing). Acceptance is a property of a pair of models on a kind
of text: nothing predicts it well. The built-in profiles are published measurements of other
pairs, each with its source; use them to choose what to measure, then measure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.speedup import survivals_from_conditional

if TYPE_CHECKING:
    from collections.abc import Sequence


class DraftKind(StrEnum):
    """What drafts: an independent small model, a one-layer head, or a lookup in the text."""

    MODEL = "model"
    HEAD = "head"
    NGRAM = "ngram"

    @property
    def max_gamma(self) -> int:
        """Most tokens that Paceline drafts in a step. Long copies are where edits win."""
        return 16 if self is DraftKind.NGRAM else 6


@dataclass(frozen=True, slots=True)
class AcceptanceProfile:
    """Acceptance by depth. Depths beyond the last given one repeat it."""

    name: str
    accept_probs: tuple[float, ...]
    source: str
    proposal_rate: float = 1.0
    measured_here: bool = False

    def __post_init__(self) -> None:
        if not self.accept_probs:
            raise ConfigError("acceptance needs at least one number", field="acceptance")
        for accept_prob in (*self.accept_probs, self.proposal_rate):
            if not 0.0 <= accept_prob <= 1.0:
                raise ConfigError(
                    f"acceptance must lie between 0 and 1, got {accept_prob!r}",
                    field="acceptance",
                )

    def survivals(self, max_gamma: int) -> tuple[float, ...]:
        """Expected accepted tokens at depth 1 .. max_gamma for an average step.

        Steps without a proposal count as steps in which nothing was accepted.
        """
        last = self.accept_probs[-1]
        probs = list(self.accept_probs[:max_gamma])
        probs += [last] * (max_gamma - len(probs))
        return tuple(self.proposal_rate * s for s in survivals_from_conditional(probs))

    @property
    def first(self) -> float:
        """Acceptance of the first draft token, when there is one."""
        return self.accept_probs[0]


def profile_from_counts(
    name: str,
    accepted_per_position: Sequence[int],
    examined_per_position: Sequence[int],
    *,
    num_steps: int | None = None,
) -> AcceptanceProfile:
    """A profile from the counters that Paceline keeps, or that a measuring run has summed up.

    This is where measured acceptance enters a plan. A session's telemetry sample and the summary of
    a finished request have both counts: `passed_per_position` for what was accepted, by the rule
    that `examined_per_position` is counted by.

    Args:
        name: what was measured.
        accepted_per_position: how often the draft token at depth 1, 2, ... was accepted.
        examined_per_position: how often that depth was examined, that is, all tokens before it
            had been accepted. Depths may have been drafted in different numbers of steps. Behind
            the first depth it may be less than was accepted: block verification accepts tokens
            that the token rule, by which examined is counted, would not have come to.
        num_steps: target passes of the same requests, with those in which nothing was drafted;
            without it, every step is taken to have drafted.
    """
    if len(accepted_per_position) != len(examined_per_position):
        raise ConfigError(
            f"accepted_per_position has {len(accepted_per_position)} depths and "
            f"examined_per_position {len(examined_per_position)}",
            field="examined_per_position",
        )
    accept_probs = []
    for depth, (accepted, examined) in enumerate(
        zip(accepted_per_position, examined_per_position, strict=True), start=1
    ):
        if depth > 1 and 0 <= accepted <= accepted_per_position[depth - 2]:
            examined = max(examined, accepted)
        if not 0 <= accepted <= examined:
            raise ConfigError(
                f"accepted_per_position: depth {depth} was accepted {accepted} times but examined "
                f"{examined} times",
                field="accepted_per_position",
            )
        if examined == 0:
            break
        accept_probs.append(accepted / examined)
    if not accept_probs:
        raise ConfigError("nothing was examined", field="examined_per_position")
    drafted_steps = examined_per_position[0]
    if num_steps is None:
        num_steps = drafted_steps
    if num_steps < drafted_steps:
        raise ConfigError(
            f"num_steps {num_steps} is less than the {drafted_steps} steps that drafted",
            field="num_steps",
        )
    return AcceptanceProfile(
        name=name,
        accept_probs=tuple(accept_probs),
        source=f"measured over {drafted_steps} steps",
        proposal_rate=drafted_steps / num_steps,
        measured_here=True,
    )


# ------------------------------------------------------------------ built-in workloads

SIZE_SLOPE = 0.07
"""Acceptance gained when an independent draft grows tenfold. Mean slope of alpha over log10 of
the draft's size in five published series: T5-XXL with drafts of 77M, 250M and 800M on two tasks
at two temperatures (0.07, 0.09, 0.09, 0.03) and LaMDA 137B with drafts of 100M, 2B and 8B
(0.07); Leviathan et al., tables 2 and 3."""

_LOWEST, _HIGHEST = 0.02, 0.97


@dataclass(frozen=True, slots=True)
class ModelReference:
    """Acceptance that some pair of independent models had, and the sizes of that pair."""

    alpha: float
    draft_params: float
    target_params: float
    source: str

    def alpha_for(self, draft_params: float, target_params: float) -> float:
        """The alpha to expect of another pair, by the ratio of sizes alone."""
        decades = math.log10(draft_params / target_params) - math.log10(
            self.draft_params / self.target_params
        )
        return min(_HIGHEST, max(_LOWEST, self.alpha + SIZE_SLOPE * decades))


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of text with the acceptance that each kind of drafter was seen to have on it."""

    name: str
    description: str
    model: ModelReference
    head: AcceptanceProfile
    ngram: AcceptanceProfile

    def profile(
        self, kind: DraftKind, draft_params: float, target_params: float
    ) -> AcceptanceProfile:
        """The profile of a drafter of `kind`; sizes matter for independent models only."""
        match kind:
            case DraftKind.HEAD:
                return self.head
            case DraftKind.NGRAM:
                return self.ngram
            case DraftKind.MODEL:
                alpha = self.model.alpha_for(draft_params, target_params)
                return AcceptanceProfile(self.name, (alpha,), self.model.source)


def _from_survivals(name: str, survivals: Sequence[float], source: str) -> AcceptanceProfile:
    before = [1.0, *survivals[:-1]]
    probs = tuple(round(s / b, 3) for s, b in zip(survivals, before, strict=True))
    return AcceptanceProfile(name, probs, source)


_CHEN_CODE = ModelReference(
    0.85,
    4e9,
    70e9,
    "derived from Chen et al. 2023 (arXiv 2302.01318), table 1: HumanEval, 70B with a 4B draft, "
    "4 drafted: 2.46x at 1.8 ms a draft pass and 14.1 ms a target step means alpha 0.85",
)
_LAMDA_CHAT = ModelReference(
    0.71,
    2e9,
    137e9,
    "Leviathan et al. 2023 (arXiv 2211.17192), table 3: LaMDA 137B (dialogue) with a 2B draft, "
    "greedy: alpha 0.71",
)
_T5_SUMMARY = ModelReference(
    0.65,
    77e6,
    11e9,
    "Leviathan et al. 2023, table 2: CNN/DailyMail, T5-XXL with T5-small, greedy: alpha 0.65 "
    "(0.53 at temperature 1)",
)
_ASSUMED_PROSE = ModelReference(
    0.35,
    1e9,
    70e9,
    "an assumption, not a measurement: above temperature 1 acceptance falls steeply, and field "
    "reports of untuned pairs range from 0.17 to 0.40",
)
_HEAD_CODE = _from_survivals(
    "code-completion",
    (0.837, 0.685, 0.562, 0.460, 0.368, 0.283, 0.217, 0.161),
    "vllm-project/speculators issue 1135: Llama-3.2-1B with a trained block drafter, HumanEval, "
    "accepted by position",
)
_HEAD_CHAT = _from_survivals(
    "chat",
    (0.76, 0.60, 0.43, 0.29, 0.24, 0.14, 0.08),
    "vllm-project/vllm issue 20780: Llama-3.1-8B with EAGLE-3, MT-bench; mean acceptance length "
    "2.36, 2.79, 3.08, 3.32, 3.46, 3.54 at 2 to 7 drafted (the first two depths split by us)",
)
_HEAD_WRITING = _from_survivals(
    "high-temperature-prose",
    (0.617, 0.388, 0.244, 0.158, 0.099, 0.062, 0.041, 0.026),
    "vllm-project/speculators issue 1135, writing: an upper bound for hotter sampling",
)
_PLD = "Spec-Bench, prompt lookup with Vicuna-7B on an A100"

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload(
            "code-edit",
            "change a file and print it again: most of the output stands in the prompt",
            _CHEN_CODE,
            _from_survivals(
                "code-edit",
                (0.77, 0.45, 0.24),
                "vllm-project/vllm pull request 24344: EAGLE with 3 drafted on edit_5k_char",
            ),
            AcceptanceProfile(
                "code-edit",
                (0.81, 0.914, 0.946, 0.971, 0.971),
                "vllm-project/vllm pull request 24344: n-gram lookup with 5 drafted on "
                "edit_5k_char: accepted by position 0.81, 0.74, 0.70, 0.68, 0.66 in the 55 % of "
                "steps that had a match",
                proposal_rate=0.547,
            ),
        ),
        Workload(
            "code-completion",
            "write new code: much boilerplate, little to copy",
            _CHEN_CODE,
            _HEAD_CODE,
            AcceptanceProfile(
                "code-completion",
                (0.43,),
                f"{_PLD}: 1.75 tokens a step overall with 10 drafted means alpha 0.43",
            ),
        ),
        Workload(
            "chat",
            "assistant answers in a conversation",
            _LAMDA_CHAT,
            _HEAD_CHAT,
            AcceptanceProfile(
                "chat",
                (0.375,),
                f"{_PLD}: 1.60x in conversation with 10 drafted means alpha 0.375",
            ),
        ),
        Workload(
            "summarise",
            "shorten a text that stands in the prompt",
            _T5_SUMMARY,
            replace(_HEAD_CHAT, name="summarise", source=f"taken from chat: {_HEAD_CHAT.source}"),
            AcceptanceProfile(
                "summarise",
                (0.626,),
                f"{_PLD}: 2.66x in summarisation with 10 drafted means alpha 0.63",
            ),
        ),
        Workload(
            "high-temperature-prose",
            "free writing at temperature above 1: nothing is predictable",
            _ASSUMED_PROSE,
            _HEAD_WRITING,
            AcceptanceProfile(
                "high-temperature-prose",
                (0.11,),
                "kekzl/imp pull request 1460: 11 % of n-gram drafts accepted on ordinary prose",
            ),
        ),
    )
}


def find_workload(name: str) -> Workload:
    """The workload of that name; raises ConfigError with all names if there is none."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    workload = WORKLOADS.get(key)
    if workload is None:
        raise ConfigError(
            f"unknown workload {name!r}; known: {', '.join(WORKLOADS)}", field="workload"
        )
    return workload
