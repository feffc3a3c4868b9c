"""Where prompts come from."""

from __future__ import annotations

import random
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from paceline.training import prompts
from paceline.training.prompts import PromptKind

if TYPE_CHECKING:
    from pathlib import Path


def test_self_written_prompts_vary_and_repeat_with_the_seed() -> None:
    first = list(islice(prompts.self_written(random.Random(1)), 200))
    assert first == list(islice(prompts.self_written(random.Random(1)), 200))
    assert len({prompt.text for prompt in first}) > 150
    assert {prompt.temperature for prompt in first} == {0.0, 0.7, 1.0}
    assert not any("{}" in prompt.text for prompt in first)


def test_a_file_of_lines_and_a_file_of_json(tmp_path: Path) -> None:
    plain = tmp_path / "plain.txt"
    plain.write_text("one\n\ntwo\n")
    lines = tmp_path / "lines.jsonl"
    lines.write_text('"one"\n{"prompt": "two"}\n')
    for path in (plain, lines):
        texts = [p.text for p in islice(prompts.from_file(path, random.Random(0)), 4)]
        assert sorted(texts[:2]) == sorted(texts[2:]) == ["one", "two"]


@pytest.mark.parametrize("line", ["{", "3", '{"text": "x"}', '""'])
def test_a_wrong_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(ValueError, match="line 2"):
        next(prompts.from_file(path, random.Random(0)))


def test_an_empty_file_and_an_empty_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    with pytest.raises(ValueError, match="no prompts"):
        next(prompts.from_file(tmp_path / "empty.txt", random.Random(0)))
    with pytest.raises(ValueError, match="no text or Python files"):
        next(prompts.from_folder(tmp_path, random.Random(0)))


def test_functions_are_quoted_or_cut_after_their_docstring(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text(
        'class A:\n    def documented(self, value):\n        """Say what it does."""\n'
        "        result = value + 1\n        return result\n\n\n"
        "def plain(first, second):\n    total = first + second\n"
        "    print('the total is', total)\n    return total\n"
    )
    found = list(islice(prompts.from_folder(tmp_path, random.Random(0)), 60))
    raw = {prompt.text for prompt in found if prompt.kind is PromptKind.RAW}
    assert raw == {'def documented(self, value):\n    """Say what it does."""\n'}
    asked = [prompt.text for prompt in found if prompt.kind is PromptKind.INSTRUCTION]
    assert any("total = first + second" in text for text in asked)


def test_text_is_quoted_or_cut(tmp_path: Path) -> None:
    passage = "The quick brown fox jumps over the lazy dog again and again. " * 8
    (tmp_path / "notes.md").write_text(passage)
    (tmp_path / "image.bin").write_bytes(bytes(range(256)))
    found = list(islice(prompts.from_folder(tmp_path, random.Random(0)), 40))
    raw = [prompt.text for prompt in found if prompt.kind is PromptKind.RAW]
    assert raw
    assert all(passage.startswith(text) for text in raw)
    assert any(passage.strip() in p.text for p in found if p.kind is PromptKind.INSTRUCTION)


def test_a_mix_keeps_its_proportions() -> None:
    rng = random.Random(0)
    mixed = prompts.mix([(3.0, prompts.open_questions(rng)), (1.0, prompts.self_written(rng))], rng)
    kinds = [prompt.kind for prompt in islice(mixed, 2000)]
    assert 0.7 < kinds.count(PromptKind.OPEN) / len(kinds) < 0.8
