"""Curves and the corrected cost model."""

from __future__ import annotations

import json
import random

import pytest

from paceline.core.cost import CostModel, CostTable, Curve, StageSeconds, StepShape

TABLE = CostTable(
    target=Curve((1, 8, 16, 32), (0.010, 0.010, 0.014, 0.030)),
    context_seconds=1e-6,
    sequence_seconds=1e-4,
    sample_greedy=Curve((1, 16), (0.001, 0.002)),
    sample_drawn=Curve((1, 16), (0.002, 0.010)),
    verify_greedy=Curve((1, 16), (0.001, 0.004)),
    verify_drawn=Curve((1, 16), (0.003, 0.020)),
    draft_greedy=Curve((1, 16), (0.001, 0.002)),
    draft_drawn=Curve((1, 16), (0.002, 0.004)),
)


def test_a_curve_is_linear_between_points_and_goes_on_beyond() -> None:
    curve = Curve((2, 4, 8), (1.0, 2.0, 6.0))
    assert [curve.at(n) for n in (0, 1, 2, 3, 4, 6, 8, 10)] == [0, 1, 1, 1.5, 2, 4, 6, 8]
    assert curve.dense(10)[:11] == [curve.at(n) for n in range(11)]


def test_a_disturbed_point_does_not_lift_the_others() -> None:
    assert Curve((1, 2, 3), (9.0, 2.0, 3.0)).seconds == (2.0, 2.0, 3.0)


@pytest.mark.parametrize(
    ("counts", "seconds"),
    [((), ()), ((1,), ()), ((0, 1), (1.0, 1.0)), ((2, 1), (1.0, 1.0)), ((1,), (float("nan"),))],
)
def test_a_curve_refuses_what_it_cannot_mean(
    counts: tuple[int, ...], seconds: tuple[float, ...]
) -> None:
    with pytest.raises(ValueError):
        Curve(counts, seconds)


def test_tables_survive_json() -> None:
    assert CostTable.from_json(json.loads(json.dumps(TABLE.to_json()))) == TABLE
    plain = CostTable(TABLE.target)
    assert CostTable.from_json(json.loads(json.dumps(plain.to_json()))) == plain


@pytest.mark.parametrize("broken", [{}, {"format": 99}, {"format": 1, "target": 3}])
def test_a_foreign_table_is_refused(broken: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        CostTable.from_json(broken)


def test_a_step_is_the_sum_of_its_stages() -> None:
    shape = StepShape(4, 8, 8, 1000, is_drawn=True, draft_rows=(4, 2), num_drafted=4)
    stages = CostModel(TABLE).stages(shape)
    assert stages.target == pytest.approx(0.010 + 1e-3 + 3e-4)
    assert stages.draft == pytest.approx(TABLE.draft_drawn.at(4) + TABLE.draft_drawn.at(2))  # type: ignore[union-attr]
    assert stages.sample == pytest.approx(TABLE.sample_drawn.at(4) + TABLE.verify_drawn.at(4))
    assert stages.total == pytest.approx(stages.target + stages.draft + stages.sample)


def test_target_range_agrees_with_single_steps() -> None:
    model = CostModel(TABLE)
    base = StepShape(4, 4, 4, 100)
    for rows in (4, 20):
        measured = model.stages(base._replace(num_rows=rows))
        model.observe(base._replace(num_rows=rows), measured._replace(target=measured.target * 1.2))
    seconds = model.target_range(base, 20)
    single = [model.target_seconds(4 + more, 100, 4) for more in range(21)]
    assert all(a >= b - 1e-12 for a, b in zip(seconds, single, strict=True))
    assert seconds == sorted(seconds)
    assert seconds[0] == pytest.approx(single[0])


def test_a_wrong_table_is_corrected_by_what_is_measured() -> None:
    """The machine is 1.7 times as slow as the table says, with noise of 5 %."""
    rng = random.Random(1)
    model = CostModel(TABLE)
    truth = CostModel(TABLE)
    for _ in range(300):
        shape = StepShape(2, rng.choice((2, 8, 14)), 8, 50, draft_rows=(2, 2))
        factor = 1.7 * rng.gauss(1.0, 0.05)
        measured = StageSeconds(*(stage * factor for stage in truth.stages(shape)))
        model.observe(shape, measured)
    for rows in (2, 8, 14):
        shape = StepShape(2, rows, 8, 50, draft_rows=(2, 2))
        assert model.step_seconds(shape) / truth.step_seconds(shape) == pytest.approx(1.7, rel=0.08)


def test_a_slower_machine_is_noticed_for_rows_that_are_not_run() -> None:
    """Only speculative steps are run; plain decoding's price follows them."""
    model, truth = CostModel(TABLE), CostModel(TABLE)
    shape = StepShape(1, 5, 5, 50)
    for _ in range(200):
        stages = truth.stages(shape)
        model.observe(shape, StageSeconds(*(stage * 1.5 for stage in stages)))
    plain = StepShape(1, 1, 1, 50)
    ratio = model.step_seconds(plain) / truth.step_seconds(plain)
    assert ratio == pytest.approx(1.5, rel=0.1)


def test_one_stall_hardly_matters() -> None:
    model = CostModel(TABLE)
    shape = StepShape(1, 1, 1, 50)
    before = model.step_seconds(shape)
    stages = model.stages(shape)
    model.observe(shape, StageSeconds(*(stage * 50 for stage in stages)))
    assert model.step_seconds(shape) < 1.06 * before


def test_bookkeeping_is_learnt_by_number_of_sequences() -> None:
    model = CostModel(TABLE)
    assert model.other_seconds(4) == 0.0
    for count, seconds in ((1, 0.001), (48, 0.004)):
        shape = StepShape(count, count, count, 50)
        model.observe(shape, model.stages(shape)._replace(other=seconds))
    assert model.other_seconds(1) == 0.001
    assert model.other_seconds(40) == 0.004
    assert model.other_seconds(2) == 0.001
