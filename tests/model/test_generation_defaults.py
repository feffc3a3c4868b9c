"""Sampling for requests that leave it open."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from paceline.core.errors import ModelError
from paceline.core.request import SamplingParams
from paceline.model.generation_defaults import default_sampling

if TYPE_CHECKING:
    from pathlib import Path


def test_what_the_makers_recommend_and_openai_for_the_rest(tmp_path: Path) -> None:
    assert default_sampling(tmp_path) == SamplingParams(temperature=1.0, top_p=1.0)
    values = {"temperature": 0.2, "top_k": 50, "do_sample": True, "max_length": 9, "top_p": None}
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    assert default_sampling(tmp_path) == SamplingParams(temperature=0.2, top_k=50, top_p=1.0)


@pytest.mark.parametrize("text", ["{", "[]", '{"top_p": 2}', '{"temperature": "hot"}'])
def test_a_wrong_recommendation_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ModelError, match=r"generation_config\.json is wrong"):
        default_sampling(tmp_path)
