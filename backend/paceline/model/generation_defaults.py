"""How a model's makers recommend to sample from it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ModelError, RequestError
from paceline.core.request import SamplingParams

if TYPE_CHECKING:
    from pathlib import Path

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


def default_sampling(folder: Path) -> SamplingParams:
    """Sampling for requests that do not say: what the folder's `generation_config.json` holds, and
    for the rest OpenAI's defaults (temperature 1, top_p 1).

    Raises ModelError when a value there is out of range.
    """
    path = folder / "generation_config.json"
    if not path.is_file():
        return SamplingParams()
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        given = {name: values[name] for name in _NAMES if values.get(name) is not None}
        return SamplingParams(**given)
    except (ValueError, TypeError, AttributeError, RequestError) as error:
        raise ModelError(f"{path} is wrong: {error}", field="target") from error
