"""Acceptance measured on the user's own prompts: what such a run is given and what it gives back.

Planning knows no models. Whoever starts the command hands over the function that runs them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SEPARATOR = "---"


@dataclass(frozen=True, slots=True)
class Prompt:
    """text, as a user's message where the target has a chat template (unless is_raw: to be
    continued as it is); or messages, each with `role` and `content`, of a conversation."""

    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    is_raw: bool = False


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Of one draft. examined_per_position[i]: rounds that drafted position i and accepted all
    before it; accepted_per_position[i]: those that accepted it too. num_steps: decoding steps of
    all prompts, with those in which nothing was drafted."""

    accepted_per_position: tuple[int, ...]
    examined_per_position: tuple[int, ...]
    num_steps: int


class AcceptanceRun(Protocol):
    """Lets a target answer prompts with one draft and counts what is accepted."""

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
        """target: as for `paceline serve`. draft: likewise, or `ngram`. num_tokens: of an answer
        at most. max_gamma: drafted in every step.

        Raises PacelineError for models that cannot be loaded or paired.
        """
        ...


def load_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file.

    `.jsonl`: one JSON value per line: a string, {"prompt": "..."} to be continued as it is, or
    {"messages": [{"role": "user", "content": "..."}]}. Anything else is text with one prompt per
    line, or, if it has lines `---`, one between each two of them.

    Raises ConfigError naming the line that is wrong.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"measure: cannot read {path}: {error}", field="measure") from error
    lines = text.splitlines()
    if path.suffix == ".jsonl":
        prompts = [
            _from_json(line, f"{path}, line {number}")
            for number, line in enumerate(lines, start=1)
            if line.strip()
        ]
    elif SEPARATOR in (line.strip() for line in lines):
        parts: list[list[str]] = [[]]
        for line in lines:
            if line.strip() == SEPARATOR:
                parts.append([])
            else:
                parts[-1].append(line)
        prompts = [Prompt("\n".join(part)) for part in parts if "".join(part).strip()]
    else:
        prompts = [Prompt(line) for line in lines if line.strip()]
    if not prompts:
        raise ConfigError(f"measure: {path} has no prompts", field="measure")
    return prompts


def _from_json(line: str, where: str) -> Prompt:
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise ConfigError(f"measure: {where} is not JSON: {error}", field="measure") from error
    match value:
        case str() if value:
            return Prompt(value)
        case {"prompt": str(text)} if text:
            return Prompt(text, is_raw=True)
        case {"messages": [*messages]} if messages:
            return Prompt(messages=tuple(_message(message, where) for message in messages))
    raise ConfigError(
        f'measure: {where} must be a string, {{"prompt": "..."}} or {{"messages": [...]}}',
        field="measure",
    )


def _message(value: Any, where: str) -> tuple[str, str]:
    match value:
        case {"role": str(role), "content": str(content)}:
            return role, content
    raise ConfigError(
        f"measure: {where}: a message has a role and a content, both texts", field="measure"
    )
