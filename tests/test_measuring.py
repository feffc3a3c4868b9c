"""Acceptance measured by running tiny models over prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paceline.core.errors import ConfigError
from paceline.measuring import measure_acceptance
from paceline.planning.acceptance import profile_from_counts
from paceline.planning.acceptance_run import DraftCounts, Prompt
from tests.model.tiny import byte_level_tokenizer, llama_config, write_model, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS = 20
PROMPTS = [
    Prompt("abcabcabcabc"),
    Prompt("some words", is_raw=True),
    *[Prompt(f"number {i}") for i in range(6)],
]


@pytest.fixture
def models(tmp_path: Path) -> dict[str, str]:
    """A target, and another one that knows nothing of it."""
    tokenizer = byte_level_tokenizer()
    folders = {}
    for seed, name in enumerate(("target", "stranger")):
        config = llama_config(initializer_range=0.3, vocab_size=330, dtype="float32")
        folder = write_model(tmp_path / name, config, seed=seed)
        folders[name] = str(write_tokenizer(folder, tokenizer))
    return folders


def measured(models: dict[str, str], draft: str, **changes: int) -> DraftCounts:
    values = {"num_tokens": NUM_TOKENS, "max_gamma": 3} | changes
    return measure_acceptance(
        models["target"], models.get(draft, draft), PROMPTS, temperature=0.0, **values
    )


def test_the_target_itself_is_accepted_and_a_stranger_is_not(models: dict[str, str]) -> None:
    perfect = measured(models, "target")
    steps = perfect.num_steps
    assert perfect.accepted_per_position[0] >= 0.9 * perfect.examined_per_position[0]
    # One token with the prompt, then rounds of up to 4.
    assert steps <= len(PROMPTS) * (NUM_TOKENS // 4 + 1)
    poor = measured(models, "stranger")
    profile = profile_from_counts(
        "x", poor.accepted_per_position, poor.examined_per_position, num_steps=poor.num_steps
    )
    assert profile.first < 0.5
    assert poor.num_steps > steps
    examined, accepted = poor.examined_per_position, poor.accepted_per_position
    assert all(later <= before for later, before in zip(examined[1:], accepted, strict=False))


def test_look_ups_are_counted_where_there_was_a_match(models: dict[str, str]) -> None:
    counts = measured(models, "ngram")
    assert 0 < counts.examined_per_position[0] < counts.num_steps


def test_prompts_too_long_for_the_target_are_refused(models: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="more than the target's"):
        measured(models, "ngram", num_tokens=1 << 20)
