"""What an engine counts of itself and of its sessions."""

from __future__ import annotations

import pytest

from paceline.core.events import Gate
from paceline.core.request import DrafterKind, Request, SamplingParams
from tests.tiny_models import run_to_end, tiny_engine, tiny_llama

GREEDY = SamplingParams(temperature=0.0)


def request(name: str, key: str = "", count: int = 12) -> Request:
    return Request(name, (1, 2, 3, 4, 5, 6), count, GREEDY, speculation_key=key)


def test_totals_agree_with_what_was_emitted() -> None:
    """The target drafts for itself, so that every draft is accepted."""
    model = tiny_llama(5)
    engine = tiny_engine(model, model, drafter=DrafterKind.MODEL, num_speculative_tokens=3)
    for name in ("a", "b"):
        engine.submit(request(name))
    outputs = run_to_end(engine)
    totals = engine.status().totals
    assert totals.num_output_tokens == sum(len(tokens) for tokens in outputs.tokens.values())
    assert totals.num_prompt_tokens == 12
    summaries = [event.summary for event in outputs.finished.values()]
    assert totals.num_drafted == sum(summary.num_drafted for summary in summaries)
    assert totals.num_accepted == sum(summary.num_accepted for summary in summaries) > 0
    assert totals.num_examined == totals.num_passed == totals.num_accepted
    assert sum(totals.accepted_per_position) == totals.num_accepted
    assert sum(totals.step_token_counts) == engine.status().step
    assert totals.step_token_sum == totals.num_output_tokens + totals.num_prompt_tokens
    assert totals.verify_seconds > 0


def test_sessions_are_written_down_only_while_somebody_watches() -> None:
    engine = tiny_engine(tiny_llama(5), drafter=DrafterKind.NGRAM)
    engine.submit(request("a", "s/lane"))
    run_to_end(engine)
    assert engine.status().sessions == ()
    engine.watch(0.0)
    engine.submit(request("b", "s/lane"))
    engine.step()
    [session] = engine.status().sessions
    assert (session.key, session.active, session.gate) == ("s/lane", True, Gate.ON)
    run_to_end(engine)
    [session] = engine.status().sessions
    assert not session.active, "an answer's end is always told"
    assert sum(session.gamma_histogram) >= 12
    assert session.tokens_per_step is not None
    assert session.time_to_first_token_ms is not None
    engine.watch(None)
    engine.submit(request("c", "other"))
    run_to_end(engine)
    assert [each.key for each in engine.status().sessions] == ["s/lane"]


def test_a_session_is_the_same_over_its_requests() -> None:
    engine = tiny_engine(tiny_llama(5), drafter=DrafterKind.NONE)
    engine.watch(0.0)
    for name in ("a", "b", "c"):
        engine.submit(request(name, "one", count=5))
        run_to_end(engine)
    [session] = engine.status().sessions
    assert session.gamma_histogram == (15,)
    assert session.tokens_per_step == pytest.approx(1.0)
    assert session.acceptance is None
