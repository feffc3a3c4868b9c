"""What a request gets from the engine in the ordinary and in the unpleasant cases.

The target counts: after token t comes t + 1 modulo 10, with certainty. The draft model counts too,
so whole drafts are accepted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
import torch

from paceline.core.errors import (
    ContextLengthError,
    EngineBusyError,
    EngineStoppedError,
    QueueFullError,
    RequestError,
)
from paceline.core.events import FinishEvent, FinishReason, StepResult, TokenSource
from paceline.core.limits import EngineLimits
from paceline.core.request import (
    DrafterKind,
    Grammar,
    GrammarKind,
    Request,
    SamplingParams,
    Speculation,
)
from paceline.engine.assembly import ModelPart, assemble
from paceline.engine.thread import EngineThread
from paceline.sampling.constraints import RowEdits
from paceline.sampling.grammar import GrammarCompiler
from tests.fakes import TableRunner
from tests.tiny_models import IdText, Outputs, run_to_end

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from paceline.engine.engine import Engine
    from paceline.model.batch import PackedBatch
    from paceline.model.runner import ForwardOutput
    from paceline.sampling.grammar import GrammarConstraint
    from tests.fakes import Row

GREEDY = SamplingParams(temperature=0)


def counting(prefix: tuple[int, ...]) -> Row:
    row = np.zeros(10)
    row[(prefix[-1] + 1) % 10] = 1.0
    return row


class BreakableRunner(TableRunner):
    """Gives NaN for every row whose newest token is `poison`, and leaves NaN in its memory's place
    by way of `poisoned`; raises when `error` is set."""

    poison: int | None = None
    error: Exception | None = None

    def forward(self, batch: PackedBatch) -> ForwardOutput:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        output = super().forward(batch)
        if self.poison is not None:
            is_poisoned = batch.token_ids[batch.logit_rows] == self.poison
            output.logits[torch.from_numpy(is_poisoned)] = float("nan")
        return output


def counting_engine(
    *,
    num_blocks: int = 64,
    max_waiting: int = 10,
    max_sequences: int = 4,
    gamma: int = 3,
    text_stream: Callable[[tuple[int, ...]], IdText] = lambda prompt_ids: IdText(),
    grammars: GrammarCompiler | None = None,
) -> tuple[Engine, BreakableRunner]:
    target = BreakableRunner(counting, num_blocks, 4)
    draft = TableRunner(counting, num_blocks, 4)
    engine = assemble(
        target=ModelPart(target, 100, target.scrub),
        draft=ModelPart(draft, 100, draft.scrub),
        drafter=DrafterKind.MODEL,
        limits=EngineLimits(100, num_blocks, 4, max_sequences, max_waiting, 10),
        text_stream=text_stream,
        token_budget=32,
        num_speculative_tokens=gamma,
        grammars=grammars,
    )
    return engine, target


def run(engine: Engine, *requests: Request) -> Outputs:
    for request in requests:
        engine.submit(request)
    return run_to_end(engine)


def test_tokens_text_and_sources() -> None:
    engine, _ = counting_engine()
    outputs = run(engine, Request("a", (0, 1), 9, GREEDY))
    assert outputs.tokens["a"] == [2, 3, 4, 5, 6, 7, 8, 9, 0]
    assert outputs.text["a"] == "2 3 4 5 6 7 8 9 0 "
    finish = outputs.finished["a"]
    assert finish.reason is FinishReason.LENGTH
    assert (finish.usage.num_prompt, finish.usage.num_output) == (2, 9)
    assert finish.summary.num_accepted == finish.summary.num_examined > 0
    accepted = sum(source is TokenSource.ACCEPTED for source in outputs.sources["a"])
    assert accepted == finish.summary.num_accepted


@pytest.mark.parametrize("gamma", [0, 1, 3, 6])
def test_a_stop_inside_an_accepted_run_ends_it_there(gamma: int) -> None:
    engine, _ = counting_engine(gamma=gamma)
    stopping = Request("a", (0, 1), 50, GREEDY, stop_token_ids=frozenset({7}))
    outputs = run(engine, stopping)
    assert outputs.tokens["a"] == [2, 3, 4, 5, 6, 7]
    assert outputs.text["a"] == "2 3 4 5 6 ", "the stop token has no text"
    finish = outputs.finished["a"]
    assert (finish.reason, finish.stop_match) == (FinishReason.STOP, 7)
    assert finish.usage.num_output == 6


@pytest.mark.parametrize("gamma", [0, 1, 3, 6])
def test_a_stop_string_across_tokens(gamma: int) -> None:
    engine, _ = counting_engine(gamma=gamma)
    outputs = run(engine, Request("a", (0, 1), 50, GREEDY, stop=("5 6",)))
    assert outputs.text["a"] == "2 3 4 "
    assert outputs.tokens["a"] == [2, 3, 4, 5, 6], "the token that completes the stop is the last"
    assert outputs.finished["a"].stop_match == "5 6"


def test_a_stop_wins_over_the_length_limit_at_the_same_token() -> None:
    engine, _ = counting_engine()
    request = Request("a", (0, 1), 6, GREEDY, stop_token_ids=frozenset({7}))
    assert run(engine, request).finished["a"].reason is FinishReason.STOP
    shorter = Request("b", (0, 1), 5, GREEDY, stop_token_ids=frozenset({7}))
    assert run(engine, shorter).finished["b"].reason is FinishReason.LENGTH


def test_held_back_text_comes_with_the_finish_event() -> None:
    engine, _ = counting_engine()
    outputs = run(engine, Request("a", (0, 1), 4, GREEDY, stop=("5 x",)))
    assert outputs.text["a"] == "2 3 4 5 "
    assert outputs.finished["a"].text == "5 "
    assert outputs.finished["a"].reason is FinishReason.LENGTH


def test_nothing_after_a_stop_is_cached() -> None:
    engine, target = counting_engine(gamma=6)
    run(engine, Request("a", (0, 1), 50, GREEDY, stop_token_ids=frozenset({4})))
    assert engine._scheduler.cache.pool.num_cached == 1
    cached = next(iter(engine._scheduler.cache.pool._cached))
    assert target.memory[cached].tolist() == [0, 1, 2, 3]


def test_a_second_turn_computes_only_what_is_new() -> None:
    engine, target = counting_engine()
    outputs = run(engine, Request("a", (0, 1, 2, 3, 4, 5, 6), 6, GREEDY))
    history = (0, 1, 2, 3, 4, 5, 6, *outputs.tokens["a"])
    before = target.num_tokens
    outputs = run(engine, Request("b", (*history, 5, 5, 5), 1, GREEDY, speculation=Speculation.OFF))
    # 13 tokens of history: its newest was never computed, and blocks have four tokens.
    assert outputs.finished["b"].usage.num_cached == 12
    assert target.num_tokens - before == 4


def test_a_warm_up_fills_the_cache_and_emits_nothing() -> None:
    engine, _ = counting_engine()
    prompt = tuple(range(10)) * 2
    outputs = run(engine, Request("warm", prompt, 0, GREEDY))
    assert outputs.tokens == {}
    assert outputs.finished["warm"].reason is FinishReason.LENGTH
    assert run(engine, Request("a", prompt, 1, GREEDY)).finished["a"].usage.num_cached == 16


def test_cancel_takes_effect_within_one_step() -> None:
    engine, _ = counting_engine()
    engine.submit(Request("a", (0, 1), 50, GREEDY))
    engine.submit(Request("b", (0, 2), 40, GREEDY))
    outputs = Outputs()
    for _ in range(2):
        outputs.add(engine.step().events)
    engine.cancel("a")
    engine.cancel("never heard of")
    outputs.add(engine.step().events)
    assert outputs.finished["a"].reason is FinishReason.CANCELLED
    assert [s.request_id for s in engine._scheduler.running] == ["b"]
    run_to_end(engine, outputs)
    assert outputs.finished["b"].reason is FinishReason.LENGTH
    assert engine._scheduler.cache.pool.num_referenced == 0


def test_a_nan_row_fails_its_own_response_alone() -> None:
    engine, target = counting_engine()
    target.poison = 5
    doomed = Request("doomed", (0, 1), 20, GREEDY, speculation=Speculation.OFF)
    fine = Request("fine", (6, 7), 3, GREEDY)
    outputs = run(engine, doomed, fine)
    assert outputs.finished["doomed"].reason is FinishReason.ERROR
    assert outputs.finished["doomed"].error_code == "NonFiniteLogitsError"
    assert outputs.tokens["doomed"] == [2, 3, 4, 5]
    assert outputs.tokens["fine"] == [8, 9, 0]
    # The blocks that may hold NaN were scrubbed and are not to be found by anybody.
    assert (target.memory == 5).sum() == 0
    target.poison = None
    assert run(engine, Request("later", (0, 1), 5, GREEDY)).tokens["later"] == [2, 3, 4, 5, 6]


def test_an_error_in_a_step_fails_what_ran_and_the_engine_goes_on() -> None:
    engine, target = counting_engine(max_sequences=1)
    engine.submit(Request("ran", (0, 1), 20, GREEDY))
    engine.submit(Request("waited", (0, 1), 3, GREEDY))
    outputs = Outputs()
    outputs.add(engine.step().events)
    target.error = RuntimeError("out of memory")
    run_to_end(engine, outputs)
    assert outputs.finished["ran"].reason is FinishReason.ERROR
    assert outputs.finished["ran"].error == "RuntimeError: out of memory"
    assert outputs.tokens["waited"] == [2, 3, 4]
    assert engine._scheduler.cache.pool.num_referenced == 0


def test_a_request_that_cannot_begin_ends_with_its_error() -> None:
    def no_text(prompt_ids: tuple[int, ...]) -> IdText:
        if prompt_ids[0] == 9:
            raise ValueError("no text stream for this")
        return IdText()

    engine, _ = counting_engine(text_stream=no_text)
    outputs = run(engine, Request("bad", (9,), 3, GREEDY), Request("good", (0,), 3, GREEDY))
    assert outputs.finished["bad"].error == "ValueError: no text stream for this"
    assert outputs.tokens["good"] == [1, 2, 3]


def test_refusals_hold_both_numbers() -> None:
    engine, _ = counting_engine(num_blocks=10)
    with pytest.raises(ContextLengthError, match=r"100 tokens.*context holds 100"):
        engine.submit(Request("long", (1,) * 100, 1, GREEDY))
    with pytest.raises(ContextLengthError, match=r"60 tokens.*holds 40"):
        engine.submit(Request("large", (1,) * 60, 1, GREEDY))
    with pytest.raises(RequestError, match="token id 10; ids go from 0 to 9") as caught:
        engine.submit(Request("stop", (1,), 1, GREEDY, stop_token_ids=frozenset({10})))
    assert caught.value.field == "stop_token_ids"
    everything = SamplingParams(temperature=0.0, banned_token_ids=tuple(range(10)))
    with pytest.raises(RequestError, match="at least one must be left") as caught:
        engine.submit(Request("mute", (1,), 1, everything))
    assert caught.value.field == "banned_token_ids"
    engine.submit(Request("a", (1,), 1, GREEDY))
    with pytest.raises(RequestError, match="id a is open"):
        engine.submit(Request("a", (1,), 1, GREEDY))


def test_a_full_queue_refuses() -> None:
    engine, _ = counting_engine(max_waiting=2)
    engine.submit(Request("a", (1,), 1, GREEDY))
    engine.submit(Request("b", (1,), 1, GREEDY))
    with pytest.raises(QueueFullError, match="2 requests are waiting"):
        engine.submit(Request("c", (1,), 1, GREEDY))


class AnyText:
    """What a grammar of everything constrains: nothing."""

    def fork(self, drafted: Many[int], first: int = 0) -> RowEdits:
        return RowEdits()

    def advance(self, committed: Many[int]) -> None: ...

    def forced(self, limit: int) -> tuple[int, ...]:
        return ()


class CompilerOfCallers(GrammarCompiler):
    """Notes who compiles."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def constraint(self, grammar: Grammar) -> GrammarConstraint:
        self.threads.append(threading.get_ident())
        if grammar.text == "wrong":
            raise RequestError("the grammar cannot be used", field="grammar")
        return cast("GrammarConstraint", AnyText())


def test_grammars_are_compiled_by_whoever_submits_and_never_by_the_engine() -> None:
    compiler = CompilerOfCallers()
    engine, _ = counting_engine(grammars=compiler)
    grammar = Grammar(GrammarKind.REGEX, ".*")
    outputs = Outputs()
    has_finished = threading.Event()

    def deliver(result: StepResult) -> None:
        outputs.add(result.events)
        if len(outputs.finished) == 2:
            has_finished.set()

    thread = EngineThread(engine, deliver)
    thread.start()
    for name in ("a", "b"):
        thread.submit(Request(name, (0, 1), 3, GREEDY, grammar=grammar))
    assert has_finished.wait(10)
    thread.stop(10)
    assert outputs.tokens["a"] == outputs.tokens["b"] == [2, 3, 4]
    assert compiler.threads == [threading.get_ident()] * 2


def test_a_wrong_grammar_is_refused_at_once_and_leaves_nothing_behind() -> None:
    engine, _ = counting_engine(grammars=CompilerOfCallers())
    with pytest.raises(RequestError, match="cannot be used"):
        engine.submit(Request("a", (1,), 1, GREEDY, grammar=Grammar(GrammarKind.REGEX, "wrong")))
    assert not engine.has_work
    assert run(engine, Request("a", (1,), 1, GREEDY)).tokens["a"] == [2]


def test_the_sequence_ends_where_the_context_ends() -> None:
    engine, _ = counting_engine()
    outputs = run(engine, Request("a", (0,) * 95, 50, GREEDY))
    assert len(outputs.tokens["a"]) == 5
    assert outputs.finished["a"].reason is FinishReason.LENGTH


def test_a_step_belongs_to_one_thread() -> None:
    engine, _ = counting_engine()
    engine.step()
    caught: list[Exception] = []

    def step_elsewhere() -> None:
        try:
            engine.step()
        except EngineBusyError as error:
            caught.append(error)

    thread = threading.Thread(target=step_elsewhere)
    thread.start()
    thread.join()
    assert len(caught) == 1


def test_the_thread_delivers_and_shuts_down_with_an_event_for_everybody() -> None:
    engine, _ = counting_engine()
    outputs = Outputs()
    has_finished = threading.Event()

    def deliver(result: StepResult) -> None:
        outputs.add(result.events)
        if "a" in outputs.finished:
            has_finished.set()

    thread = EngineThread(engine, deliver)
    thread.start()
    thread.submit(Request("a", (0, 1), 5, GREEDY))
    assert has_finished.wait(10)
    assert outputs.tokens["a"] == [2, 3, 4, 5, 6]
    thread.submit(Request("b", (0, 1), 90, GREEDY))
    thread.stop(10)
    assert set(outputs.finished) == {"a", "b"}
    assert thread.status().num_running == 0
    with pytest.raises(EngineStoppedError):
        thread.submit(Request("c", (0, 1), 5, GREEDY))


def test_a_fault_of_the_engine_itself_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine, _ = counting_engine()
    results: list[StepResult] = []
    has_stopped = threading.Event()

    def deliver(result: StepResult) -> None:
        results.append(result)
        if not result.status.is_running:
            has_stopped.set()

    def broken() -> StepResult:
        raise KeyError("books")

    thread = EngineThread(engine, deliver)
    engine.submit(Request("a", (0, 1), 90, GREEDY))
    engine.step()
    engine._owner = None
    engine.submit(Request("b", (0, 1), 5, GREEDY))
    monkeypatch.setattr(engine, "step", broken)
    thread.start()
    assert has_stopped.wait(10)
    finished = [event for result in results for event in result.events]
    assert {event.request_id for event in finished} == {"a", "b"}
    assert all(isinstance(event, FinishEvent) and event.error for event in finished)
    assert "the engine stops" in caplog.text
    with pytest.raises(EngineStoppedError):
        thread.submit(Request("c", (0, 1), 5, GREEDY))
    thread.stop(10)
