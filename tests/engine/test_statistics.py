"""What an engine counts of itself and of its sessions."""

from __future__ import annotations

import pytest

from paceline.cache.prefix import PrefixCache
from paceline.core.events import Gate
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams
from paceline.engine.drafters.null import NullDrafter
from paceline.engine.engine import Engine
from paceline.engine.policy import FixedPolicy
from paceline.engine.scheduler import Scheduler
from paceline.engine.verifier import Verifier
from tests.tiny_models import (
    VOCABULARY_SIZE,
    IdText,
    model_part,
    run_to_end,
    tiny_engine,
    tiny_llama,
)

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


def test_counts_by_depth_have_one_length_in_every_place() -> None:
    engine = tiny_engine(tiny_llama(5), tiny_llama(6), drafter=DrafterKind.MODEL)
    engine.watch(0.0)
    engine.submit(request("a", "s", count=40))
    summary = run_to_end(engine).finished["a"].summary
    [session] = engine.status().sessions
    for told in (session, summary):
        accepted, examined, passed = (
            told.accepted_per_position, told.examined_per_position, told.passed_per_position
        )  # fmt: skip
        assert len(accepted) == len(examined) == len(passed) > 0
        assert sum(examined) == summary.num_examined > sum(passed) == summary.num_passed
        assert all(good <= tested for good, tested in zip(passed, examined, strict=True))


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


def test_the_shares_of_the_sessions_make_the_step_that_is_told_with_them() -> None:
    engine = tiny_engine(tiny_llama(5), drafter=DrafterKind.NONE)
    engine.watch(0.0)
    engine.submit(request("idle", "idle", count=2))
    run_to_end(engine)
    for name, key in (("a", "one"), ("b", "two"), ("c", "two")):  # "two" has two lanes' work
        engine.submit(request(name, key))
    engine.step()
    engine.step()
    status = engine.status()
    assert status.watched_step is not None
    told = status.watched_step.times
    shares = {session.key: session.verify_ms for session in status.sessions}
    assert shares["idle"] == 0.0, "it took no part in that step"
    assert sum(shares.values()) == pytest.approx(told.verify_ms)
    assert shares["two"] == pytest.approx(2 * shares["one"])
    assert sum(session.other_ms for session in status.sessions) == pytest.approx(told.other_ms)

    engine.watch(1e9)
    engine.step()  # the sessions are not written down anew, and so neither is their step
    assert engine.status().sessions == status.sessions
    assert engine.status().watched_step == status.watched_step
    assert engine.status().times != told


def test_a_session_s_speed_is_that_of_the_last_two_seconds() -> None:
    now = 100.0
    drafter, policy = NullDrafter(), FixedPolicy(0)
    part = model_part(tiny_llama(5), 64, 4)
    limits = EngineLimits(512, 64, 4, 4, 4, VOCABULARY_SIZE)
    engine = Engine(
        scheduler=Scheduler(PrefixCache(64, 4), limits, drafter, policy, token_budget=32),
        verifier=Verifier(part.runner, block_size=4, vocabulary_size=VOCABULARY_SIZE),
        drafter=drafter,
        policy=policy,
        limits=limits,
        text_stream=lambda prompt_ids: IdText(),
        scrub=part.scrub,
        clock=lambda: now,
    )
    engine.watch(0.0)
    engine.submit(request("a", "one", count=60))
    speeds = []
    for number in range(40):
        now += 0.5 if number < 10 else 0.1
        engine.step()
        speeds.append(engine.status().sessions[0].tokens_per_second)
    assert speeds[0] is None, "one token makes no speed"
    assert speeds[9] == pytest.approx(2.0)
    assert speeds[-1] == pytest.approx(10.0), "the slow time before does not count any more"
    now += 60.0
    engine.cancel("a")
    engine.step()
    [session] = engine.status().sessions
    assert not session.active
    assert session.tokens_per_second == pytest.approx(10.0), "as of its last token"
