"""On-policy data from Paceline's own engine."""

from __future__ import annotations

import gzip
import itertools
import json
from typing import TYPE_CHECKING

import pytest
import torch

from paceline.core.request import SamplingParams
from paceline.model.chat import ChatMessage
from paceline.training import generate
from paceline.training.answers import read_answers
from paceline.training.generate import GenerationOptions, OnPolicyGenerator
from paceline.training.generation_engine import generation_engine
from paceline.training.prompts import Prompt, PromptKind

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from paceline.training.token_store import TokenSequence
    from tests.training.conftest import TinyTarget

OPTIONS = GenerationOptions(
    concurrency=3, max_prompt_tokens=40, max_question_tokens=6, max_answer_tokens=8
)


def _generate(
    target: TinyTarget, prompts: Iterable[Prompt], count: int, seed: int = 0
) -> list[TokenSequence]:
    engine = generation_engine(target.load(), target.description, target.codec, OPTIONS)
    generator = OnPolicyGenerator(engine, target.codec, itertools.cycle(prompts), OPTIONS, seed)
    return list(itertools.islice(generator, count))


def test_greedy_answers_are_the_targets_own(tiny_target: TinyTarget) -> None:
    prompts = [
        Prompt(PromptKind.INSTRUCTION, "the quick brown fox", 0.0),
        Prompt(PromptKind.RAW, "print(value) for", 0.0),
    ]
    model = tiny_target.load()
    chat = tiny_target.codec.encode_chat([ChatMessage("user", "the quick brown fox")]).ids
    raw = tuple(tiny_target.codec.encode_prompt("print(value) for"))
    found = _generate(tiny_target, prompts, 6)
    assert {sequence.token_ids[: sequence.num_prompt] for sequence in found} == {chat, raw}
    for sequence in found:
        assert sequence.temperature == 0.0
        with torch.no_grad():
            logits = model(torch.tensor([sequence.token_ids])).logits[0]
        answer = sequence.token_ids[sequence.num_prompt :]
        assert 0 < len(answer) <= 8
        best = logits[sequence.num_prompt - 1 : -1]
        chosen = best.gather(1, torch.tensor(answer)[:, None])[:, 0]
        # Ties within rounding may fall either way.
        torch.testing.assert_close(chosen, best.amax(-1), rtol=1e-4, atol=1e-4)


def test_open_prompts_become_chats_that_the_target_began(tiny_target: TinyTarget) -> None:
    found = _generate(tiny_target, [Prompt(PromptKind.OPEN, "", 0.7)], 5)
    first = tiny_target.codec.encode_chat([ChatMessage("user", "alpha")]).ids
    second = tiny_target.codec.encode_chat([ChatMessage("user", "7")]).ids
    before = [a for a, b in zip(first, second, strict=False) if a == b]
    for sequence in found:
        prompt = sequence.token_ids[: sequence.num_prompt]
        assert prompt[: len(before)] == tuple(before)
        text = "".join(map(tiny_target.codec.token_text, prompt))
        assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
        assert text.count("<|im_start|>") == 2
        assert sequence.temperature == 0.7


def test_questions_are_cooler_and_hotter_and_answers_are_as_asked(
    tiny_target: TinyTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def noted(temperature: float, seed: int) -> SamplingParams:
        asked.append(temperature)
        return SamplingParams(temperature=temperature, seed=seed)

    monkeypatch.setattr(generate, "SamplingParams", noted)
    found = _generate(tiny_target, [Prompt(PromptKind.OPEN, "", 0.3)], 12)
    questions = [temperature for temperature in asked if temperature != 0.3]
    assert len(questions) >= len(found) == 12
    assert set(questions) == {0.6, 0.8, 1.0}
    assert all(sequence.temperature == 0.3 for sequence in found)


def test_another_seed_gives_other_answers(tiny_target: TinyTarget) -> None:
    prompts = [Prompt(PromptKind.RAW, "to be or not", 1.0)]
    first, again, other = (_generate(tiny_target, prompts, 6, seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_long_prompts_are_cut(tiny_target: TinyTarget) -> None:
    prompts = [Prompt(PromptKind.RAW, "the quick brown fox jumps " * 40, 1.0)]
    (sequence,) = _generate(tiny_target, prompts, 1)
    assert sequence.num_prompt <= OPTIONS.max_prompt_tokens + 1


def test_answers_that_exist_already(tiny_target: TinyTarget, tmp_path: Path) -> None:
    chats = [
        {
            "messages": [
                {"role": "user", "content": "question"},
                {"role": "assistant", "content": "the lazy dog"},
            ],
            "temperature": 0.7,
        }
    ]
    path = tmp_path / "answers.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write("\n".join(map(json.dumps, chats)))
    codec = tiny_target.codec
    (sequence,) = read_answers(path, codec, max_answer_tokens=50)
    prompt = codec.encode_chat([ChatMessage("user", "question")]).ids
    answer = codec.encode("the lazy dog")
    (end,) = codec.eos_token_ids
    assert sequence.token_ids == (*prompt, *answer, end)
    assert (sequence.num_prompt, sequence.temperature) == (len(prompt), 0.7)
    # As long as the limit: it was cut there, and no end token followed.
    (cut,) = read_answers(path, codec, max_answer_tokens=len(answer))
    assert cut.token_ids == (*prompt, *answer)


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "{}",
        '{"messages": [{"role": "user", "content": "a"}], "temperature": 0}',
        '{"messages": [{"role": "user"}, {"role": "assistant"}], "temperature": 0}',
    ],
)
def test_a_wrong_answer_line_is_named(tiny_target: TinyTarget, tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line)
    with pytest.raises(ValueError, match="line 1"):
        list(read_answers(path, tiny_target.codec, max_answer_tokens=10))
