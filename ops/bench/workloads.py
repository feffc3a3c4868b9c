"""Four kinds of text for an engine, from copying nearly everything to foretelling nearly nothing.

The prompts are those of `paceline bench`, but for code completion, which must not need a package.
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.benchmark.workloads import find_workload
from paceline.core.request import SamplingParams


class Workload(NamedTuple):
    """texts: prompts, as a user's message if is_chat, else to be continued as they are."""

    name: str
    texts: tuple[str, ...]
    sampling: SamplingParams
    is_chat: bool = False


_STARTS = (
    'def fibonacci(n):\n    """The n-th Fibonacci number, iteratively."""\n',
    'def is_palindrome(text):\n    """Whether text reads the same backwards."""\n',
    "import csv\n\n\ndef load_rows(path):\n",
    "class Point:\n    def __init__(self, x, y):\n",
    'def gcd(a, b):\n    """Greatest common divisor."""\n',
    "def count_words(text):\n    counts = {}\n",
)


def _packaged(name: str, source: str, sampling: SamplingParams) -> Workload:
    found = find_workload(source)
    return Workload(name, found.texts, sampling, found.is_chat)


WORKLOADS = (
    _packaged("code edit", "code-edit", SamplingParams(temperature=0.0)),
    Workload("code completion", _STARTS, SamplingParams(temperature=0.2)),
    _packaged("chat", "chat", SamplingParams(temperature=0.7, top_p=0.9)),
    _packaged("prose, hot", "high-temperature-prose", SamplingParams(temperature=1.5)),
)
