"""Where the prompts of on-policy data come from.

A draft should see what the target writes for the traffic it will serve. Four sources, mixed by
:func:`mix`: instructions written for this project (tasks combined with subjects), the target's own
questions (it opens a user turn and writes on), the caller's prompts, and passages of the caller's
text or code, either quoted in an instruction or given raw to be continued.
"""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class PromptKind(StrEnum):
    """What is handed to the target."""

    INSTRUCTION = "instruction"
    """A user message; the chat template is applied."""
    OPEN = "open"
    """No text: the target writes the user's message first, then the answer."""
    RAW = "raw"
    """Text to continue, without a chat template."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt and the temperature its answer is sampled at (0 is greedy)."""

    kind: PromptKind
    text: str
    temperature: float


TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Half of the answers greedy, a quarter each at 0.7 and 1."""

TASKS = (
    "Explain {} to someone who has never heard of it.",
    "What is {} and why does it matter?",
    "Give me five facts about {}.",
    "Write a short story that has something to do with {}.",
    "Write a poem about {}.",
    "How would you teach {} to a class of ten-year-olds?",
    "List the advantages and disadvantages of {}.",
    "I want to learn more about {}. Where should I start?",
    "Summarise the history of {} in two paragraphs.",
    "Write an email to a friend in which you recommend {}.",
    "What are common mistakes people make with {}?",
    "Compare {} with something similar and say which you prefer.",
    "Write a dialogue between two people who disagree about {}.",
    "Make a plan for a week in which I spend an hour a day on {}.",
    "Which questions should I ask an expert on {}?",
    "Write the opening of a blog post about {}.",
    "Describe {} in exactly three sentences.",
    "Answer as a teacher: what is the hardest part of {}?",
    "Give step-by-step instructions for a beginner interested in {}.",
    "Write a product description connected with {}.",
    "Can you help me understand {}? Keep it simple.",
    "What would change in everyday life without {}?",
    "Write a speech of about 150 words on {}.",
    "Tell me a joke about {} and explain why it is funny.",
    "Create a quiz with four questions and answers on {}.",
    "What are the most important terms connected with {}? Define each.",
    "Draft a letter to a city council about {}.",
    "How has {} changed over the last hundred years?",
    "Write a scene for a film in which {} plays a part.",
    "Make a table of three aspects of {}, in Markdown.",
)

SUBJECTS = (
    "photosynthesis", "the water cycle", "gravity", "black holes", "volcanoes", "earthquakes",
    "the moon", "tides", "rainbows", "lightning", "glaciers", "coral reefs", "bees", "whales",
    "migration of birds", "the human heart", "sleep", "memory", "vaccines", "antibiotics",
    "healthy eating", "running a marathon", "yoga", "swimming", "chess", "football", "cycling",
    "mountain climbing", "camping", "gardening", "growing tomatoes", "composting", "baking bread",
    "making soup", "coffee", "tea", "cheese", "chocolate", "a vegetarian diet", "saving money",
    "household budgets", "compound interest", "inflation", "supply and demand", "starting a shop",
    "writing a business plan", "job interviews", "working from home", "time management",
    "public speaking", "teamwork", "negotiation", "learning a language", "reading novels",
    "poetry", "theatre", "jazz", "playing the piano", "photography", "painting", "pottery",
    "knitting", "architecture", "bridges", "trains", "sailing boats", "bicycles", "electric cars",
    "solar panels", "wind turbines", "batteries", "recycling", "plastic waste", "climate change",
    "drinking water", "forests", "deserts", "the Roman Empire", "ancient Egypt",
    "the printing press", "the industrial revolution", "the Silk Road", "maps", "calendars",
    "the metric system", "prime numbers", "fractions", "probability", "geometry",
    "the Pythagorean theorem", "sorting algorithms", "binary search", "recursion", "databases",
    "version control", "unit tests", "web servers", "passwords", "encryption", "the internet",
    "search engines", "machine learning", "neural networks", "robots", "video games",
    "spreadsheets", "lighthouses", "clocks", "paper", "glass", "steel", "friendship", "honesty",
    "curiosity", "patience", "moving to a new city", "looking after a dog", "adopting a cat",
    "family reunions", "birthday parties", "travelling by train", "museums", "public libraries",
    "small towns", "a lost key", "a rainy Sunday", "an old photograph", "a secret garden",
    "a trip to the sea",
)  # fmt: skip

CODE_TASKS = (
    "Write a Python function that {}.",
    "Write a Python function that {}. Include type hints and a docstring.",
    "Show me how to write a program that {}, and explain how it works.",
    "Write unit tests for a function that {}.",
    "In JavaScript, write a function that {}.",
    "I have to write code that {}. What should I think of first?",
)

CODE_SUBJECTS = (
    "reverses a string", "checks whether a number is prime",
    "sorts a list of dictionaries by a key", "counts the words in a text",
    "finds the largest value in a list", "merges two sorted lists",
    "removes duplicates and keeps the order", "reads a CSV file and sums a column",
    "computes Fibonacci numbers", "validates an email address", "flattens a nested list",
    "converts temperatures", "finds the common elements of two lists", "groups items by length",
    "rotates a matrix", "implements a stack", "implements a queue with two stacks",
    "parses a date", "downloads a file and retries on failure", "caches results on disk",
    "finds palindromes in a sentence", "computes the median", "generates random passwords",
    "walks a folder and lists the largest files", "draws a histogram with text",
    "checks balanced brackets", "encodes text with run-length encoding",
    "solves a quadratic equation", "finds the shortest path in a graph",
    "counts the vowels in a string",
)  # fmt: skip

PASSAGE_TASKS = (
    "Summarise this text in three sentences:\n\n{}",
    "What are the key points of the following?\n\n{}",
    "Quote the most important sentence of this text, then explain it:\n\n{}",
    "Rewrite this in simpler words:\n\n{}",
)

CODE_PASSAGE_TASKS = (
    "What does this code do?\n```python\n{}\n```",
    "Add a docstring to this function and return the whole code:\n```python\n{}\n```",
    "Rename the variables so that they are easier to read, and return the whole code:\n"
    "```python\n{}\n```",
    "Write a unit test for this function:\n```python\n{}\n```",
)

PASSAGE_CHARACTERS = 900
MAX_FILE_CHARACTERS = 400_000
TEXT_SUFFIXES = frozenset({".py", ".txt", ".md", ".rst", ""})


def self_written(rng: random.Random) -> Iterator[Prompt]:
    """Without end: instructions of this module, about one in five of them on code."""
    while True:
        if rng.random() < 0.2:
            text = rng.choice(CODE_TASKS).format(rng.choice(CODE_SUBJECTS))
        else:
            text = rng.choice(TASKS).format(rng.choice(SUBJECTS))
        yield Prompt(PromptKind.INSTRUCTION, text, rng.choice(TEMPERATURES))


def open_questions(rng: random.Random) -> Iterator[Prompt]:
    """Without end: the target asks itself."""
    while True:
        yield Prompt(PromptKind.OPEN, "", rng.choice(TEMPERATURES))


def from_file(path: Path, rng: random.Random) -> Iterator[Prompt]:
    """Without end, in shuffled rounds: the user's prompts.

    A file of JSON lines holds strings or objects with ``"prompt"``; any other file holds one prompt
    a line. Raises ``ValueError`` naming the line for anything else, and for a file without prompts.
    """
    texts = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        if path.suffix != ".jsonl":
            texts.append(line)
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not JSON ({error})") from None
        if isinstance(value, dict):
            value = value.get("prompt")
        if not isinstance(value, str) or not value:
            raise ValueError(
                f'{path}, line {number}: expected a string or an object with a "prompt" string'
            )
        texts.append(value)
    if not texts:
        raise ValueError(f"{path}: no prompts in it")
    while True:
        rng.shuffle(texts)
        for text in texts:
            yield Prompt(PromptKind.INSTRUCTION, text, rng.choice(TEMPERATURES))


def from_folder(folder: Path, rng: random.Random) -> Iterator[Prompt]:
    """Without end: passages of the text and Python files below ``folder``.

    Python functions are quoted in an instruction or cut after their docstring for the target to
    complete; other text is quoted or cut anywhere. Raises ``ValueError`` when nothing is usable.
    """
    files = sorted(
        path for path in folder.rglob("*") if path.suffix in TEXT_SUFFIXES and path.is_file()
    )
    unusable = 0
    while files and unusable < len(files):
        rng.shuffle(files)
        unusable = 0
        for path in files:
            prompts = _from_path(path, rng)
            unusable += not prompts
            yield from prompts
    raise ValueError(f"{folder}: no text or Python files with usable passages")


def _from_path(path: Path, rng: random.Random, most: int = 2) -> list[Prompt]:
    try:
        text = path.read_text(encoding="utf-8")[:MAX_FILE_CHARACTERS]
    except (OSError, UnicodeDecodeError):
        return []
    if path.suffix == ".py":
        return _from_code(text, rng, most)
    passages = [part.strip() for part in text.split("\n\n") if len(part.strip()) >= 200]
    prompts = []
    for passage in rng.sample(passages, min(most, len(passages))):
        cut = passage[:PASSAGE_CHARACTERS]
        if rng.random() < 0.5:
            asked = rng.choice(PASSAGE_TASKS).format(cut)
            prompts.append(Prompt(PromptKind.INSTRUCTION, asked, rng.choice(TEMPERATURES)))
        else:
            start = cut[: rng.randrange(100, len(cut))].rsplit(" ", 1)[0]
            prompts.append(Prompt(PromptKind.RAW, start, rng.choice(TEMPERATURES)))
    return prompts


def _from_code(text: str, rng: random.Random, most: int) -> list[Prompt]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    rng.shuffle(functions)
    lines = text.splitlines()
    prompts: list[Prompt] = []
    for node in functions:
        if len(prompts) >= most:
            break
        source = lines[node.lineno - 1 : node.end_lineno]
        indent = len(source[0]) - len(source[0].lstrip())
        source = [line[indent:] for line in source]
        first = node.body[0]
        documented = ast.get_docstring(node, clean=False) is not None and len(node.body) > 1
        whole = "\n".join(source)
        if documented and rng.random() < 0.6:
            head = "\n".join(source[: (first.end_lineno or first.lineno) - node.lineno + 1]) + "\n"
            if len(head) <= PASSAGE_CHARACTERS:
                prompts.append(Prompt(PromptKind.RAW, head, rng.choice(TEMPERATURES)))
        elif 80 <= len(whole) <= PASSAGE_CHARACTERS:
            asked = rng.choice(CODE_PASSAGE_TASKS).format(whole)
            prompts.append(Prompt(PromptKind.INSTRUCTION, asked, rng.choice(TEMPERATURES)))
    return prompts


def mix(sources: Sequence[tuple[float, Iterator[Prompt]]], rng: random.Random) -> Iterator[Prompt]:
    """Without end: draws from the sources in proportion to their weights."""
    weights = [weight for weight, _ in sources]
    iterators = [iterator for _, iterator in sources]
    while True:
        yield next(rng.choices(iterators, weights)[0])
