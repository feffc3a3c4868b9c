"""The exact law of a tiny transformer's first tokens, and the same model served by the engine."""

from __future__ import annotations

import copy
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from paceline.core.events import FinishReason
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from tests.reference import edited, joint_law, warped
from tests.tiny_models import Outputs, tiny_engine, tiny_llama

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from transformers import LlamaForCausalLM

    from paceline.core.request import Grammar
    from paceline.sampling.acceptance import AcceptRule
    from paceline.sampling.grammar import GrammarCompiler
    from tests.reference import Law

VOCABULARY_SIZE = 8
PROMPT = (1, 5, 2, 1, 5)
DEPTH = 2
NUM_TOKENS = 6
MEASURED = 4


def target_model() -> LlamaForCausalLM:
    return tiny_llama(3, vocabulary_size=VOCABULARY_SIZE, spread=0.35)


def draft_model() -> LlamaForCausalLM:
    """The target, disturbed: near enough to be accepted often, far enough to be rejected."""
    model = target_model()
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.add_(noise * weight.std() * 0.25)
    return model


class ExactLaw:
    """Conditional laws in float64 by transformers' own attention, without K/V cache or paging."""

    def __init__(self, params: SamplingParams, length: int) -> None:
        self._params = params
        model = copy.deepcopy(target_model()).double()
        model.set_attn_implementation("eager")
        self._logits: dict[tuple[int, ...], npt.NDArray[np.float64]] = {}
        for size in range(length + 1):
            prefixes = list(itertools.product(range(VOCABULARY_SIZE), repeat=size))
            for start in range(0, len(prefixes), 4096):
                part = prefixes[start : start + 4096]
                ids = torch.tensor([PROMPT + prefix for prefix in part])
                with torch.no_grad():
                    rows = model(input_ids=ids, use_cache=False).logits[:, -1]
                self._logits.update(zip(part, rows.numpy(), strict=True))

    def row_of(self, prefix: tuple[int, ...]) -> npt.NDArray[np.float64]:
        p = self._params
        logits = edited(
            self._logits[prefix],
            PROMPT,
            prefix,
            repetition=p.repetition_penalty,
            presence=p.presence_penalty,
            frequency=p.frequency_penalty,
            bias=dict(p.logit_bias),
            banned=p.banned_token_ids,
        )
        return warped(logits, p.temperature, p.top_k, p.top_p, p.min_p)

    def law(self, length: int) -> Law:
        return joint_law(self.row_of, length, VOCABULARY_SIZE)


@dataclass
class Served:
    """What many requests got. outputs: their tokens. first_round: how many drafted tokens were
    accepted in each one's first round, and how many tokens it had then; None without a round.
    rounds: (drafted, accepted) of every round."""

    outputs: list[tuple[int, ...]] = field(default_factory=list)
    first_round: list[tuple[int, int] | None] = field(default_factory=list)
    rounds: Counter[tuple[int, int]] = field(default_factory=Counter)
    num_preempted: int = 0
    num_cancelled: int = 0

    def counts(self, start: int, end: int) -> Counter[tuple[int, ...]]:
        return Counter(output[start:end] for output in self.outputs)


def serve(
    number: int,
    params: SamplingParams,
    rule: AcceptRule,
    drafter: DrafterKind,
    *,
    grammar: Grammar | None = None,
    grammars: GrammarCompiler | None = None,
    stop_token_ids: frozenset[int] = frozenset(),
    preempts: float = 0.0,
    may_fail: bool = False,
) -> Served:
    """Serve `number` equal requests among others that come, leave and want other things.

    grammars: compiles the grammar. Only with tokens to stop at may outputs be shorter than others.
    preempts: probability that, beside those that memory makes, a step begins with a preemption.
    may_fail: outputs that an error ended count with the tokens that they have.

    Requests join as there is room, blocks are too few for all that run, so that some are preempted,
    and neighbours (greedy, long, cancelled half-way) disturb them.
    """
    engine = tiny_engine(
        target_model(),
        draft_model() if drafter is DrafterKind.MODEL else None,
        drafter=drafter,
        num_speculative_tokens=DEPTH,
        num_blocks=300 if drafter is DrafterKind.MODEL else 500,
        block_size=2,
        max_sequences=128,
        token_budget=1024,
        grammars=grammars,
    )
    engine._verifier._sampled_rule = rule
    dice = random.Random(0)
    outputs = Outputs()
    served = Served()
    asked, neighbours, open_neighbours = 0, 0, []
    engine_schedule = engine._scheduler.schedule

    def schedule() -> object:
        plan = engine_schedule()
        served.num_preempted += len(plan.preempted)
        return plan

    engine._scheduler.schedule = schedule  # type: ignore[method-assign, assignment]
    while asked < number or engine.has_work:
        status = engine.status()
        for _ in range(max(0, 160 - status.num_waiting - status.num_running)):
            if asked == number:
                break
            seeded = params if params.seed is None else _with_seed(params, asked)
            engine.submit(
                Request(
                    f"r{asked}",
                    PROMPT,
                    NUM_TOKENS,
                    seeded,
                    stop_token_ids,
                    speculation=Speculation.ON,
                    grammar=grammar,
                )
            )
            asked += 1
            if dice.random() < 0.03:
                other = dice.choice([SamplingParams(temperature=0), SamplingParams(top_k=3)])
                name = f"n{neighbours}"
                engine.submit(Request(name, PROMPT[:3], 40, sampling=other))
                open_neighbours.append(name)
                neighbours += 1
        if open_neighbours and dice.random() < 0.3:
            engine.cancel(open_neighbours.pop(dice.randrange(len(open_neighbours))))
        running = engine._scheduler.running
        if preempts and running and dice.random() < preempts:
            engine._scheduler._preempt(dice.choice(list(running)))
            served.num_preempted += 1
        outputs.add(engine.step().events)
    for name, event in outputs.finished.items():
        if name.startswith("n"):
            served.num_cancelled += event.reason is FinishReason.CANCELLED
            continue
        may_stop = event.reason is FinishReason.STOP and stop_token_ids
        has_failed = event.reason is FinishReason.ERROR and may_fail
        assert event.reason is FinishReason.LENGTH or may_stop or has_failed
        served.outputs.append(tuple(outputs.tokens[name]))
        _count_rounds(served, outputs.sources[name])
    return served


def _with_seed(params: SamplingParams, seed: int) -> SamplingParams:
    values = {name: getattr(params, name) for name in SamplingParams.__slots__}
    return SamplingParams(**(values | {"seed": seed}))


def _count_rounds(served: Served, sources: list[str]) -> None:
    """Rounds of one request by the sources of its tokens: a run of accepted ones and the next."""
    accepted = made = 0
    first: tuple[int, int] | None = None
    for source in sources:
        if source == "accepted":
            accepted += 1
            continue
        if source != "plain":
            drafted = min(DEPTH, NUM_TOKENS - made - 1)
            served.rounds[drafted, accepted] += 1
            first = (accepted, made + accepted + 1) if first is None else first
        made += accepted + 1
        accepted = 0
    served.first_round.append(first)
