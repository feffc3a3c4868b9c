"""Puts an engine together from a target, perhaps a draft model, and sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from paceline.cache.prefix import PrefixCache
from paceline.core.controller import Controller, ControllerSettings
from paceline.core.controller_gate import OFF_BELOW
from paceline.core.cost import CostModel
from paceline.core.errors import ConfigError
from paceline.core.request import DrafterKind
from paceline.engine.adaptive_policy import FORCED_DEPTH, AdaptivePolicy
from paceline.engine.calibration import Calibration
from paceline.engine.drafters.auto import AutoDrafter
from paceline.engine.drafters.forced import ForcedDrafter
from paceline.engine.drafters.head import HeadDrafter
from paceline.engine.drafters.model import ModelDrafter
from paceline.engine.drafters.ngram import NgramDrafter
from paceline.engine.drafters.null import NullDrafter
from paceline.engine.engine import Engine
from paceline.engine.policy import FixedPolicy
from paceline.engine.scheduler import Scheduler
from paceline.engine.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from paceline.core.cost import CostTable
    from paceline.core.limits import EngineLimits
    from paceline.engine.drafters.interface import Drafter, DraftModel
    from paceline.engine.policy import SpeculationPolicy
    from paceline.engine.runner import Runner
    from paceline.engine.sequence import TextStream
    from paceline.model.draft_runner import DraftModuleRunner
    from paceline.sampling.grammar import GrammarCompiler


@dataclass(frozen=True, slots=True)
class ModelPart:
    """One model as the engine sees it. scrub: zeroes blocks of its K/V memory."""

    runner: Runner
    max_model_len: int
    scrub: Callable[[Many[int]], None]


@dataclass(frozen=True, slots=True)
class HeadPart:
    """A draft module that borrows from the target, as the engine sees it. max_model_len: the
    target's. The target's runner must tap the features that it names."""

    runner: DraftModuleRunner
    max_model_len: int
    scrub: Callable[[Many[int]], None]


def assemble(
    *,
    target: ModelPart,
    draft: ModelPart | HeadPart | None,
    drafter: DrafterKind,
    limits: EngineLimits,
    text_stream: Callable[[tuple[int, ...]], TextStream],
    token_budget: int,
    num_speculative_tokens: int,
    min_acceptance: float = OFF_BELOW,
    prefix_caching: bool = True,
    policy: SpeculationPolicy | None = None,
    costs: Callable[[Callable[[], CostTable]], CostTable] | None = None,
    grammars: GrammarCompiler | None = None,
) -> Engine:
    """An engine ready to step.

    num_speculative_tokens: the most tokens drafted in a step. min_acceptance: the session gate's
    threshold. costs: makes speculation adaptive;
    gets the function that measures the cost table and returns one, measured or kept from earlier.
    policy: another one than follows from these; without both every draft has the full number.
    grammars: for requests that have one.

    Raises:
        ConfigError: `drafter` is MODEL without a draft model.
    """
    chosen = make_drafter(drafter, draft, limits)
    verifier = Verifier(
        target.runner, block_size=limits.block_size, vocabulary_size=limits.vocabulary_size
    )
    chosen_policy = policy
    if chosen_policy is None and costs is not None:
        ngram, model = drafters_of(chosen)
        scrubs = [target.scrub] if draft is None else [target.scrub, draft.scrub]

        def scrub(blocks: Many[int]) -> None:
            for each in scrubs:
                each(blocks)

        table = costs(Calibration(verifier, model, limits, token_budget, scrub).measure)
        controller = Controller(
            CostModel(table),
            ControllerSettings(limits.max_sequences, min_acceptance=min_acceptance),
        )
        chosen_policy = AdaptivePolicy(
            controller,
            ngram=ngram,
            model=model,
            max_depth=num_speculative_tokens,
            forced_depth=min(FORCED_DEPTH, num_speculative_tokens),
        )
    if chosen_policy is None:
        chosen_policy = FixedPolicy(num_speculative_tokens)
    drafter_with_grammars = ForcedDrafter(chosen)
    cache = PrefixCache(limits.num_blocks, limits.block_size, enabled=prefix_caching)
    return Engine(
        scheduler=Scheduler(cache, limits, drafter_with_grammars, chosen_policy, token_budget),
        verifier=verifier,
        drafter=drafter_with_grammars,
        policy=chosen_policy,
        limits=limits,
        text_stream=text_stream,
        scrub=target.scrub,
        grammars=grammars,
    )


def drafters_of(drafter: Drafter) -> tuple[NgramDrafter | None, DraftModel | None]:
    """The n-gram drafter and the one with a model that a drafter is or holds."""
    match drafter:
        case AutoDrafter():
            return drafter.ngram, drafter.model
        case NgramDrafter():
            return drafter, None
        case ModelDrafter() | HeadDrafter():
            return None, drafter
        case _:
            return None, None


def make_drafter(
    kind: DrafterKind, draft: ModelPart | HeadPart | None, limits: EngineLimits
) -> Drafter:
    """The drafter for the server's choice; a request may narrow it further."""
    model: DraftModel | None = None
    if isinstance(draft, HeadPart):
        model = HeadDrafter(
            draft.runner,
            block_size=limits.block_size,
            vocabulary_size=limits.vocabulary_size,
            max_model_len=draft.max_model_len,
            scrub=draft.scrub,
        )
    elif draft is not None:
        model = ModelDrafter(
            draft.runner,
            block_size=limits.block_size,
            vocabulary_size=limits.vocabulary_size,
            max_model_len=draft.max_model_len,
            scrub=draft.scrub,
        )
    match kind:
        case DrafterKind.NONE:
            return NullDrafter()
        case DrafterKind.NGRAM:
            return NgramDrafter()
        case DrafterKind.MODEL:
            if model is None:
                raise ConfigError("the drafter `model` needs a draft model", field="draft")
            return model
        case DrafterKind.AUTO:
            return NgramDrafter() if model is None else AutoDrafter(NgramDrafter(), model)
