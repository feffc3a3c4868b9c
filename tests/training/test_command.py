"""`paceline distill` as it is typed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from paceline.core.errors import ConfigError
from paceline.model.draft_folder import describe_draft
from paceline.training import command
from paceline.training.command import app, predicted_speedup
from paceline.training.evaluation import Acceptance, Evaluation

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.table import Table

    from paceline.training.distill import Report
    from tests.training.conftest import TinyTarget


def _arguments(target: TinyTarget, folder: Path, *more: str) -> list[str]:
    return [
        "--target", str(target.folder), "--output", str(folder / "draft"),
        "--work", str(folder / "work"), "--minutes", "0.05", "--concurrency", "4",
        "--output-ids", "280", "--dtype", "float32", *more,
    ]  # fmt: skip


def test_interrupted_and_started_again_it_ends_with_a_draft(
    tiny_target: TinyTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the quick brown fox\nto be or not to be\n")
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "notes.md").write_text("the lazy dog jumps over the quick brown fox again. " * 10)
    arguments = _arguments(tiny_target, tmp_path, "--prompts", str(prompts), "--text", str(texts))
    show: Callable[[Report, int], Table] = command._table

    def interrupt(report: Report, parameters: int) -> Table:
        if report.phase == "training" and report.progress and report.progress.step == 1:
            raise KeyboardInterrupt
        return show(report, parameters)

    monkeypatch.setattr(command, "_table", interrupt)
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 130, first.output
    assert "the same command goes on" in first.output
    assert not (tmp_path / "draft").exists()

    monkeypatch.setattr(command, "_table", show)
    monkeypatch.setattr(command, "_FEW_STEPS", 1 << 30)
    second = CliRunner().invoke(app, arguments)
    assert second.exit_code == 0, second.output
    assert "predicted speedup" in second.output
    assert "the draft is hardly trained (" in " ".join(second.output.split())
    description = describe_draft(tmp_path / "draft")
    assert description.kind == "head"
    assert description.target.name == tiny_target.codec.name


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--kind", "tree"), "kind is 'tree'; it must be one of head, decoder"),
        (("--minutes", "0"), "minutes is 0"),
        (("--prompts", "missing.txt"), "prompts missing.txt does not exist"),
        (("--text", "missing"), "text missing is no folder"),
        (("--answers", "missing.jsonl"), "answers missing.jsonl does not exist"),
        (("--dtype", "int3"), "dtype is 'int3'"),
    ],
)
def test_a_wrong_option_is_named(
    tiny_target: TinyTarget, tmp_path: Path, more: tuple[str, ...], message: str
) -> None:
    result = CliRunner().invoke(app, _arguments(tiny_target, tmp_path, *more))
    assert isinstance(result.exception, ConfigError)
    assert message in str(result.exception)


def test_predicted_speedup_is_that_of_the_best_depth() -> None:
    worthless = Acceptance((0.0, 0.0), 10)
    perfect = Acceptance((1.0, 1.0), 10)
    assert predicted_speedup(Evaluation(None, None, 0.0, 0.0)) == 1.0
    assert predicted_speedup(Evaluation(worthless, None, 0.0, 0.0)) == 1.0
    gain = predicted_speedup(Evaluation(perfect, None, 1.0, 1.0), draft_cost_ratio=0.04)
    assert gain == pytest.approx(3 / (1 + 2 * 0.1))
    both = Evaluation(perfect, worthless, 0.5, 1.0)
    assert predicted_speedup(both, 0.04) == pytest.approx((gain + 1) / 2)
