"""Prompts for comparing engines: real text, as token ids, never the same twice.

`code` is windows of Python's standard library, of any length and cut anywhere; `chat` and `edit`
are prompts of `paceline bench`, of their own length. A mark of its own at the beginning of each
keeps every prefix cache from helping anyone.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.benchmark.workloads import find_workload
from paceline.model.chat import ChatMessage

if TYPE_CHECKING:
    from paceline.model.tokenizer import TextCodec

WORKLOADS = ("code", "chat", "edit")
_LEAST_CHARACTERS = 20_000


@dataclass(frozen=True, slots=True)
class Load:
    """So many sessions side by side. context: tokens of each prompt, None for their own length."""

    workload: str
    context: int | None
    sessions: int

    @property
    def name(self) -> str:
        length = "" if self.context is None else f" {self.context}"
        return f"{self.sessions} x {self.workload}{length}"


def prompts_for(load: Load, codec: TextCodec, *, turn: int) -> list[list[int]]:
    """One for each session; others in every turn."""
    source = random.Random(f"{turn} {load.name}")
    if load.context is not None:
        return [_window(codec, load.context, source) for _ in range(load.sessions)]
    texts = find_workload({"chat": "chat", "edit": "code-edit"}[load.workload]).texts
    prompts = []
    for index in range(load.sessions):
        text, mark = texts[(index + turn) % len(texts)], f"{source.getrandbits(32):08x}"
        if load.workload == "chat":
            prompts.append(list(codec.encode_chat([ChatMessage("user", f"({mark}) {text}")]).ids))
        else:
            prompts.append(list(codec.encode(f"# {mark}\n{text}")))
    return prompts


def _window(codec: TextCodec, length: int, source: random.Random) -> list[int]:
    """So many tokens of the standard library, from some line on."""
    files = sorted(Path(os.__file__).parent.glob("*.py"))
    ids: list[int] = []
    while len(ids) < length:
        text = source.choice(files).read_text(encoding="utf-8", errors="replace")
        lines = text.splitlines(keepends=True)
        start = source.randrange(max(1, len(lines) - 20))
        ids += codec.encode("".join(lines[start:])[: max(_LEAST_CHARACTERS, 6 * length)])
    return ids[:length]
