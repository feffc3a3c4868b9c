"""Four kinds of text, from copying nearly everything to foretelling nearly nothing."""

from __future__ import annotations

from typing import NamedTuple

from paceline.core.request import SamplingParams


class Workload(NamedTuple):
    """texts: prompts, as a user's message if is_chat, else to be continued as they are."""

    name: str
    texts: tuple[str, ...]
    sampling: SamplingParams
    is_chat: bool = False


_FUNCTIONS = (
    '''def mean(values):
    """Arithmetic mean of a non-empty list."""
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    """Mean squared distance from the mean."""
    center = mean(values)
    total = 0.0
    for value in values:
        total += (value - center) ** 2
    return total / len(values)
''',
    '''class Stack:
    """Last in, first out."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()

    def peek(self):
        if not self.items:
            raise IndexError("peek into an empty stack")
        return self.items[-1]
''',
    '''def read_settings(path):
    """Settings from a file with one name and value per line."""
    settings = {}
    with open(path) as file:
        for line in file:
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, value = line.split("=", 1)
            settings[name.strip()] = value.strip()
    return settings
''',
    '''def merge(left, right):
    """Two sorted lists as one sorted list."""
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    merged.extend(left[i:])
    merged.extend(right[j:])
    return merged
''',
)
_STARTS = (
    'def fibonacci(n):\n    """The n-th Fibonacci number, iteratively."""\n',
    'def is_palindrome(text):\n    """Whether text reads the same backwards."""\n',
    "import csv\n\n\ndef load_rows(path):\n",
    "class Point:\n    def __init__(self, x, y):\n",
    'def gcd(a, b):\n    """Greatest common divisor."""\n',
    "def count_words(text):\n    counts = {}\n",
)
_QUESTIONS = (
    "Explain in a few sentences why the sky is blue.",
    "What should I cook tonight with rice, eggs and spinach?",
    "How do I write a polite e-mail that turns down an invitation?",
    "What is the difference between a list and a tuple in Python?",
    "Give me three tips for learning a new language.",
    "Why do cats purr?",
)
_OPENINGS = (
    "The lighthouse keeper had not spoken to anyone for eleven days when",
    "On the last morning of the fair, a stranger came to the town and",
    "Nobody remembered who had built the bridge, but everybody agreed that",
    "My grandmother used to say that rivers have moods, and",
)

WORKLOADS = (
    Workload(
        "code edit",
        tuple(
            f"{function}\n# The same code again, with a type annotation added to the first line:\n"
            f"{function[: len(function) // 3]}"
            for function in _FUNCTIONS
        ),
        SamplingParams(temperature=0.0),
    ),
    Workload("code completion", _STARTS, SamplingParams(temperature=0.2)),
    Workload("chat", _QUESTIONS, SamplingParams(temperature=0.7, top_p=0.9), is_chat=True),
    Workload("prose, hot", _OPENINGS, SamplingParams(temperature=1.5)),
)
