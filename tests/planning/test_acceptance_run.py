"""Prompts from files, and plans from acceptance that was measured on them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from paceline.core.errors import ConfigError, ModelError
from paceline.planning.acceptance import DraftKind, profile_from_counts
from paceline.planning.acceptance_run import DraftCounts, Prompt, load_prompts
from paceline.planning.command import app
from paceline.planning.sources import load_draft, load_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

runner = CliRunner()


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_text_has_a_prompt_per_line_or_between_separators(tmp_path: Path) -> None:
    lines = written(tmp_path / "lines.txt", "one\n\ntwo words\n")
    assert load_prompts(lines) == [Prompt("one"), Prompt("two words")]
    code = written(tmp_path / "code.txt", "def f():\n\n    pass\n---\ndef g():\n---\n")
    assert load_prompts(code) == [Prompt("def f():\n\n    pass"), Prompt("def g():")]


def test_json_lines_are_messages_texts_or_raw_prompts(tmp_path: Path) -> None:
    conversation = {"messages": [{"role": "user", "content": "Hi"}]}
    values: list[Any] = ["Why?", {"prompt": "def f("}, conversation]
    path = written(tmp_path / "p.jsonl", "\n".join(json.dumps(value) for value in values) + "\n")
    assert load_prompts(path) == [
        Prompt("Why?"),
        Prompt("def f(", is_raw=True),
        Prompt(messages=(("user", "Hi"),)),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no prompts"),
        ('"fine"\n{"prompt": 3}', "line 2"),
        ("{", "line 1 is not JSON"),
        ('{"messages": [{"role": "user"}]}', "a role and a content"),
        ('{"messages": []}', "must be a string"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_prompts(written(tmp_path / "p.jsonl", text))
    with pytest.raises(ConfigError, match="cannot read"):
        load_prompts(tmp_path / "absent.txt")


class ScriptedRun:
    """Acceptance by the name of the draft."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, int, int, float]] = []

    def __call__(
        self,
        target: str,
        draft: str,
        prompts: Sequence[Prompt],
        *,
        num_tokens: int,
        temperature: float,
        max_gamma: int,
    ) -> DraftCounts:
        self.calls.append((draft, prompts[0].text, max_gamma, num_tokens, temperature))
        if draft == "ngram":
            return DraftCounts((40, 30, 0), (50, 40, 30), 200)
        if draft == "smollm2-360m":
            raise ModelError("it is not there", field="draft")
        return DraftCounts((90, 72, 36), (100, 90, 72), 100)


def test_every_draft_is_planned_with_its_own_acceptance(tmp_path: Path) -> None:
    prompts = written(tmp_path / "mine.txt", "one\ntwo\n")
    run = ScriptedRun()
    arguments = ["--target", "llama-3.1-8b", "--draft", "llama-3.2-1b", "--draft", "ngram"]
    arguments += ["--measure", str(prompts), "--temperature", "0.7", "--max-gamma", "3", "--json"]
    result = runner.invoke(app, arguments, obj=run)
    assert result.exit_code == 0, result.output
    assert run.calls == [("llama-3.2-1b", "one", 3, 128, 0.7), ("ngram", "one", 3, 128, 0.7)]
    model, copies = (plan["acceptance"] for plan in json.loads(result.stdout)["plans"])
    assert model["accept_probs"] == [0.9, 0.8, 0.5]
    assert model["measured_here"] is True
    assert model["source"] == ("measured over 100 steps: 2 prompts of mine.txt at temperature 0.7")
    assert copies["accept_probs"] == [0.8, 0.75, 0.0]
    assert copies["proposal_rate"] == 0.25


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        (["--draft", "head"], "not one that can be run"),
        (["--draft", "llama-3.2-1b:vocab=16000"], "not one that can be run"),
        (["--draft", "ngram", "--acceptance", "0.7"], "either given or measured"),
        (["--draft", "ngram", "--measure-tokens", "1"], "at least 2"),
        (["--draft", "smollm2-360m"], "it is not there"),
    ],
)
def test_what_cannot_be_measured_is_refused(tmp_path: Path, extra: list[str], words: str) -> None:
    prompts = written(tmp_path / "mine.txt", "one\n")
    arguments = ["--target", "llama-3.1-8b", "--measure", str(prompts), *extra]
    result = runner.invoke(app, arguments, obj=ScriptedRun())
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_block_verification_may_accept_more_than_was_examined() -> None:
    """Counts of telemetry are by the token rule for what was examined."""
    profile = profile_from_counts("block", [80, 70, 20], [100, 65, 60])
    assert profile.accept_probs == pytest.approx((0.8, 1.0, 1 / 3))
    with pytest.raises(ConfigError, match="depth 3"):
        profile_from_counts("nonsense", [80, 10, 30], [100, 80, 20])


def test_a_draft_folder_is_planned_by_its_own_shape(tmp_path: Path) -> None:
    target = load_model("smollm2-135m").shape
    module = {
        "hidden_size": 576,
        "intermediate_size": 1000,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "num_output_ids": 8192,
        "feature_layers": [14, 28, -1],
        "num_layers": 1,
    }
    content = {"format": "paceline-draft-1", "kind": "head", "module": module}
    written(tmp_path / "config.json", json.dumps(content))
    draft = load_draft(str(tmp_path), target)
    assert draft.kind is DraftKind.HEAD
    assert draft.shape is not None
    assert draft.shape.output_vocab_size == 8192
    assert draft.shape.intermediate_size == 1000
    assert draft.shape.fusion_params == 3 * 576 * 576
    written(tmp_path / "config.json", json.dumps({"format": "paceline-draft-1"}))
    with pytest.raises(ConfigError, match="not the description of a draft"):
        load_draft(str(tmp_path), target)
