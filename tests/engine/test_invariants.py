"""Random schedules of submits, cancels, preemptions and acceptances keep what must hold."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline.core.events import FinishReason
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.engine.assembly import ModelPart, assemble
from tests.engine.invariants import check_invariants
from tests.fakes import TableRunner, mixed_table, random_table
from tests.tiny_models import IdText, Outputs

if TYPE_CHECKING:
    from paceline.engine.engine import Engine

VOCABULARY = 6
TARGET = random_table(1, VOCABULARY)
DRAFT = mixed_table(TARGET, random_table(2, VOCABULARY), 0.7)


def table_engine(
    num_blocks: int,
    block_size: int,
    token_budget: int,
    drafter: DrafterKind,
    max_sequences: int = 4,
) -> tuple[Engine, TableRunner, TableRunner]:
    target = TableRunner(TARGET, num_blocks, block_size)
    draft = TableRunner(DRAFT, num_blocks, block_size)
    limits = EngineLimits(48, num_blocks, block_size, max_sequences, 100, VOCABULARY)
    engine = assemble(
        target=ModelPart(target, 48, target.scrub),
        draft=ModelPart(draft, 40, draft.scrub),
        drafter=drafter,
        limits=limits,
        text_stream=lambda prompt_ids: IdText(),
        token_budget=token_budget,
        num_speculative_tokens=3,
    )
    return engine, target, draft


def greedy_reference(prompt: tuple[int, ...], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(np.argmax(TARGET(tuple(tokens)))))
    return tokens[len(prompt) :]


requests = st.builds(
    lambda prompt, new, temperature, speculation, gamma, stop: Request(
        request_id="",
        prompt_ids=tuple(prompt),
        max_new_tokens=new,
        sampling=SamplingParams(temperature=temperature),
        speculation=speculation,
        num_speculative_tokens=gamma,
        stop_token_ids=frozenset(stop),
    ),
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=24),
    new=st.integers(0, 30),
    temperature=st.sampled_from([0.0, 1.0]),
    speculation=st.sampled_from(list(Speculation)),
    gamma=st.sampled_from([None, 0, 1, 2, 5]),
    stop=st.sets(st.integers(0, VOCABULARY - 1), max_size=1),
)
operations = st.lists(
    st.one_of(requests, st.just("step"), st.integers(0, 7)), min_size=1, max_size=40
)


@given(
    operations=operations,
    num_blocks=st.integers(6, 24),
    block_size=st.integers(1, 4),
    token_budget=st.integers(4, 24),
    drafter=st.sampled_from(list(DrafterKind)),
)
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)
def test_random_schedules(
    operations: list[Request | str | int],
    num_blocks: int,
    block_size: int,
    token_budget: int,
    drafter: DrafterKind,
) -> None:
    engine, target, draft = table_engine(num_blocks, block_size, token_budget, drafter)
    outputs = Outputs()
    submitted: dict[str, Request] = {}

    def step() -> None:
        outputs.add(engine.step().events)
        check_invariants(engine, outputs, target, draft)

    for operation in operations:
        if isinstance(operation, Request):
            if len(operation.prompt_ids) >= engine.limits.max_sequence_tokens:
                continue
            request_id = f"r{len(submitted)}"
            fields = {name: getattr(operation, name) for name in operation.__slots__}
            submitted[request_id] = Request(**(fields | {"request_id": request_id}))
            engine.submit(submitted[request_id])
        elif isinstance(operation, int):
            engine.cancel(f"r{operation}")
        else:
            step()
    for _ in range(3000):
        if not engine.has_work:
            break
        step()
    assert not engine.has_work, "the engine does not come to an end"
    assert set(outputs.finished) == set(submitted), "exactly one finish event each"
    assert engine._scheduler.cache.pool.num_referenced == 0
    for request_id, request in submitted.items():
        finish = outputs.finished[request_id]
        tokens = outputs.tokens.get(request_id, [])
        assert finish.error is None
        assert finish.usage.num_output == len(tokens)
        limit = engine.limits.max_sequence_tokens - len(request.prompt_ids)
        if finish.reason is FinishReason.LENGTH:
            assert len(tokens) == min(request.max_new_tokens, limit)
        if finish.reason is FinishReason.STOP:
            assert tokens[-1] in request.stop_token_ids
        assert not set(tokens[:-1]) & request.stop_token_ids, "a token after the stop"
        if request.sampling.is_greedy:
            assert tokens == greedy_reference(request.prompt_ids, len(tokens))


@pytest.mark.parametrize("gamma", range(1, 7))
def test_target_as_its_own_draft_is_always_accepted(gamma: int) -> None:
    """The test that finds stale or shifted K/V of the draft: any wrong row costs acceptance."""
    num_blocks, block_size = 200, 4
    target = TableRunner(TARGET, num_blocks, block_size)
    draft = TableRunner(TARGET, num_blocks, block_size)
    limits = EngineLimits(200, num_blocks, block_size, 8, 100, VOCABULARY)
    engine = assemble(
        target=ModelPart(target, 200, target.scrub),
        draft=ModelPart(draft, 200, draft.scrub),
        drafter=DrafterKind.MODEL,
        limits=limits,
        text_stream=lambda prompt_ids: IdText(),
        token_budget=64,
        num_speculative_tokens=gamma,
    )
    generator = random.Random(gamma)
    outputs = Outputs()
    for index in range(12):
        prompt = tuple(generator.randrange(VOCABULARY) for _ in range(generator.randrange(1, 40)))
        temperature = generator.choice([0.0, 0.5, 1.0])
        new = 10 * (gamma + 1) + 1
        engine.submit(Request(f"r{index}", prompt, new, SamplingParams(temperature=temperature)))
        for _ in range(generator.randrange(4)):
            outputs.add(engine.step().events)
            check_invariants(engine, outputs, target, draft)
        if index == 5:
            engine.cancel("r4")
    while engine.has_work:
        outputs.add(engine.step().events)
    for request_id, finish in outputs.finished.items():
        summary = finish.summary
        assert summary.num_accepted == summary.num_examined, "a draft of the same law was rejected"
        if finish.reason is FinishReason.LENGTH:
            # Plain steps come first, while the draft model catches up; the end may be clamped.
            unclamped = outputs.runs[request_id][:-1]
            assert set(unclamped) <= {1, gamma + 1}
            assert unclamped.count(gamma + 1) >= 8
