"""The script for a GPU, on a CPU: what it says without one, and that its script is followed."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest
import torch

from ops.bench import gpu
from ops.bench.gpu import Bench, dry_plan, kernel_for_dry_run, record_by_running_again

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small have no work for a second one, which would spin."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_without_a_gpu_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    assert capsys.readouterr().out == gpu.NO_GPU + "\n"


def test_the_dry_run_goes_through_all_steps(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "1 sessions: plain" in out
    assert "2 sessions: plain" in out


@pytest.mark.parametrize(("acceptance", "tokens_per_step"), [(0.0, 1.0), (1.0, 5.0)])
def test_drafts_are_accepted_as_the_script_says(acceptance: float, tokens_per_step: float) -> None:
    plan = dry_plan(acceptance)
    bench = Bench(
        plan, torch.device("cpu"), record=record_by_running_again, kernel=kernel_for_dry_run
    )
    for has_graphs in (False, True):
        for sessions in plan.sessions:
            _, plain = bench.rate(has_graphs=has_graphs, gamma=0, sessions=sessions)
            _, drafted = bench.rate(has_graphs=has_graphs, gamma=plan.gamma, sessions=sessions)
            assert plain == 1.0
            # Answers have one token of the prompt's pass and then whole steps.
            assert drafted == tokens_per_step


def test_rounds_are_left_out_when_time_is_up() -> None:
    bench = Bench(
        dry_plan(0.5),
        torch.device("cpu"),
        record=record_by_running_again,
        kernel=kernel_for_dry_run,
    )
    rows = gpu.measure(bench, deadline=0.0)
    assert [row["sessions"] for row in rows] == [1, 2]
    assert all(row["rounds"] == 1 and row["ratio_to_plain"]["plain"] == 1.0 for row in rows)


def test_gpu_tests_that_hang_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: Sequence[str], **options: Any) -> Any:
        assert command[-4:] == ["-m", "gpu", "-p", "no:cacheprovider"]
        raise subprocess.TimeoutExpired(list(command), options["timeout"])

    monkeypatch.setattr(subprocess, "run", run)
    assert gpu.run_gpu_tests(3) == {"exit_code": None, "said": "not over after 3 s"}
