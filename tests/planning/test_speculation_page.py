"""Every number in the tables of ops/docs/speculation.md is what the code computes.

A table on that page that stands under a comment `<!-- table: NAME -->` is rebuilt here by the
function of that name and compared cell by cell. Run this file as a script to print the tables.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from paceline.core import speedup as su
from paceline.planning.acceptance import AcceptanceProfile, find_workload
from paceline.planning.devices import Efficiency, find_device
from paceline.planning.plan import Plan, Setup, make_plan
from paceline.planning.precision import find_precision
from paceline.planning.roofline import PlacedModel
from paceline.planning.sources import load_draft, load_model

if TYPE_CHECKING:
    from collections.abc import Callable

PAGE = Path(__file__).resolve().parents[2] / "ops" / "docs" / "speculation.md"

Table = list[list[str]]


def _place(
    name: str, dtype: str, device: str, devices: int = 1, pass_us: float = 200.0
) -> PlacedModel:
    where = find_device(device)
    where = replace(where, efficiency=Efficiency(pass_us=pass_us))
    return PlacedModel(load_model(name).shape, find_precision(dtype), where, devices)


def _plan(
    target: str,
    draft: str,
    *,
    device: str = "h100-sxm",
    devices: int = 1,
    dtype: str = "bf16",
    workload: str = "code-completion",
    batches: tuple[int, ...] = (1,),
    context: int = 2048,
    acceptance: AcceptanceProfile | None = None,
) -> Plan:
    shape = load_model(target).shape
    source = load_draft(draft, shape)
    profile = acceptance or find_workload(workload).profile(
        source.kind, source.shape.total_params if source.shape else 0, shape.total_params
    )
    return make_plan(
        Setup(
            target=shape,
            target_precision=find_precision(dtype),
            draft=source,
            draft_precision=find_precision(dtype),
            device=find_device(device),
            acceptance=profile,
            num_devices=devices,
            batches=batches,
            context=context,
            max_gamma=source.kind.max_gamma,
        )
    )


def rows_are_free() -> Table:
    """Linear layers of an 8B model on one H100: bytes against arithmetic."""
    model = _place("llama-3.1-8b", "bf16", "h100-sxm")
    table = [["rows in the pass", "reading weights, ms", "arithmetic, ms", "the pass takes, ms"]]
    for rows in (1, 5, 16, 64, 256, 512):
        cost = model.pass_cost(rows, 1, 2048)
        table.append(
            [
                str(rows),
                f"{cost.linear_memory * 1e3:.2f}",
                f"{cost.linear_compute * 1e3:.2f}",
                f"{cost.seconds * 1e3:.2f}",
            ]
        )
    return table


def residual() -> Table:
    """Three tokens, worked through the acceptance rule in exact fractions."""
    target = {"A": Fraction(5, 10), "B": Fraction(3, 10), "C": Fraction(2, 10)}
    draft = {"A": Fraction(2, 10), "B": Fraction(5, 10), "C": Fraction(3, 10)}
    overlap = {token: min(target[token], draft[token]) for token in target}
    excess = {token: max(Fraction(0), target[token] - draft[token]) for token in target}
    alpha = sum(overlap.values())
    mass = sum(excess.values())
    table = [
        [
            "token",
            "target p",
            "draft q",
            "accept min(1, p/q)",
            "q x accept",
            "p - q above 0",
            "residual",
            "out",
        ]
    ]
    for token in target:
        accept = min(Fraction(1), target[token] / draft[token])
        out = draft[token] * accept + (1 - alpha) * excess[token] / mass
        assert out == target[token]
        values = [
            target[token],
            draft[token],
            accept,
            overlap[token],
            excess[token],
            excess[token] / mass,
            out,
        ]
        table.append([token, *(f"{float(value):.2f}" for value in values)])
    sums = ["1.00", "1.00", "", f"{float(alpha):.2f}", f"{float(mass):.2f}", "1.00", "1.00"]
    table.append(["sum", *sums])
    return table


def tokens_per_step() -> Table:
    gammas = (1, 2, 3, 4, 6, 8)
    table = [["acceptance", *(f"{gamma} drafted" for gamma in gammas)]]
    for alpha in (0.3, 0.5, 0.7, 0.8, 0.9):
        cells = [f"{su.expected_tokens_iid(alpha, gamma):.2f}" for gamma in gammas]
        table.append([f"{alpha:.1f}", *cells])
    return table


def ratio_trap() -> Table:
    table = [["drafted", "accepted / drafted", "acceptance"]]
    for gamma in (1, 2, 4, 8):
        ratio = (su.expected_tokens_iid(0.7, gamma) - 1) / gamma
        table.append([str(gamma), f"{ratio:.2f}", f"{su.alpha_for_ratio(ratio, gamma):.2f}"])
    return table


def speedups() -> Table:
    gammas = (1, 2, 3, 4, 6, 8)
    table = [["acceptance", *(f"{gamma} drafted" for gamma in gammas), "best"]]
    for alpha in (0.3, 0.5, 0.7, 0.8, 0.9):
        cells = [f"{su.speedup_iid(alpha, gamma, 0.07, 0.03):.2f}" for gamma in gammas]
        best = su.best_gamma(su.iid_survivals(alpha, 12), 0.07, 0.03)
        table.append([f"{alpha:.1f}", *cells, f"{best.speedup:.2f} at {best.gamma}"])
    return table


def published() -> Table:
    """Leviathan et al.: what the formula expects of their pairs, beside what they measured."""
    cases = [
        ("translate, 77M, T=0", 0.02, 0.75, 7, 3.4),
        ("translate, 250M, T=0", 0.04, 0.80, 7, 2.8),
        ("translate, 800M, T=0", 0.11, 0.82, 7, 1.7),
        ("translate, 77M, T=1", 0.02, 0.62, 7, 2.6),
        ("summarise, 77M, T=0", 0.02, 0.65, 5, 3.1),
        ("summarise, 77M, T=1", 0.02, 0.53, 5, 2.3),
    ]
    table = [["task and draft", "c", "acceptance", "drafted", "formula", "they measured"]]
    for name, cost, alpha, gamma, measured in cases:
        gain = su.speedup_iid(alpha, gamma, cost)
        row = [name, f"{cost:.2f}", f"{alpha:.2f}", str(gamma), f"{gain:.1f}x", f"{measured}x"]
        table.append(row)
    return table


def break_even() -> Table:
    table = [["acceptance", "draft row costs 0.1 b", "draft row costs 0.5 b"]]
    for alpha in (0.4, 0.6, 0.7, 0.8):
        cells = []
        for draft in (0.1, 0.5):
            batch = su.break_even_batch(
                alpha, fixed_seconds=12.0, row_seconds=1.0, draft_row_seconds=draft
            )
            cells.append(f"{batch:.1f}")
        table.append([f"{alpha:.1f}", *cells])
    return table


def busy_server() -> Table:
    """An 8B chat model with a 1B draft on one H100, short contexts, growing batch."""
    batches = (1, 16, 64, 128, 192, 256)
    plan = _plan("llama-3.1-8b", "llama-3.2-1b", workload="chat", batches=batches, context=256)
    table = [["sessions at once", "plain step, ms", "best drafted", "speedup", "always 4 drafted"]]
    for row in plan.rows:
        assert row.fits
        table.append(
            [
                str(row.batch),
                f"{row.plain_step_ms:.2f}",
                str(row.best_gamma),
                f"{row.best_speedup:.2f}x",
                f"{row.cells[4].speedup:.2f}x",
            ]
        )
    return table


def poor_draft() -> Table:
    """Acceptance 0.3 at several costs of the draft: the best depth and a stubborn 4."""
    table = [["draft cost c", "best drafted", "speedup", "always 4 drafted"]]
    for cost in (0.02, 0.07, 0.15, 0.30):
        best = su.best_gamma(su.iid_survivals(0.3, 8), cost, 0.03)
        always = su.speedup_iid(0.3, 4, cost, 0.03)
        table.append([f"{cost:.2f}", str(best.gamma), f"{best.speedup:.2f}x", f"{always:.2f}x"])
    return table


def short_outputs() -> Table:
    """70B on 4 H100: what the draft's own prefill costs, in tokens of output."""
    table = [
        [
            "prompt tokens",
            "8B draft, ms",
            "earned back after, 8B",
            "1B draft, ms",
            "earned back after, 1B",
        ]
    ]
    for prompt in (512, 4096, 32768):
        row = [str(prompt)]
        for draft in ("llama-3.1-8b", "llama-3.2-1b"):
            plan = _plan("llama-3.1-70b", draft, devices=4, context=prompt)
            row += [f"{plan.draft_prefill_ms:.0f}", f"{plan.payback_tokens}"]
        table.append(row)
    return table


def experts() -> Table:
    model = _place("mixtral-8x7b", "bf16", "h200")
    table = [["rows", "experts read in each layer", "the pass takes, ms", "against 1 row"]]
    plain = model.pass_cost(1, 1, 2048).seconds
    for rows in (1, 2, 3, 5, 9):
        seconds = model.pass_cost(rows, 1, 2048).seconds
        table.append(
            [
                str(rows),
                f"{model.shape.touched_experts(rows):.2f} of 8",
                f"{seconds * 1e3:.1f}",
                f"{seconds / plain:.2f}",
            ]
        )
    return table


def seventy_by_hand() -> Table:
    """The terms of one pass, 70B on 4 H100 in bf16, beside its 8B and 1B drafts."""
    table = [["term", "70B target on 4", "8B draft on 4", "1B draft on 4"]]
    models = [
        _place(name, "bf16", "h100-sxm", 4)
        for name in ("llama-3.1-70b", "llama-3.1-8b", "llama-3.2-1b")
    ]
    costs = [model.pass_cost(1, 1, 2048) for model in models]
    table.append(["weights read, GB on each", *(f"{c.weight_bytes / 1e9:.2f}" for c in costs)])
    table.append(["/ 2.68 TB/s, ms", *(f"{c.linear_memory * 1e3:.2f}" for c in costs)])
    table.append(["K/V of 2048 tokens, ms", *(f"{c.attention_memory * 1e3:.2f}" for c in costs)])
    table.append(["layers x 15 us, ms", *(f"{c.layers * 1e3:.2f}" for c in costs)])
    table.append(["2 allreduces a layer, ms", *(f"{c.allreduce * 1e3:.2f}" for c in costs)])
    table.append(["fixed, ms", *(f"{c.fixed * 1e3:.2f}" for c in costs)])
    table.append(["one pass, ms", *(f"{c.seconds * 1e3:.2f}" for c in costs)])
    ratios = [cost.seconds / costs[0].seconds for cost in costs[1:]]
    table.append(["draft cost c", "", *(f"{ratio:.3f}" for ratio in ratios)])
    return table


SEVENTY = [
    (1, "bf16", "llama-3.1-8b"),
    (2, "bf16", "llama-3.1-8b"),
    (2, "bf16", "llama-3.2-1b"),
    (4, "bf16", "llama-3.1-8b"),
    (4, "bf16", "llama-3.2-1b"),
    (4, "bf16", "head"),
    (1, "fp8", "llama-3.1-8b"),
    (1, "fp8", "llama-3.2-1b"),
    (2, "fp8", "llama-3.1-8b"),
    (2, "fp8", "llama-3.2-1b"),
    (1, "int4", "llama-3.1-8b"),
    (1, "int4", "llama-3.2-1b"),
    (1, "int4", "ngram"),
]


def seventy() -> Table:
    names = {"llama-3.1-8b": "8B", "llama-3.2-1b": "1B", "head": "head", "ngram": "n-gram"}
    table = [
        [
            "H100",
            "weights",
            "draft",
            "GB needed / usable",
            "plain tok/s",
            "c",
            "drafted",
            "tok/step",
            "speedup",
            "tok/s",
            "sessions",
        ]
    ]
    for devices, dtype, draft in SEVENTY:
        plan = _plan("llama-3.1-70b", draft, devices=devices, dtype=dtype)
        memory, row = plan.memory, plan.first
        needed = memory.target_bytes + memory.draft_bytes
        start = [
            str(devices),
            dtype,
            names[draft],
            f"{needed / 1e9:.1f} / {memory.usable_bytes / 1e9:.1f}",
        ]
        if row is None:
            table.append([*start, *["-"] * 4, "does not fit", "-", "-"])
            continue
        cell = row.cells[row.best_gamma]
        table.append(
            [
                *start,
                f"{row.cells[0].tokens_per_s:.0f}",
                f"{row.draft_cost_ratio:.2f}",
                str(row.best_gamma),
                f"{cell.tokens_per_step:.2f}",
                f"{row.best_speedup:.2f}x",
                f"{cell.tokens_per_s:.0f}",
                f"{memory.sessions_with_draft} of {memory.sessions_plain}",
            ]
        )
    return table


EAGLE3_LENGTHS = {
    2: (2.36, 4.32),
    3: (2.79, 4.09),
    4: (3.08, 4.05),
    5: (3.32, 4.13),
    6: (3.46, 4.20),
    7: (3.54, 4.29),
}
EAGLE3_PLAIN_MS = 7.07


def _eagle3_gain(gamma: int, tokens: float, pass_us: float) -> float:
    target = _place("llama-3.1-8b", "bf16", "h100-sxm", pass_us=pass_us)
    head = load_draft("head", target.shape).shape
    assert head is not None
    draft = PlacedModel(head, target.precision, target.device)
    step = gamma * draft.decode_seconds(1, 1024) + target.pass_cost(gamma + 1, 1, 1024).seconds
    return tokens * target.decode_seconds(1, 1024) / step


def calibration() -> Table:
    table = [["drafted", "tokens/step", "measured", "planned, 200 us", "planned, 900 us"]]
    for gamma, (tokens, milliseconds) in EAGLE3_LENGTHS.items():
        table.append(
            [
                str(gamma),
                f"{tokens:.2f}",
                f"{EAGLE3_PLAIN_MS / milliseconds:.2f}x",
                f"{_eagle3_gain(gamma, tokens, 200.0):.2f}x",
                f"{_eagle3_gain(gamma, tokens, 900.0):.2f}x",
            ]
        )
    return table


BUILDERS: dict[str, Callable[[], Table]] = {
    builder.__name__: builder
    for builder in (
        rows_are_free,
        residual,
        tokens_per_step,
        ratio_trap,
        speedups,
        published,
        break_even,
        busy_server,
        poor_draft,
        short_outputs,
        experts,
        seventy_by_hand,
        seventy,
        calibration,
    )
}


def _tables_on_the_page() -> dict[str, Table]:
    tables: dict[str, Table] = {}
    text = PAGE.read_text(encoding="utf-8")
    for name, body in re.findall(r"<!-- table: (\w+) -->\n((?:\|.*\n)+)", text):
        lines = [line.strip().strip("|") for line in body.splitlines()]
        rows = [[cell.strip() for cell in line.split("|")] for line in lines]
        tables[name] = [row for index, row in enumerate(rows) if index != 1]  # the ruler line
    return tables


@pytest.mark.parametrize("name", BUILDERS)
def test_a_table_says_what_the_code_computes(name: str) -> None:
    assert _tables_on_the_page()[name] == BUILDERS[name]()


def test_numbers_in_the_text() -> None:
    """The arithmetic written out in sentences, recomputed."""
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    small = _place("llama-3.1-8b", "bf16", "h100-sxm")
    cost = small.pass_cost(1, 1, 2048)
    assert (
        f"{cost.weight_bytes / 1e9:.1f} GB / 2.68 TB/s = {cost.linear_memory * 1e3:.2f} ms" in text
    )
    assert f"(0.70 x 989 T/s) = {cost.linear_compute * 1e3:.2f} ms" in text
    assert f"{su.expected_tokens_iid(0.7, 4):.2f}. However many" in text
    assert f"1 / (1 - alpha) = {1 / 0.3:.2f}" in text

    target = _place("llama-3.1-70b", "bf16", "h100-sxm", 2)
    draft = _place("llama-3.1-8b", "bf16", "h100-sxm")
    usable = target.device.memory_bytes * 0.9
    assert f"x 2 bytes = {target.stored_bytes / 1e9:.1f} GB" in text
    assert f"= {target.device.memory_bytes / 1e9:.1f} GB, of which we give 90 %" in text
    assert f"90 % = {usable / 1e9:.1f} GB" in text
    assert f"each holds {target.stored_bytes_per_device / 1e9:.1f} GB" in text
    assert f"leaves {(usable - target.stored_bytes_per_device) / 1e9:.1f} GB" in text
    assert f"an 8B draft of {draft.stored_bytes / 1e9:.1f} GB" in text
    active = [
        load_model(name).shape.active_params / 1e9
        for name in ("llama-3.1-70b", "llama-3.1-8b", "llama-3.2-1b")
    ]
    assert f"{active[0]:.2f}, {active[1]:.2f} and {active[2]:.2f} billion" in text

    tokens = 2.46 * (1 + 4 * 1.8 / 14.1)
    assert f"= {tokens:.2f} tokens a step, and alpha = {su.alpha_for_tokens(tokens, 4):.2f}" in text
    for name, words in (("llama-3.1-8b", "{:.3f} of 8B"), ("llama-3.2-1b", "{:.3f} of 1B")):
        plan = _plan("llama-3.1-70b", name, devices=4)
        assert words.format(plan.setup.acceptance.first) in text
        assert plan.first is not None
        cell, cost_ratio = plan.first.cells[6], plan.first.draft_cost_ratio
        steps = 1 + 6 * cost_ratio
        said = f"{cell.tokens_per_step:.2f} tokens for"
        assert said in text
        assert f"{steps:.2f} plain steps" in text or f"{steps:.2f} steps" in text
        assert f"{cell.speedup:.2f}x" in text
    alone = _plan("llama-3.1-70b", "ngram", dtype="fp8").memory.sessions_plain
    assert f"with room for {alone} sessions" in text

    h200 = _place("llama-3.3-70b", "fp8", "h200")
    assert f"should write {1 / h200.decode_seconds(1, 2048):.1f} tokens/s at batch 1" in text
    best = _plan("llama-3.3-70b", "llama-3.2-1b", device="h200", dtype="fp8").first
    assert best is not None
    assert f"says {best.best_speedup:.1f}x for a 1B draft" in text
    mixture = _place("mixtral-8x7b", "bf16", "h200")
    plain, five = (mixture.pass_cost(rows, 1, 2048).seconds for rows in (1, 5))
    assert f"costs {five / plain:.1f} plain steps" in text
    assert f"v is about {(five / plain - 1) / 4:.1f}" in text


def test_no_table_goes_unchecked() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(re.findall(r"^\|[\s:|-]+\|$", text, flags=re.MULTILINE)) == len(BUILDERS)
    assert set(_tables_on_the_page()) == set(BUILDERS)


def test_calibrated_planner_agrees_with_the_published_run() -> None:
    """900 us a pass: plain step within 2 %, every depth within 8 % of what was measured."""
    plain = _place("llama-3.1-8b", "bf16", "h100-sxm", pass_us=900.0).decode_seconds(1, 1024)
    assert plain * 1e3 == pytest.approx(EAGLE3_PLAIN_MS, rel=0.02)
    for gamma, (tokens, milliseconds) in EAGLE3_LENGTHS.items():
        measured = EAGLE3_PLAIN_MS / milliseconds
        assert _eagle3_gain(gamma, tokens, 900.0) == pytest.approx(measured, rel=0.08)


def test_default_overheads_agree_with_a_tuned_engine() -> None:
    """TensorRT-LLM, Llama 3.3 70B in FP8 on one H200, batch 1: 51.14 tokens/s plain."""
    rate = 1.0 / _place("llama-3.3-70b", "fp8", "h200").decode_seconds(1, 1024)
    assert rate == pytest.approx(51.14, rel=0.05)


def test_block_verification_example() -> None:
    """The page's example: two tokens, two drafted: 10/9 accepted by token, 11/9 by block."""
    target = {"A": Fraction(1, 3), "B": Fraction(2, 3)}
    draft = {"A": Fraction(2, 3), "B": Fraction(1, 3)}
    one = Fraction(1)
    by_token = by_block = Fraction(0)
    for first in target:
        keep = min(one, target[first] / draft[first])
        by_token += draft[first] * keep
        by_block += draft[first] * keep
        for second in target:
            ratio = target[second] / draft[second]
            weight = draft[first] * draft[second]
            by_token += weight * keep * min(one, ratio)
            by_block += weight * min(one, keep * ratio)
    assert (by_token, by_block) == (Fraction(10, 9), Fraction(11, 9))
    page = PAGE.read_text(encoding="utf-8")
    assert "10/9" in page
    assert "11/9" in page


def as_markdown(table: Table) -> str:
    """The table as the page writes it."""
    lines = ["| " + " | ".join(row) + " |" for row in table]
    lines.insert(1, "|" + " ---: |" * len(table[0]))
    return "\n".join(lines) + "\n"
