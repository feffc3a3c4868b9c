"""The adaptive policy in a real engine: a collapse in one session, its neighbours, the way back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from paceline.cache.prefix import PrefixCache
from paceline.core.controller import Controller, ControllerSettings
from paceline.core.cost import CostModel, CostTable, Curve
from paceline.core.events import EngineStatus, Gate
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.engine.adaptive_policy import AdaptivePolicy
from paceline.engine.engine import Engine
from paceline.engine.scheduler import Scheduler
from paceline.engine.verifier import Verifier
from tests.engine.scripted_drafter import ScriptedClock, ScriptedDrafter, TimedRunner
from tests.tiny_models import (
    VOCABULARY_SIZE,
    IdText,
    Outputs,
    model_part,
    run_to_end,
    tiny_engine,
    tiny_llama,
)

if TYPE_CHECKING:
    from collections.abc import Callable

GREEDY = SamplingParams(temperature=0.0)
# Memory-bound: 16 rows cost hardly more than one, a draft pass a twelfth.
TABLE = CostTable(
    target=Curve((1, 16, 32, 128), (0.024, 0.026, 0.036, 0.130)),
    draft_greedy=Curve((1, 128), (0.002, 0.004)),
    draft_drawn=Curve((1, 128), (0.002, 0.004)),
)
COMPUTE_BOUND = replace(TABLE, target=Curve((1, 128), (0.001, 0.128)))
PROMPTS = {"a": (1, 2, 3), "b": (4, 5, 6), "c": (7, 8, 9)}
NUM_TOKENS = 470


@pytest.fixture(scope="module")
def answers() -> dict[tuple[int, ...], list[int]]:
    """What the target says by itself."""
    engine = tiny_engine(tiny_llama(3), drafter=DrafterKind.NONE)
    for name, prompt in PROMPTS.items():
        engine.submit(Request(name, prompt, NUM_TOKENS, GREEDY))
    outputs = run_to_end(engine)
    return {prompt: outputs.tokens[name] for name, prompt in PROMPTS.items()}


class Served:
    """An engine with a scripted drafter and a scripted clock."""

    def __init__(
        self,
        answers: dict[tuple[int, ...], list[int]],
        is_right: Callable[[str, int], bool],
        table: CostTable = TABLE,
        num_blocks: int = 512,
    ) -> None:
        clock = ScriptedClock(table)
        part = model_part(tiny_llama(3), num_blocks, 4)
        limits = EngineLimits(512, num_blocks, 4, 16, 100, VOCABULARY_SIZE)
        self.drafter = ScriptedDrafter(answers, is_right, clock, VOCABULARY_SIZE)
        self.controller = Controller(CostModel(table), ControllerSettings(max_sequences=16))
        self.policy = AdaptivePolicy(self.controller, ngram=None, model=self.drafter)
        self.engine = Engine(
            scheduler=Scheduler(
                PrefixCache(num_blocks, 4), limits, self.drafter, self.policy, token_budget=128
            ),
            verifier=Verifier(
                TimedRunner(part.runner, clock), block_size=4, vocabulary_size=VOCABULARY_SIZE
            ),
            drafter=self.drafter,
            policy=self.policy,
            limits=limits,
            text_stream=lambda prompt_ids: IdText(),
            scrub=part.scrub,
            clock=clock,
        )
        self.engine.watch(0.0)
        self.outputs = Outputs()
        self.seen: list[EngineStatus] = []

    def submit(self, name: str, **changes: object) -> None:
        request = Request(
            name, PROMPTS[name], NUM_TOKENS, GREEDY, speculation_key=f"session/{name}"
        )
        self.engine.submit(replace(request, **changes))  # type: ignore[arg-type]

    def run(self) -> None:
        while self.engine.has_work:
            result = self.engine.step()
            self.outputs.add(result.events)
            self.seen.append(result.status)

    def gates(self, name: str) -> list[Gate]:
        """Of a session, step by step, as telemetry shows it."""
        return [
            session.gate
            for status in self.seen
            for session in status.sessions
            if session.key == f"session/{name}"
        ]


def changes(gates: list[Gate]) -> list[Gate]:
    return [g for i, g in enumerate(gates) if i == 0 or gates[i - 1] is not g]


def test_a_collapse_switches_one_session_off_and_its_return_on_again(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    collapse, back = 200, 330

    def is_right(name: str, position: int) -> bool:
        return name != "a" or not collapse <= position < back

    served = Served(answers, is_right)
    for name in PROMPTS:
        served.submit(name)
    served.run()
    for name, prompt in PROMPTS.items():
        assert served.outputs.tokens[name] == answers[prompt], "whatever was drafted"
    told = changes(served.gates("a"))
    failed, passed = [Gate.OFF, Gate.PROBING], [Gate.OFF, Gate.PROBING, Gate.ON]
    assert told == [Gate.ON, *failed, *passed]
    assert changes(served.gates("b")) == changes(served.gates("c")) == [Gate.ON]
    summary = served.outputs.finished["a"].summary
    assert summary.num_examined - summary.num_accepted <= 64, "off within 64 examined positions"
    assert served.drafter.num_scored_passes >= 2, "a probe that failed, and one that did not"
    reasons = {
        session.reason
        for status in served.seen
        for session in status.sessions
        if session.key == "session/a"
    }
    assert any(
        reason.startswith("off: too little was accepted, ") and "; acceptance 0.3" in reason
        for reason in reasons
    )
    assert any(
        reason.startswith("on: ") and "; acceptance 1.00 over the last " in reason
        for reason in reasons
    )
    assert served.outputs.finished["b"].summary.acceptance == 1.0
    faster = served.outputs.finished["b"].summary
    assert faster.expected_plain_ms is not None
    assert faster.expected_plain_ms > faster.draft_ms + faster.verify_ms


def test_a_session_that_nothing_is_drafted_for_is_probed_before_its_gate_closes(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    # Costly drafts, rejected from the start: none pays any more long before 24 close the gate.
    table = replace(TABLE, draft_greedy=Curve((1, 128), (0.010, 0.012)))
    served = Served(answers, lambda name, position: position >= 30, table)
    session = served.controller.session("session/a")
    served.submit("a")
    while session.num_emitted < 60:
        served.engine.step()
    assert session.model_gate.gate is Gate.ON
    assert session.model_gate.num_examined < 24
    assert served.drafter.num_scored_passes == 0
    served.run()
    assert served.drafter.num_scored_passes == 1
    assert Gate.PROBING in served.gates("a")
    assert session.model_gate.acceptance == 1.0
    assert served.outputs.finished["a"].summary.num_passed > 200, "drafting has come back"
    assert served.controller.acceptances.num_gate_flips == 0, "it never was closed"


def test_what_was_learnt_of_a_session_survives_its_request(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    served = Served(answers, lambda name, position: False)
    served.submit("a", max_new_tokens=60)
    served.run()
    first = served.outputs.finished["a"].summary
    assert first.num_examined > 10
    assert first.gate is Gate.OFF
    served.submit("a", request_id="a2", max_new_tokens=30)
    served.run()
    assert served.outputs.finished["a2"].summary.num_drafted <= 2


def test_compute_bound_drafts_nothing_and_says_so(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    served = Served(answers, lambda name, position: True, COMPUTE_BOUND)
    for name in PROMPTS:
        served.submit(name, max_new_tokens=40)
    served.run()
    summary = served.outputs.finished["a"].summary
    assert summary.num_drafted == 0
    assert summary.reason.startswith("off: the server is busy (compute-bound), ")
    assert ", drafting pays up to " in summary.reason


def test_on_bypasses_gates_and_ledger_and_off_drafts_nothing(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    served = Served(answers, lambda name, position: False, COMPUTE_BOUND)
    served.submit("a", speculation=Speculation.ON, num_speculative_tokens=3, max_new_tokens=40)
    served.submit("b", speculation=Speculation.OFF, max_new_tokens=40)
    served.run()
    forced = served.outputs.finished["a"].summary
    assert forced.num_drafted >= 3 * 36
    assert (forced.gate, forced.reason) == (Gate.ON, "on: up to 3 tokens, as the request asked")
    assert served.controller.ledger.level == 0.0, "forced drafts are not charged"
    assert forced.expected_plain_ms is None, "nobody knows what plain decoding would have taken"
    off = served.outputs.finished["b"].summary
    assert (off.num_drafted, off.gate) == (0, Gate.OFF)
    assert off.reason == "off: the request asked for it"


@pytest.mark.parametrize("speculation", [Speculation.AUTO, Speculation.ON])
def test_a_depth_of_0_is_off_because_the_request_asked(
    answers: dict[tuple[int, ...], list[int]], speculation: Speculation
) -> None:
    served = Served(answers, lambda name, position: True)
    served.submit("a", speculation=speculation, num_speculative_tokens=0, max_new_tokens=20)
    served.run()
    summary = served.outputs.finished["a"].summary
    assert (summary.gate, summary.reason) == (Gate.OFF, "off: the request asked for it")


def test_a_reason_is_not_that_of_the_answer_before(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    served = Served(answers, lambda name, position: True)
    served.submit("a", max_new_tokens=40)
    served.run()
    assert " drafts " in served.outputs.finished["a"].summary.reason
    served.submit("a", request_id="short", max_new_tokens=1)
    served.run()
    summary = served.outputs.finished["short"].summary
    assert summary.reason.startswith("on: drafts as soon as it pays; acceptance 1.00 over ")
    served = Served(answers, lambda name, position: False)
    served.submit("a", max_new_tokens=100)
    served.run()
    served.submit("a", request_id="short", max_new_tokens=1)
    served.run()
    assert served.outputs.finished["short"].summary.reason.startswith(
        "off: too little was accepted"
    )


def test_a_session_whose_drafts_would_pay_alone_is_told_of_the_load(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    # Free rows up to 4, dear ones beyond: a draft pays for one or two, not for many.
    table = replace(TABLE, target=Curve((1, 4, 5, 64), (0.024, 0.025, 0.045, 0.640)))
    served = Served(answers, lambda name, position: True, table)
    for number in range(9):
        name = "abc"[number % 3]
        served.submit(name, request_id=f"{name}{number}", max_new_tokens=40)
    served.run()
    reasons = {s.reason for status in served.seen for s in status.sessions if s.active}
    assert any(reason.startswith("off: the server is busy") for reason in reasons)
    assert not any(reason.startswith("off: too little") for reason in reasons)


def test_the_asked_for_number_is_an_upper_bound(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    served = Served(answers, lambda name, position: True)
    served.submit("a", num_speculative_tokens=2, max_new_tokens=60)
    served.run()
    assert max(served.seen[-1].sessions[0].gamma_histogram) > 0
    assert len(served.seen[-1].sessions[0].gamma_histogram) == 3


def test_plain_decoding_is_expected_to_take_what_it_takes(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    served = Served(answers, lambda name, position: True)
    for name, speculation in zip(PROMPTS, (Speculation.OFF, Speculation.OFF, None), strict=True):
        if speculation is not None:
            served.submit(name, speculation=speculation, max_new_tokens=40)
    served.run()
    for name in ("a", "b"):
        summary = served.outputs.finished[name].summary
        taken = summary.draft_ms + summary.verify_ms + summary.sample_ms + summary.other_ms
        assert summary.expected_plain_ms == pytest.approx(taken)


def test_beside_forced_drafts_a_session_is_compared_with_its_own_tokens(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    """The neighbour's forced rows are there either way, and its tokens are nobody else's gain."""
    served = Served(answers, lambda name, position: True)
    served.submit("a", speculation=Speculation.ON, num_speculative_tokens=6, max_new_tokens=200)
    served.submit("b", speculation=Speculation.OFF, max_new_tokens=30)
    served.run()
    summary = served.outputs.finished["b"].summary
    taken = summary.draft_ms + summary.verify_ms + summary.sample_ms + summary.other_ms
    assert summary.expected_plain_ms == pytest.approx(taken)


def test_where_blocks_run_out_nothing_is_drafted_and_memory_is_named(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    """Before anybody is preempted."""
    served = Served(answers, lambda name, position: True, num_blocks=36)
    served.submit("a", max_new_tokens=60)
    served.submit("b", max_new_tokens=60)
    served.submit("c", max_new_tokens=60, speculation=Speculation.ON, num_speculative_tokens=6)
    served.run()
    told = [
        [s.reason for s in status.sessions if s.gate is Gate.OFF or "none now" in s.reason]
        for status in served.seen
    ]
    first = next(index for index, reasons in enumerate(told) if reasons)
    assert served.seen[first].totals.num_preemptions == 0
    assert set(told[first]) <= {
        "off: memory is short, 0 of 36 blocks free",
        "on: up to 6 tokens, as the request asked, none now: memory is short, 0 of 36 blocks free",
    }
    assert len(set(told[first])) == 2
    for name, prompt in PROMPTS.items():
        assert served.outputs.tokens[name] == answers[prompt][:60]


def test_a_bad_drafter_costs_no_more_than_the_ledger_allows(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    """In simulated time, against an engine that never drafts."""
    served = Served(answers, lambda name, position: False)
    served.submit("a")
    served.run()
    plain = Served(answers, lambda name, position: False)
    plain.submit("a", speculation=Speculation.OFF)
    plain.run()
    spent = served.outputs.finished["a"].summary.generation_ms
    alone = plain.outputs.finished["a"].summary.generation_ms
    assert spent <= 1.03 * alone + served.controller.ledger.capacity * 1e3 + 1e-6
    assert spent > alone, "it did try"


@pytest.mark.parametrize("speculation", list(Speculation))
@pytest.mark.parametrize("kind", [DrafterKind.MODEL, DrafterKind.NONE])
def test_who_decides_follows_from_the_request(
    answers: dict[tuple[int, ...], list[int]], speculation: Speculation, kind: DrafterKind
) -> None:
    served = Served(answers, lambda name, position: True)
    served.submit("a", speculation=speculation, drafter=kind, max_new_tokens=20)
    served.run()
    summary = served.outputs.finished["a"].summary
    is_off = speculation is Speculation.OFF or kind is DrafterKind.NONE
    assert (summary.num_drafted == 0) == is_off
    assert (summary.reason == "off: the request asked for it") == is_off
    # A step with forced drafts has no plain one to be compared with.
    assert (summary.expected_plain_ms is None) == (speculation is Speculation.ON and not is_off)
    is_ours = speculation is Speculation.AUTO and not is_off
    assert list(served.controller._sessions) == (["session/a"] if is_ours else [])


def test_nothing_is_kept_of_a_sequence_that_has_ended(
    answers: dict[tuple[int, ...], list[int]],
) -> None:
    served = Served(answers, lambda name, position: True)
    for name in PROMPTS:
        served.submit(name, max_new_tokens=20)
    served.engine.cancel("a")
    served.run()
    policy = served.policy
    assert not policy._followed
    assert not policy._chosen


def test_without_drafters_nothing_is_decided() -> None:
    table = CostTable(Curve((1,), (0.01,)))
    controller = Controller(CostModel(table), ControllerSettings(max_sequences=4))
    engine = tiny_engine(
        tiny_llama(3),
        drafter=DrafterKind.NONE,
        policy=AdaptivePolicy(controller, ngram=None, model=None),
    )
    engine.submit(Request("x", (1, 2), 10, GREEDY))
    outputs = run_to_end(engine)
    assert len(outputs.tokens["x"]) == 10
    assert outputs.finished["x"].summary.reason.startswith("on: nothing to copy here")
