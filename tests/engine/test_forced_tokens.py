"""Tokens that a grammar forces: accepted without rows of their own, and nobody can tell."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from paceline.core.controller import Controller, ControllerSettings
from paceline.core.cost import CostModel, CostTable, Curve
from paceline.core.events import FinishReason
from paceline.core.request import DrafterKind, Grammar, GrammarKind, Request, SamplingParams
from paceline.engine.adaptive_policy import AdaptivePolicy
from paceline.sampling.grammar import GrammarCompiler
from tests.statistical.letters import END, LETTERS, letters
from tests.statistical.tiny_law import PROMPT, draft_model, target_model
from tests.tiny_models import Outputs, tiny_engine

if TYPE_CHECKING:
    from paceline.engine.engine import Engine
    from paceline.engine.policy import SpeculationPolicy

# After f come ga, after c comes e; elsewhere the model chooses.
GRAMMAR = Grammar(GrammarKind.REGEX, "(abc|abd|ad|b|ce|fga){4,9}")


def _engine(policy: SpeculationPolicy | None = None) -> Engine:
    return tiny_engine(
        target_model(),
        draft_model(),
        drafter=DrafterKind.MODEL,
        num_speculative_tokens=2,
        num_blocks=200,
        block_size=2,
        max_sequences=8,
        token_budget=64,
        grammars=GrammarCompiler(letters, [END]),
        policy=policy,
    )


def _run(params: SamplingParams, **options: object) -> tuple[Outputs, int]:
    """Outputs of eight requests with seeds of their own, and rows of logits that were computed."""
    engine = _engine()
    num_rows = 0
    forward = engine._verifier._runner.forward

    def counting(batch: object) -> object:
        nonlocal num_rows
        output = forward(batch)  # type: ignore[arg-type]
        num_rows += len(output.logits)
        return output

    engine._verifier._runner.forward = counting  # type: ignore[method-assign, assignment]
    outputs = Outputs()
    for seed in range(8):
        seeded = replace(params, seed=seed)
        engine.submit(
            Request(f"r{seed}", PROMPT, 20, seeded, frozenset({END}), grammar=GRAMMAR, **options)  # type: ignore[arg-type]
        )
    while engine.has_work:
        outputs.add(engine.step().events)
    return outputs, num_rows


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_without_rows_of_their_own_the_output_stays_the_same(temperature: float) -> None:
    """Who asks for log-probabilities gets rows for all tokens, and the same tokens."""
    unseen, few_rows = _run(SamplingParams(temperature=temperature))
    seen, many_rows = _run(SamplingParams(temperature=temperature, top_logprobs=1))
    assert unseen.tokens == seen.tokens
    assert few_rows < many_rows
    assert any(LETTERS.index("f") in tokens for tokens in unseen.tokens.values())
    for name, event in unseen.finished.items():
        counted, all_counted = event.summary, seen.finished[name].summary
        assert counted.num_drafted == all_counted.num_drafted
        assert counted.num_accepted == all_counted.num_accepted
        assert counted.num_examined == all_counted.num_examined


@pytest.mark.parametrize(("banned", "temperature"), [("g", 0.0), ("g", 1.3), ("e", 1.3)])
def test_a_banned_token_that_is_forced_still_fails_the_request(
    banned: str, temperature: float
) -> None:
    params = SamplingParams(temperature=temperature, banned_token_ids=(LETTERS.index(banned),))
    outputs, _ = _run(params)
    failed = [e for e in outputs.finished.values() if e.reason is FinishReason.ERROR]
    assert failed
    assert all("no usable probabilities" in (event.error or "") for event in failed)
    assert all(LETTERS.index(banned) not in tokens for tokens in outputs.tokens.values())


def test_their_step_costs_what_its_rows_cost_and_no_rows_of_logits() -> None:
    curve = Curve((1, 64), (0.01, 0.02))
    controller = Controller(CostModel(CostTable(curve)), ControllerSettings(max_sequences=8))
    policy = AdaptivePolicy(controller, ngram=None, model=None)
    engine = _engine(policy)
    for seed in range(8):
        params = SamplingParams(temperature=1.3, seed=seed)
        engine.submit(Request(f"r{seed}", PROMPT, 20, params, frozenset({END}), grammar=GRAMMAR))
    num_forced = 0
    while engine.has_work:
        num_running = engine.status().num_running
        result = engine.step()
        num_forced += result.status.num_rows > num_running > 0
        base = policy.last_base
        assert base is not None
        assert base.num_drafted == 0
        assert base.num_logits <= base.num_sequences
        assert policy.predicted_seconds is not None
    assert num_forced > 0
