"""Plans: the classic question, the rules of thumb, acceptance profiles, and the command."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from paceline.core import speedup as su
from paceline.core.errors import ConfigError
from paceline.planning.acceptance import (
    SIZE_SLOPE,
    WORKLOADS,
    AcceptanceProfile,
    DraftKind,
    find_workload,
    profile_from_counts,
)
from paceline.planning.command import app, load_acceptance
from paceline.planning.devices import find_device
from paceline.planning.plan import WORTH_IT, Plan, Setup, best_speedups, make_plan
from paceline.planning.precision import find_precision
from paceline.planning.sources import load_draft, load_model

if TYPE_CHECKING:
    from pathlib import Path

runner = CliRunner()


def plan(
    target: str,
    draft: str,
    *,
    acceptance: float | AcceptanceProfile = 0.8,
    device: str = "h100-sxm",
    devices: int = 1,
    draft_devices: int | None = None,
    dtype: str = "bf16",
    batches: tuple[int, ...] = (1,),
    context: int = 2048,
    max_gamma: int = 6,
) -> Plan:
    shape = load_model(target).shape
    profile = acceptance
    if isinstance(profile, float):
        profile = AcceptanceProfile("given", (profile,), "given")
    return make_plan(
        Setup(
            target=shape,
            target_precision=find_precision(dtype),
            draft=load_draft(draft, shape),
            draft_precision=find_precision(dtype),
            device=find_device(device),
            acceptance=profile,
            num_devices=devices,
            draft_devices=draft_devices,
            batches=batches,
            context=context,
            max_gamma=max_gamma,
        )
    )


# ------------------------------------------------------------------ the classic question


def test_seventy_on_one_card_is_said_not_to_fit() -> None:
    answer = plan("llama-3.1-70b", "llama-3.1-8b")
    assert answer.verdict.decision == "does not fit"
    assert "141.1 GB" in answer.verdict.sentence
    assert "77.3 GB" in answer.verdict.sentence
    assert "int4" in answer.verdict.sentence
    assert answer.rows == ()
    assert answer.first is None


def test_a_context_that_no_memory_holds_is_named_as_such() -> None:
    answer = plan("llama-3.1-70b", "llama-3.1-8b", devices=4, context=1_000_000)
    assert answer.verdict.decision == "does not fit"
    assert "one session of 1000000 tokens has 327.7 GB of K/V" in answer.verdict.sentence
    assert f"holds {answer.memory.kv_tokens_plain} tokens" in answer.verdict.sentence


@pytest.mark.parametrize(
    ("option", "value"),
    [("--devices", "0"), ("--devices", "1,0"), ("--layer-us", "nan"), ("--pass-us", "inf")],
)
def test_numbers_that_mean_nothing_are_refused_by_name(option: str, value: str) -> None:
    pair = ["--target", "llama-3.1-70b", "--draft", "llama-3.1-8b", "--devices", "4"]
    result = runner.invoke(app, [*pair, option, value])
    assert result.exit_code == 2
    assert option.lstrip("-").replace("-us", "") in result.output


def test_seventy_on_two_cards_fits_without_the_large_draft() -> None:
    large = plan("llama-3.1-70b", "llama-3.1-8b", devices=2)
    small = plan("llama-3.1-70b", "llama-3.2-1b", devices=2)
    assert large.memory.target_fits
    assert "Does not fit together" in large.verdict.sentence
    assert "smaller draft" in large.verdict.sentence
    assert small.verdict.decision == "speculate"


def test_seventy_on_four_cards_prefers_the_smaller_draft() -> None:
    large = plan("llama-3.1-70b", "llama-3.1-8b", devices=4, acceptance=0.87)
    small = plan("llama-3.1-70b", "llama-3.2-1b", devices=4, acceptance=0.81)
    assert large.first is not None
    assert small.first is not None
    assert 2.0 < large.first.best_speedup < small.first.best_speedup < 3.2
    assert small.memory.sessions_with_draft > large.memory.sessions_with_draft
    assert small.memory.sessions_plain == large.memory.sessions_plain


def test_the_row_is_the_formula() -> None:
    """A reader's check: tokens by equation (1), cost by c and v, speedup by their quotient."""
    answer = plan("llama-3.1-70b", "llama-3.2-1b", devices=4, acceptance=0.8)
    row = answer.first
    assert row is not None
    for cell in row.cells:
        tokens = su.expected_tokens_iid(0.8, cell.gamma)
        assert cell.tokens_per_step == pytest.approx(tokens)
        assert cell.speedup == pytest.approx(tokens * row.plain_step_ms / cell.step_ms)
        assert cell.tokens_per_s == pytest.approx(tokens / cell.step_ms * 1e3)
    best = row.cells[row.best_gamma]
    cost = row.draft_cost_ratio + row.verify_cost_ratio
    assert best.speedup == pytest.approx(su.speedup_iid(0.8, row.best_gamma, cost))


# ------------------------------------------------------------------ rules of thumb


@pytest.mark.parametrize("alpha", [0.65, 0.7, 0.75, 0.8])
def test_memory_bound_gains_1_8_to_3_2(alpha: float) -> None:
    answer = plan("llama-3.1-70b", "llama-3.2-1b", devices=4, acceptance=alpha)
    assert answer.first is not None
    assert 1.8 <= answer.first.best_speedup <= 3.2
    assert not answer.first.compute_bound


def test_compute_bound_gains_nothing() -> None:
    """Many short sessions on one card: about 1x at best, and a loss at any fixed depth."""
    answer = plan("llama-3.1-8b", "llama-3.2-1b", batches=(512,), context=128)
    row = answer.first
    assert row is not None
    assert row.compute_bound
    assert row.fits
    assert row.best_speedup < WORTH_IT
    assert row.cells[4].speedup < 0.9
    assert answer.verdict.decision == "do not speculate"
    assert "arithmetic" in answer.verdict.sentence


def test_a_poor_draft_loses() -> None:
    answer = plan("qwen2.5-7b", "qwen2.5-3b", acceptance=0.3)
    assert answer.first is not None
    assert answer.first.best_gamma == 0
    assert answer.first.cells[4].speedup < 0.7
    assert answer.verdict.decision == "do not speculate"
    assert "break-even" in answer.verdict.sentence


def test_a_low_acceptance_that_still_pays_mentions_the_gate() -> None:
    answer = plan("llama-3.1-70b", "head", devices=4, acceptance=0.35)
    assert answer.verdict.decision == "speculate"
    assert "session gate" in answer.verdict.sentence


def test_break_even_acceptance_is_where_the_best_depth_gains_nothing() -> None:
    answer = plan("llama-3.1-8b", "llama-3.2-1b")
    assert answer.first is not None
    alpha = answer.first.break_even_alpha
    assert alpha is not None
    assert 0.1 < alpha < 0.4
    above = plan("llama-3.1-8b", "llama-3.2-1b", acceptance=alpha + 0.01)
    below = plan("llama-3.1-8b", "llama-3.2-1b", acceptance=alpha - 0.01)
    assert above.first is not None
    assert below.first is not None
    assert above.first.best_speedup > 1.0
    assert below.first.best_speedup == 1.0


def test_no_acceptance_is_enough_for_a_draft_as_dear_as_its_target() -> None:
    answer = plan("llama-3.2-1b", "llama-3.1-8b")
    assert answer.first is not None
    assert answer.first.break_even_alpha is None
    assert "at any acceptance" in answer.verdict.sentence


def test_break_even_batch_is_the_first_that_does_not_pay() -> None:
    answer = plan("llama-3.1-8b", "llama-3.2-1b", context=256)
    batch = answer.break_even_batch
    assert batch is not None
    before, at = best_speedups(answer, [batch - 1, batch])
    assert at < WORTH_IT <= before


def test_break_even_batch_agrees_with_the_closed_form_on_a_straight_line() -> None:
    """Where the roofline is a straight line in rows, B* of the notes and the search agree."""
    survivals = su.iid_survivals(0.7, 1)
    fixed, slope = 10.0, 0.8
    closed = su.break_even_batch(0.7, fixed_seconds=fixed, row_seconds=slope)

    def pays(batch: int) -> bool:
        steps = [fixed + slope * batch, fixed + 2 * slope * batch]
        return su.best_depth(survivals, steps).gamma == 1

    assert pays(math.floor(closed))
    assert not pays(math.ceil(closed))


def test_more_sessions_than_memory_holds() -> None:
    answer = plan("llama-3.1-8b", "llama-3.2-1b", batches=(1000, 1), context=32768)
    assert not answer.rows[0].fits
    assert answer.rows[1].fits
    assert answer.verdict.decision == "does not fit"
    assert "you asked for 1000" in answer.verdict.sentence


def test_experts_spoil_speculation_at_batch_1() -> None:
    dense = plan("llama-3.1-8b", "head", acceptance=0.6)
    mixture = plan("mixtral-8x7b", "head", acceptance=0.6, device="h200")
    assert dense.first is not None
    assert mixture.first is not None
    assert mixture.first.verify_cost_ratio > 0.3 > 0.01 > dense.first.verify_cost_ratio
    assert mixture.first.best_speedup < dense.first.best_speedup - 0.5


def test_a_draft_goes_where_it_is_faster() -> None:
    """A small draft in fp8 is better off on one card than paying for sums on two."""
    chosen = plan("llama-3.1-70b", "llama-3.2-1b", devices=2, dtype="fp8")
    spread = plan("llama-3.1-70b", "llama-3.2-1b", devices=2, dtype="fp8", draft_devices=2)
    assert chosen.draft_devices == 1
    assert chosen.first is not None
    assert spread.first is not None
    assert chosen.first.best_speedup >= spread.first.best_speedup
    odd = plan("llama-3.1-8b", "smollm2-135m", devices=2)
    assert odd.draft_devices == 1
    with pytest.raises(ConfigError, match="draft-devices 1"):
        plan("llama-3.1-8b", "smollm2-135m", devices=2, draft_devices=2)


def test_ngram_costs_nothing_and_takes_nothing() -> None:
    answer = plan("llama-3.1-8b", "ngram", acceptance=0.5, max_gamma=16)
    assert answer.first is not None
    assert answer.first.draft_cost_ratio == 0.0
    assert answer.memory.sessions_with_draft == answer.memory.sessions_plain
    assert answer.payback_tokens == 0


def test_a_drafter_that_rarely_proposes_is_charged_rarely() -> None:
    always = AcceptanceProfile("always", (0.8,), "given")
    half = AcceptanceProfile("half", (0.8,), "given", proposal_rate=0.5)
    often = plan("llama-3.1-8b", "ngram", acceptance=always)
    seldom = plan("llama-3.1-8b", "ngram", acceptance=half)
    assert often.first is not None
    assert seldom.first is not None
    gained = seldom.first.cells[4].tokens_per_step - 1
    assert gained == pytest.approx((often.first.cells[4].tokens_per_step - 1) / 2)
    assert seldom.first.cells[4].step_ms <= often.first.cells[4].step_ms


def test_payback_of_the_drafts_prefill() -> None:
    answer = plan("llama-3.1-70b", "llama-3.1-8b", devices=4, context=32768)
    row = answer.first
    assert row is not None
    assert answer.payback_tokens is not None
    saved = row.plain_step_ms * (1 - 1 / row.best_speedup)
    assert (answer.payback_tokens - 1) * saved < answer.draft_prefill_ms
    assert answer.payback_tokens * saved >= answer.draft_prefill_ms


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: plan("llama-3.1-8b", "ngram", batches=()), "batch"),
        (lambda: plan("llama-3.1-8b", "ngram", batches=(0,)), "batch"),
        (lambda: plan("llama-3.1-8b", "ngram", context=0), "context"),
        (lambda: plan("llama-3.1-8b", "ngram", max_gamma=0), "max_gamma"),
        (lambda: plan("llama-3.1-8b", "ngram", devices=4, draft_devices=2), "draft_devices"),
        (lambda: plan("llama-3.1-8b", "ngram", acceptance=1.2), "acceptance"),
    ],
)
def test_bad_setups_name_the_field(call: object, field: str) -> None:
    assert callable(call)
    with pytest.raises(ConfigError) as caught:
        call()
    assert caught.value.field == field


# ------------------------------------------------------------------ acceptance profiles


def test_every_workload_has_a_profile_with_a_source_for_every_drafter() -> None:
    assert set(WORKLOADS) == {
        *("code-edit", "code-completion", "chat", "summarise", "high-temperature-prose"),
    }
    for workload in WORKLOADS.values():
        for kind in DraftKind:
            profile = workload.profile(kind, 1e9, 70e9)
            survivals = profile.survivals(8)
            assert profile.source
            assert not profile.measured_here
            assert list(survivals) == sorted(survivals, reverse=True)


def test_workloads_are_ordered_as_the_field_finds_them() -> None:
    def alpha(name: str, kind: DraftKind = DraftKind.MODEL) -> float:
        return su.expected_tokens(find_workload(name).profile(kind, 1e9, 70e9).survivals(6))

    assert alpha("code-completion") > alpha("chat") > alpha("high-temperature-prose")
    assert alpha("code-edit", DraftKind.NGRAM) > alpha("chat", DraftKind.NGRAM)
    assert alpha("summarise", DraftKind.NGRAM) > alpha("chat", DraftKind.NGRAM)


def test_derived_numbers_follow_from_what_was_published() -> None:
    """Chen et al. on HumanEval; Spec-Bench's prompt lookup with 10 drafted; vLLM's edits."""
    chen = su.alpha_for_tokens(2.46 * (1 + 4 * 1.8 / 14.1), 4)
    assert find_workload("code-completion").model.alpha == pytest.approx(chen, abs=0.006)
    for name, tokens in (("chat", 1.60), ("summarise", 2.66), ("code-completion", 1.75)):
        alpha = su.alpha_for_tokens(tokens, 10)
        assert find_workload(name).ngram.first == pytest.approx(alpha, abs=0.006)
    edits = find_workload("code-edit").ngram
    assert edits.proposal_rate == pytest.approx(993 / (993 + 821), abs=0.001)
    assert su.expected_tokens(edits.survivals(5)) == pytest.approx(5376 / (993 + 821), abs=0.01)


def test_size_slope_is_the_mean_of_the_published_series() -> None:
    """Least squares of alpha over log10 of the draft's size, in each series."""
    sizes = (77e6, 250e6, 800e6)
    series = [
        (sizes, (0.75, 0.80, 0.82)),
        (sizes, (0.62, 0.68, 0.71)),
        (sizes, (0.65, 0.73, 0.74)),
        (sizes, (0.53, 0.55, 0.56)),
        ((100e6, 2e9, 8e9), (0.61, 0.71, 0.75)),
    ]
    slopes = []
    for drafts, alphas in series:
        logs = [math.log10(size) for size in drafts]
        middle_x, middle_y = sum(logs) / 3, sum(alphas) / 3
        rise = sum((x - middle_x) * (y - middle_y) for x, y in zip(logs, alphas, strict=True))
        slopes.append(rise / sum((x - middle_x) ** 2 for x in logs))
    assert sum(slopes) / len(slopes) == pytest.approx(SIZE_SLOPE, abs=0.005)


def test_a_profile_from_counts_is_the_conditional_acceptance() -> None:
    profile = profile_from_counts("mine", [800, 600, 300], [1000, 800, 600])
    assert profile.accept_probs == pytest.approx((0.8, 0.75, 0.5))
    assert profile.survivals(4) == pytest.approx((0.8, 0.6, 0.3, 0.15))
    assert profile.measured_here
    rare = profile_from_counts("rare", [80], [100], num_steps=400)
    assert rare.proposal_rate == 0.25
    ended = profile_from_counts("ended", [3, 0, 0], [10, 3, 0])
    assert ended.accept_probs == pytest.approx((0.3, 0.0))
    # Depth 2 was drafted in only a few of the steps: what counts is how it fared there.
    ragged = profile_from_counts("ragged", [80, 9], [100, 10])
    assert ragged.accept_probs == pytest.approx((0.8, 0.9))


@pytest.mark.parametrize(
    ("accepted", "examined", "steps"),
    [
        ([11], [10], None),
        ([-1], [10], None),
        ([5, 3], [10], None),
        ([], [], None),
        ([0], [0], None),
        ([5], [10], 9),
    ],
)
def test_impossible_counts_are_refused(
    accepted: list[int], examined: list[int], steps: int | None
) -> None:
    with pytest.raises(ConfigError):
        profile_from_counts("bad", accepted, examined, num_steps=steps)


def test_acceptance_as_text_or_file(tmp_path: Path) -> None:
    assert load_acceptance("0.7").accept_probs == (0.7,)
    assert load_acceptance("0.8,0.7,0.6").survivals(3) == pytest.approx((0.8, 0.56, 0.336))
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"passed_per_position": [8, 4], "examined_per_position": [10, 8]}))
    assert load_acceptance(str(path)).accept_probs == pytest.approx((0.8, 0.5))
    path.write_text("{}")
    for text in (str(path), str(tmp_path / "none.json"), "much"):
        with pytest.raises(ConfigError) as caught:
            load_acceptance(text)
        assert caught.value.field == "acceptance"
    with pytest.raises(ConfigError, match="known"):
        find_workload("poetry")


# ------------------------------------------------------------------ the command


def test_command_prints_tables_and_a_verdict() -> None:
    arguments = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b"]
    result = runner.invoke(app, arguments, env={"COLUMNS": "160"})
    assert result.exit_code == 0
    for words in ("Speedup by drafted tokens", "Memory", "break-even acceptance", "Speculate:"):
        assert words in result.stdout


def test_command_compares_and_recommends_the_fastest_that_fits() -> None:
    arguments = [
        "--target",
        "llama-3.1-70b",
        "--devices",
        "1,2,4",
        "--dtype",
        "bf16,int4",
        "--json",
    ]
    for draft in ("llama-3.1-8b", "llama-3.2-1b", "ngram"):
        arguments += ["--draft", draft]
    result = runner.invoke(app, arguments)
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["version"] == 1
    assert len(answer["plans"]) == 3 * 3 * 2
    rates = [
        each["batches"][0]["cells"][each["batches"][0]["best_gamma"]]["tokens_per_s"]
        if each["batches"]
        else 0.0
        for each in answer["plans"]
    ]
    assert answer["best"] == rates.index(max(rates))
    assert min(rates) == 0.0
    best = answer["plans"][answer["best"]]
    assert best["verdict"]["decision"] == "speculate"
    assert best["memory"]["pair_fits"] is True
    assert "Pairings at batch 1" in runner.invoke(app, arguments[:-7] + arguments[-6:]).stdout


@pytest.mark.parametrize("draft", ["llama-3.1-8b", "head", "ngram"])
def test_command_writes_charts(tmp_path: Path, draft: str) -> None:
    arguments = ["--target", "llama-3.1-70b", "--draft", draft, "--devices", "1,4", "--plot"]
    page, picture = tmp_path / "plan.html", tmp_path / "plan.svg"
    assert runner.invoke(app, [*arguments, str(page)]).exit_code == 0
    assert runner.invoke(app, [*arguments, str(picture)]).exit_code == 0
    text = page.read_text()
    assert text.count("<svg") == 2
    assert "<polyline" in text
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text
    assert picture.read_text().startswith("<svg")


def test_chart_of_what_does_not_fit_shows_memory_alone(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    arguments = ["--target", "llama-3.1-70b", "--draft", "llama-3.1-8b", "--plot", str(page)]
    assert runner.invoke(app, arguments).exit_code == 0
    assert "Does not fit" in page.read_text()
    assert "<polyline" not in page.read_text()


@pytest.mark.parametrize(
    ("extra", "word"),
    [
        (["--draft", "nonsense"], "draft"),
        (["--draft", "ngram", "--device", "abacus"], "device"),
        (["--draft", "ngram", "--batch", "1,x"], "batch"),
        (["--draft", "ngram", "--workload", "poetry"], "workload"),
        (["--draft", "ngram", "--acceptance", "1.5"], "acceptance"),
        (["--draft", "ngram", "--dtype", "fp3"], "dtype"),
        (["--draft", "ngram", "--plot", "plan.pdf"], "plot"),
        (["--draft", "ngram", "--pass-us", "-1"], "pass_us"),
        (["--draft", "ngram", "--devices", "3"], "heads"),
        (["--draft", "ngram", "--max-gamma", "0"], "max-gamma"),
    ],
)
def test_command_explains_bad_input(extra: list[str], word: str) -> None:
    result = runner.invoke(app, ["--target", "llama-3.1-8b", *extra])
    assert result.exit_code == 2
    assert word in result.output
    assert "Traceback" not in result.output


def test_command_takes_overheads_and_measured_acceptance(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.json"
    counts = {
        "name": "our editor",
        "passed_per_position": [700, 500, 350],
        "examined_per_position": [1000, 700, 500],
        "num_steps": 1100,
    }
    path.write_text(json.dumps(counts))
    arguments = ["--target", "llama-3.1-8b", "--draft", "head", "--json", "--acceptance", str(path)]
    quick = json.loads(runner.invoke(app, arguments).stdout)["plans"][0]
    slow = json.loads(runner.invoke(app, [*arguments, "--pass-us", "900"]).stdout)["plans"][0]
    assert quick["acceptance"]["name"] == "our editor"
    assert quick["acceptance"]["measured_here"] is True
    assert slow["batches"][0]["best_speedup"] < quick["batches"][0]["best_speedup"]


def test_command_measures_this_machine() -> None:
    arguments = ["--target", "smollm2-135m", "--draft", "head:8192", "--device", "this-machine"]
    result = runner.invoke(app, [*arguments, "--json"])
    assert result.exit_code == 0
    assert json.loads(result.stdout)["plans"][0]["device"]["name"] == "this-machine"


def test_the_paceline_command_hands_everything_on() -> None:
    from paceline.cli import app as paceline

    shown = runner.invoke(paceline, ["plan", "--help"])
    assert shown.exit_code == 0
    assert "--draft-devices" in shown.stdout
    arguments = ["plan", "--target", "llama-3.1-8b", "--draft", "ngram", "--json"]
    answer = runner.invoke(paceline, arguments)
    assert json.loads(answer.stdout)["plans"][0]["draft"]["kind"] == "ngram"
    assert runner.invoke(paceline, ["plan", "--target", "llama-3.1-8b"]).exit_code == 2
