"""The controller as a whole: what it decides and says, from what it was told."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from paceline.core.controller import (
    LEAST_PLAIN_EVERY,
    PLAIN_EVERY,
    Controller,
    ControllerSettings,
    plain_interval,
)
from paceline.core.controller_depth import without_prefill
from paceline.core.controller_session import (
    COPY_DEPTH,
    MODEL_DEPTH,
    Candidate,
    Choice,
    SessionControl,
    match_cell,
    match_cells,
    temperature_bucket,
)
from paceline.core.cost import CostModel, CostTable, Curve, StageSeconds, StepShape
from paceline.core.events import Gate
from paceline.core.request import DrafterKind

MEMORY_BOUND = CostTable(
    target=Curve((1, 16, 32, 256), (0.024, 0.026, 0.036, 0.270)),
    sample_greedy=Curve((1, 64), (0.0002, 0.002)),
    verify_greedy=Curve((1, 64), (0.0001, 0.002)),
    draft_greedy=Curve((1, 64, 256), (0.002, 0.003, 0.009)),
    draft_drawn=Curve((1, 64, 256), (0.002, 0.003, 0.009)),
)
COMPUTE_BOUND = CostTable(
    target=Curve((1, 256), (0.001, 0.256)),
    draft_greedy=Curve((1, 64), (0.0005, 0.003)),
    draft_drawn=Curve((1, 64), (0.0005, 0.003)),
)
WITHOUT_MODEL = CostTable(target=MEMORY_BOUND.target)


def controller(table: CostTable = MEMORY_BOUND) -> Controller:
    return Controller(CostModel(table), ControllerSettings(max_sequences=48))


def copy_gate(session: SessionControl) -> Gate:
    return session.copy_gate.gate


def model_gate(session: SessionControl) -> Gate:
    return session.model_gate.gate


def base_of(count: int) -> StepShape:
    return StepShape(count, count, count, 100 * count)


def candidates(control: Controller, count: int, **changes: object) -> list[Candidate]:
    return [
        Candidate(
            control.session(f"s{index}"), 16, 0, is_drawn=False, model_tokens=6, model_lag=1
        )._replace(**changes)  # type: ignore[arg-type]
        for index in range(count)
    ]


def step(
    control: Controller,
    count: int,
    rate: float,
    rng: random.Random,
    **changes: object,
) -> list[Choice]:
    """One step of `count` sessions whose drafts are accepted with probability `rate`."""
    base = base_of(count)
    offered = candidates(control, count, **changes)
    choices = control.decide(base, count, offered)
    drafted = passes = emitted = 0
    for candidate, choice in zip(offered, choices, strict=True):
        accepted = 0
        while accepted < choice.num_drafted and rng.random() < rate:
            accepted += 1
        drafted += choice.num_drafted
        passes = max(passes, choice.num_drafted)
        emitted += accepted + 1
        if choice.num_drafted:
            chain = [float(i < accepted) for i in range(choice.num_drafted)]
            examined = min(accepted + 1, choice.num_drafted)
            control.acceptances.observe_model_round(candidate.session, 0, chain, examined)
        control.observe_tokens(candidate.session, accepted + 1)
    shape = base._replace(
        num_rows=count + drafted,
        num_logits=count + drafted,
        draft_rows=(count,) * passes,
        num_drafted=drafted,
    )
    control.observe_step(base, shape, count, emitted / count, CostModel(MEMORY_BOUND).stages(shape))
    return choices


def test_memory_bound_and_well_accepted_drafts_deep() -> None:
    control, rng = controller(), random.Random(1)
    for _ in range(60):
        choices = step(control, 2, 0.9, rng)
    assert [choice.drafter for choice in choices] == [DrafterKind.MODEL] * 2
    assert min(choice.num_drafted for choice in choices) >= 4
    reason = control.reason(control.session("s0"))
    assert reason.startswith("on: the draft model drafts ")
    assert "; acceptance 0." in reason


def test_the_same_story_gives_the_same_decisions() -> None:
    told = []
    for _ in range(2):
        control, rng = controller(), random.Random(3)
        told.append([step(control, 3, 0.5, rng) for _ in range(200)])
    assert told[0] == told[1]


def test_badly_accepted_is_off_and_says_how_badly() -> None:
    control, rng = controller(), random.Random(2)
    for _ in range(300):
        step(control, 1, 0.05, rng)
    session = control.session("s0")
    assert session.model_gate.gate in (Gate.OFF, Gate.PROBING) or (
        session.model_gate.num_examined < 24
    )
    assert control.ledger.level <= control.ledger.capacity


def test_compute_bound_is_off_and_says_the_break_even() -> None:
    control = controller(COMPUTE_BOUND)
    base = base_of(34)
    choices = control.decide(base, 34, candidates(control, 34))
    assert {choice.num_drafted for choice in choices} == {0}
    assert re.fullmatch(
        r"off: the server is busy \(compute-bound\), 34 rows a step, drafting pays up to \d+",
        control.reason(control.session("s0"), base),
    )


def test_a_closed_load_gate_is_looked_at_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    control = controller(COMPUTE_BOUND)
    looks = 0

    def decide(count: int, steps: int) -> None:
        for _ in range(steps):
            control.decide(base_of(count), count, candidates(control, count))

    def survivals(session: SessionControl, bucket: int, depth: int) -> list[float]:
        nonlocal looks
        looks += 1
        return [0.5**gamma for gamma in range(1, depth + 1)]

    monkeypatch.setattr(control.acceptances, "model_survivals", survivals)
    decide(34, 60)
    assert not control.load_gate.is_open
    for count in (8, 34):
        looks = 0
        decide(count, 40)
        assert looks == 10 * count


def test_limits_are_kept() -> None:
    control, rng = controller(), random.Random(4)
    for _ in range(60):
        step(control, 1, 0.95, rng)
    for limit, model_tokens in ((2, 6), (16, 3), (16, 16), (0, 6)):
        offered = candidates(control, 1, limit=limit, model_tokens=model_tokens)
        [choice] = control.decide(base_of(1), 1, offered)
        assert choice.num_drafted <= min(limit, model_tokens, MODEL_DEPTH)


def test_a_look_up_is_used_where_it_promises_more() -> None:
    control = controller()
    for _ in range(40):
        control.observe_copies(control.session("s0"), [(16, True)], base_of(1), 1)
    [choice] = control.decide(
        base_of(1), 1, candidates(control, 1, copy_tokens=COPY_DEPTH, match_length=16)
    )
    assert choice.drafter is DrafterKind.NGRAM
    assert choice.num_drafted > MODEL_DEPTH
    reason = control.reason(control.session("s0"))
    assert re.fullmatch(
        r"on: \d+ tokens copied from earlier text, behind a match of 16; "
        r"acceptance 1.00 over the last 40 tested",
        reason,
    )
    [choice] = control.decide(
        base_of(1), 1, candidates(control, 1, copy_tokens=COPY_DEPTH, match_length=2)
    )
    assert choice.drafter is DrafterKind.MODEL, "a short match is seldom right"


def test_look_ups_switch_off_by_shadow_and_come_back() -> None:
    control = controller(WITHOUT_MODEL)
    session = control.session("s0")
    base = base_of(1)

    def emit(is_hit: bool, count: int) -> None:
        for _ in range(count):
            control.observe_copies(session, [(8, is_hit)], base, 1)
            control.observe_tokens(session, 1)

    emit(True, 64)
    emit(False, 40)
    assert copy_gate(session) is Gate.OFF
    offered = candidates(control, 1, model_tokens=0, copy_tokens=16, match_length=8)
    [choice] = control.decide(base, 1, offered)
    assert choice.num_drafted == 0
    reason = control.reason(session)
    assert reason.startswith("off: too little was accepted")
    assert "; acceptance 0." in reason
    emit(True, 120)
    assert copy_gate(session) is Gate.ON
    assert control.acceptances.num_gate_flips == 2


def test_a_probe_follows_the_pause_and_its_result_decides() -> None:
    for rate, gate in ((1.0, Gate.ON), (0.3, Gate.OFF)):
        control = controller()
        session = control.session("s0")
        for _ in range(24):
            control.acceptances.observe_model_round(session, 0, [0.0], 1)
        assert model_gate(session) is Gate.OFF
        offered = candidates(control, 1, model_lag=40)
        assert control.decide(base_of(1), 1, offered) == [Choice()]
        control.observe_tokens(session, 64)
        [choice] = control.decide(base_of(1), 1, offered)
        assert (choice.num_drafted, choice.num_scored, choice.catches_up) == (0, 64, True)
        assert session.gate is Gate.ON, "the look-up's gate is still on"
        assert model_gate(session) is Gate.PROBING
        control.observe_probe(session, 0, [rate] * 64, base_of(1), 1)
        assert model_gate(session) is gate
        if gate is Gate.OFF:
            [choice] = control.decide(base_of(1), 1, offered)
            assert choice == Choice()
            assert control.reason(session) == (
                "off: too little was accepted, next probe in 128 tokens; the last probe found 0.30"
            )


def closed(control: Controller) -> SessionControl:
    """A session whose draft model's gate has just closed, and the pause is over."""
    session = control.session("s0")
    for _ in range(24):
        control.acceptances.observe_model_round(session, 0, [0.0], 1)
    control.observe_tokens(session, 64)
    assert model_gate(session) is Gate.OFF
    return session


def others_have(control: Controller, acceptance: float) -> None:
    """What is usual, and so what a closed session may be hoped to have."""
    for _ in range(100):
        control.acceptances.observe_model_round(control.session("other"), 0, [acceptance], 1)


@pytest.mark.parametrize(
    ("num_sessions", "usual", "num_scored"),
    [
        (1, 0.33, 64),
        (14, 0.33, 64),
        (16, 0.33, 0),  # at this load 0.53 would not pay
        (16, 0.6, 64),
        (14, 0.0, 64),  # less than 0.5 would not pay, nor open the gate, so it is not asked for
    ],
)
def test_a_probe_has_to_be_likely_to_pay(num_sessions: int, usual: float, num_scored: int) -> None:
    control = controller()
    session = closed(control)
    others_have(control, usual)
    [offered] = candidates(control, 1, model_lag=40)
    base = base_of(num_sessions)
    [choice] = control.decide(base, num_sessions, [offered._replace(session=session)])
    assert choice.num_scored == num_scored


def test_two_probes_of_one_session_in_a_step_have_one_result() -> None:
    control = controller()
    session = closed(control)
    others_have(control, 1.0)
    offered = [candidates(control, 1, model_lag=40)[0]._replace(session=session) for _ in range(16)]
    choices = control.decide(base_of(16), 16, offered)
    assert [choice.num_scored for choice in choices[:3]] == [64, 64, 0]
    control.observe_probe(session, 0, [0.1] * 64, base_of(16), 16)
    state = session.model_gate
    assert state.gate is Gate.OFF
    control.observe_probe(session, 0, [0.9] * 64, base_of(16), 16)
    control.observe_probe(session, 0, [], base_of(16), 16)
    assert session.model_gate == state


def test_probes_of_short_answers_add_up_to_a_result() -> None:
    control = controller()
    session = closed(control)
    short = candidates(control, 1, model_lag=40, num_scorable=3)
    assert control.decide(base_of(1), 1, short) == [Choice()]
    for number in range(2):
        offered = candidates(control, 1, model_lag=40, num_scorable=5)
        [choice] = control.decide(base_of(1), 1, offered)
        assert choice.num_scored > 0
        control.observe_probe(session, 0, [1.0] * 5, base_of(1), 1)
        assert model_gate(session) is (Gate.ON if number else Gate.OFF)
        control.observe_tokens(session, 64)
    assert session.probe_scores == []


def test_a_gate_that_a_probe_opened_is_probed_again_while_nothing_is_drafted() -> None:
    control = controller()
    session = closed(control)
    control.decide(base_of(1), 1, candidates(control, 1, model_lag=40))
    control.observe_probe(session, 0, [0.6] * 64, base_of(1), 1)
    assert (model_gate(session), session.model_gate.num_examined) == (Gate.ON, 0)
    assert not session.model_gate.is_probe_due(64 + 127)
    assert session.model_gate.is_probe_due(64 + 128)


def test_no_probe_where_even_a_good_draft_would_not_pay() -> None:
    control = controller(COMPUTE_BOUND)
    session = control.session("s0")
    for _ in range(24):
        control.acceptances.observe_model_round(session, 0, [0.0], 1)
    control.observe_tokens(session, 1000)
    [choice] = control.decide(base_of(40), 40, candidates(control, 1))
    assert choice == Choice()
    assert session.model_gate.gate is Gate.OFF


def test_a_probe_that_scored_next_to_nothing_proves_nothing() -> None:
    control = controller()
    session = control.session("s0")
    for _ in range(24):
        control.acceptances.observe_model_round(session, 0, [0.0], 1)
    control.observe_tokens(session, 64)
    control.decide(base_of(1), 1, candidates(control, 1))
    control.observe_probe(session, 0, [1.0] * 3, base_of(1), 1)
    assert (session.model_gate.gate, session.model_gate.pause) == (Gate.OFF, 64)


def test_a_full_ledger_stops_everybody_and_says_so() -> None:
    control = controller()
    shape = base_of(1)._replace(num_rows=7, draft_rows=(1,) * 6)
    for _ in range(20):
        control.observe_step(base_of(1), shape, 1, 1.0, StageSeconds(0.02, 0.04, 0.0, 0.0))
    [choice] = control.decide(base_of(1), 1, candidates(control, 1))
    assert choice.num_drafted == 0
    told = re.fullmatch(
        r"off: a pause to limit losses, drafting has lately lost ([\d.]+) ms against plain "
        r"decoding and may lose ([\d.]+) ms, the next draft might lose ([\d.]+) ms",
        control.reason(control.session("s0")),
    )
    assert told is not None
    assert float(told[1]) == pytest.approx(control.ledger.level * 1e3, abs=0.05)
    assert float(told[2]) == pytest.approx(control.ledger.capacity * 1e3, abs=0.05)
    assert float(told[1]) + float(told[3]) > float(told[2])


def test_now_and_then_a_plain_step_measures_plain_decoding() -> None:
    control, rng = controller(), random.Random(5)
    plain = [
        index
        for index in range(3 * PLAIN_EVERY)
        if not any(choice.num_drafted for choice in step(control, 1, 0.95, rng))
    ]
    assert plain
    assert all(b - a <= PLAIN_EVERY + 1 for a, b in zip(plain, plain[1:], strict=False))


def test_a_close_race_is_measured_more_often() -> None:
    assert [plain_interval(gain) for gain in (0.9, 1.0, 1.01, 1.05, 1.5, 100.0)] == [
        LEAST_PLAIN_EVERY, LEAST_PLAIN_EVERY, LEAST_PLAIN_EVERY, 16, 111, PLAIN_EVERY,
    ]  # fmt: skip


def with_prompt(num_prompt: int) -> StepShape:
    return base_of(1)._replace(num_rows=1 + num_prompt)


def test_a_step_with_a_prompt_in_it_does_not_serve_to_measure_decoding() -> None:
    control, truth = controller(), CostModel(MEMORY_BOUND)
    [choice] = control.decide(base_of(1), 1, candidates(control, 1))
    assert choice.num_drafted
    shape = base_of(1)._replace(num_rows=3, num_logits=3, num_drafted=2, draft_rows=(1, 1))
    for _ in range(PLAIN_EVERY):
        control.observe_step(base_of(1), shape, 1, 3.0, truth.stages(shape))
    [choice] = control.decide(with_prompt(30), 1, candidates(control, 1))
    assert choice.num_drafted, "due, but not in this step"
    plain = with_prompt(100)
    control.observe_step(plain, plain, 1, 1.0, truth.stages(plain))
    assert control.decide(base_of(1), 1, candidates(control, 1)) == [Choice()], "still due"
    assert control.session("s0").why.kind == "refresh"
    control.observe_step(base_of(1), base_of(1), 1, 1.0, truth.stages(base_of(1)))
    [choice] = control.decide(base_of(1), 1, candidates(control, 1))
    assert choice.num_drafted


def test_prompts_are_caught_up_on_a_few_at_a_time_and_by_promise() -> None:
    control, rng = controller(), random.Random(6)
    for _ in range(40):
        step(control, 8, 0.9, rng)
    choices = control.decide(base_of(8), 8, candidates(control, 8, model_lag=200))
    assert 1 <= sum(choice.catches_up for choice in choices) < 8
    assert all(choice.num_drafted == 0 for choice in choices if choice.catches_up)


def test_sessions_are_bounded_and_the_least_recent_goes() -> None:
    control = controller()
    first = control.session("first")
    for index in range(5000):
        control.session(f"x{index}")
        if index == 3000:
            assert control.session("first") is first
    assert control.session("x4999").key == "x4999"
    assert control.session("first") is first
    for index in range(5000):
        control.session(f"y{index}")
    assert control.session("first") is not first


def test_swings_of_load_do_not_thrash() -> None:
    """1 session for 50 steps, 48 for 50 steps, ten times: a handful of flips each way at most."""
    control, rng = controller(), random.Random(8)
    for _ in range(10):
        for count in (1, 48):
            for _ in range(50):
                step(control, count, 0.6, rng)
    assert control.load_gate.num_flips <= 20


@pytest.mark.parametrize(
    ("temperature", "seeded", "bucket"),
    [(0.0, True, 0), (0.3, False, 1), (0.7, False, 2), (1.5, False, 3), (1.0, True, 4)],
)
def test_temperatures_are_told_apart(temperature: float, seeded: bool, bucket: int) -> None:
    assert temperature_bucket(temperature, is_seeded=seeded) == bucket


def test_matches_fall_into_cells_by_length() -> None:
    assert [match_cell(length) for length in (2, 3, 4, 5, 7, 8, 15, 16, 40)] == [
        0, 1, 2, 3, 3, 4, 4, 5, 5,
    ]  # fmt: skip


def test_a_match_grows_by_one_with_every_token_that_proves_right() -> None:
    assert match_cells(2, 3) == (0, 1, 2)
    assert match_cells(5, 5) == (3, 3, 3, 4, 4)
    assert match_cells(14, 16) == (4, 4, *[5] * 14)
    assert match_cells(40, 16) == (5,) * 16


def test_without_prefill_keeps_forced_drafts() -> None:
    base = StepShape(3, 3 + 4 + 100, 3 + 4, 500, num_drafted=4)
    assert without_prefill(base, 3) == StepShape(3, 7, 7, 500, num_drafted=4)


def test_a_draft_that_no_ledger_holds_is_cut_and_not_refused_for_ever() -> None:
    costly = replace(
        MEMORY_BOUND,
        draft_greedy=Curve((1, 64), (0.012, 0.013)),
        draft_drawn=Curve((1, 64), (0.012, 0.013)),
    )
    control = Controller(CostModel(costly), ControllerSettings(max_sequences=1))
    session = control.session("s0")
    for _ in range(30):
        control.acceptances.observe_model_round(session, 0, [1.0] * 6, 6)
    assert control.ledger.capacity < 6 * 0.012
    [choice] = control.decide(base_of(1), 1, candidates(control, 1))
    assert 1 <= choice.num_drafted < 6
    assert session.why.kind == "model"


@pytest.mark.parametrize(
    ("chain", "num_examined", "acceptance"),
    [
        ([0.5], 1, 0.5),
        ([0.5, 0.25, 0.25], 3, (0.5 + 0.5 + 1.0) / 3),
        ([0.5, 0.25, 0.25], 2, 0.5),  # behind a failure nothing was examined
        ([0.5, 1.0, 0.5], 3, (0.5 + 1.0 + 0.5) / 3),  # a block's chain may rise
        ([0.0, 0.0], 1, 0.0),
    ],
)
def test_a_window_holds_the_chances_of_what_was_examined(
    chain: list[float], num_examined: int, acceptance: float
) -> None:
    control = controller()
    session = control.session("s0")
    control.acceptances.observe_model_round(session, 2, chain, num_examined)
    assert session.model_gate.num_examined == num_examined
    assert session.model_gate.acceptance == pytest.approx(acceptance, abs=0.004)
