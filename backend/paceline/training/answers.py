"""Answers of the target that exist already, as training data.

One JSON object a line: ``messages``, a list of ``{"role", "content"}`` that ends with the
assistant's answer, and ``temperature``, at which it was sampled from the target with nothing
truncated. Answers of anything else than the target teach the draft the wrong distribution.
"""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

from paceline.model.chat import ChatMessage
from paceline.training.token_store import TokenSequence

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paceline.model.tokenizer import TextCodec

MAX_TOKENS = 1024


def read_answers(
    path: Path, codec: TextCodec, *, max_answer_tokens: int
) -> Iterator[TokenSequence]:
    """The sequences of a file (``.gz`` is decompressed), in its order.

    ``max_answer_tokens``: a longer answer was cut there, so no end token follows it. Raises
    ``ValueError`` naming the line that is not as described.
    """
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                value = json.loads(line)
                messages = [ChatMessage(m["role"], m["content"]) for m in value["messages"]]
                temperature = float(value["temperature"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}, line {number}: expected an object with messages (role and content) "
                    f"and temperature ({error!r})"
                ) from None
            if len(messages) < 2 or messages[-1].role != "assistant":
                raise ValueError(f"{path}, line {number}: messages must end with an answer")
            prompt = codec.encode_chat(messages[:-1]).ids
            answer = codec.encode(messages[-1].content)
            if len(answer) < max_answer_tokens:
                answer += sorted(codec.eos_token_ids)[-1:]
            ids = (*prompt, *answer)[:MAX_TOKENS]
            if len(ids) > len(prompt):
                yield TokenSequence(tuple(ids), len(prompt), temperature)
