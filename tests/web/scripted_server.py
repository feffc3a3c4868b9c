"""A server before a scripted engine, for the browser's tests and for work on the pages.

    python -m tests.web.scripted_server [--port PORT] [--api-key KEY] [--admin-key KEY]
        [--grace-period SECONDS]

Prints its address on the first line of standard output, and a line for every response that ends:
`finished REASON`, and how many are still running. What it answers depends on words in the last
message: `slow`, `endless`, `code`, `attack`, `long`; anything else is repeated, with the number of
messages that the prompt held.
"""

from __future__ import annotations

import argparse
import functools
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio

from paceline.core.config import ServeConfig
from paceline.core.events import (
    CommittedToken,
    EngineEvent,
    FinishEvent,
    Gate,
    SpeculationSummary,
    TokenEvent,
    TokenSource,
)
from paceline.server.listener import address_of, bind
from paceline.server.logs import configure_logging
from paceline.server.serving import serve
from tests.fakes_engine import LIMITS, CharacterCodec, ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from paceline.core.events import StepResult
    from paceline.core.request import Request

STEP_S = 0.02
ROOMY = replace(LIMITS, max_model_len=65536, num_blocks=8192)
ATTACK = (
    "<script>window.attacked = 1</script>\n\n"
    '<img src=x onerror="window.attacked = 2">\n\n'
    "[click](javascript:window.attacked=3) ![picture](https://example.invalid/pixel.png)\n\n"
    '<svg><g onload="window.attacked = 4"></g></svg>\n\n'
    '```"><script>window.attacked = 5</script>\n'
    "</code></pre><script>window.attacked = 6</script>\n"
    "```\n\n"
    '<a href="data:text/html,<script>window.attacked = 7</script>">link</a>\n\n'
    '<style>body { display: none }</style><iframe srcdoc="<script>parent.attacked = 8</script>">'
    "</iframe>\n\n"
    "[reference][r]\n\n[r]: javascript:window.attacked=9\n"
)
CODE = (
    "Here is a function that checks a **palindrome**:\n\n"
    "```python\n"
    "def is_palindrome(word: str) -> bool:\n"
    '    """Whether a word reads the same from both ends."""\n'
    "    letters = [c.lower() for c in word if c.isalpha()]\n"
    "    return letters == letters[::-1]  # 2 lists\n"
    "```\n\n"
    "It takes `O(n)` time. Some examples:\n\n"
    "| word | result |\n|---|---|\n| level | yes |\n| ride | no |\n\n"
    "1. Letters are compared without their case.\n"
    "2. Everything else is passed over.\n"
)
# A round of speculation, over and over: what was accepted, and what ended the draft.
PATTERN = (
    *[TokenSource.ACCEPTED] * 3,
    TokenSource.BONUS,
    *[TokenSource.ACCEPTED] * 2,
    TokenSource.RESIDUAL,
    TokenSource.PLAIN,
    TokenSource.ACCEPTED,
    TokenSource.RESIDUAL,
)


LONG_PIECE = 20
"""So many words are one token of the engine, where few are a token for each character: a long text
of such pieces ends before the limit that the page sets."""


def pieces(text: str, num_words: int = 3) -> list[str]:
    """A text as words with the blanks before them, a few a step."""
    words = re.findall(r"\s*\S+\s*$|\s*\S+", text)
    return ["".join(words[at : at + num_words]) for at in range(0, len(words), num_words)]


def answer(request: Request) -> Sequence[str]:
    prompt = CharacterCodec().text_of(request.prompt_ids)
    messages = re.findall(r"<(system|user|assistant)>(.*?)</\1>", prompt, flags=re.DOTALL)
    last = messages[-1][1] if messages else prompt
    if "slow" in last:
        return pieces("".join(f"word {number} " for number in range(7000)), LONG_PIECE)
    if "endless" in last:
        return pieces("".join(f"word {number} " for number in range(400)))
    if "code" in last:
        return pieces(CODE)
    if "attack" in last:
        return pieces(ATTACK)
    if "long" in last:
        paragraphs = (f"Paragraph {number} goes on. " * 12 for number in range(60))
        return pieces("\n\n".join(paragraphs), LONG_PIECE)
    system = "".join(text for role, text in messages if role == "system")
    told = f" The system prompt is: {system}" if system else ""
    return pieces(f"You said: {last}\n\nI know {len(messages)} messages.{told}")


class Labels:
    """Gives an engine's tokens the sources and the measures that a drafting engine would."""

    def __init__(self, deliver: Callable[[StepResult], None]) -> None:
        self._deliver = deliver
        self._counts: dict[str, list[TokenSource]] = {}

    def __call__(self, result: StepResult) -> None:
        events = tuple(self._label(event) for event in result.events)
        self._deliver(replace(result, events=events))
        for event in result.events:
            if isinstance(event, FinishEvent):
                running = result.status.num_running
                sys.stdout.write(f"finished {event.reason} running {running}\n")
                sys.stdout.flush()

    def _label(self, event: EngineEvent) -> EngineEvent:
        if isinstance(event, TokenEvent):
            return replace(event, tokens=tuple(self._words(event)))
        sources = self._counts.pop(event.request_id, [])
        return replace(event, summary=_summary(sources))

    def _words(self, event: TokenEvent) -> Iterator[CommittedToken]:
        sources = self._counts.setdefault(event.request_id, [])
        for word in re.findall(r"\s*\S+\s*$|\s*\S+|\s+", event.text) or [""]:
            source = PATTERN[len(sources) % len(PATTERN)]
            sources.append(source)
            yield CommittedToken(1000 + len(word), word, source)


def _summary(sources: Sequence[TokenSource]) -> SpeculationSummary:
    accepted = sources.count(TokenSource.ACCEPTED)
    rejected = sources.count(TokenSource.RESIDUAL)
    num_steps = max(1, len(sources) - accepted)
    return SpeculationSummary(
        num_drafted=accepted + 2 * rejected,
        num_examined=accepted + rejected,
        num_passed=accepted,
        num_accepted=accepted,
        num_steps=num_steps,
        accepted_per_position=(accepted,),
        examined_per_position=(accepted + rejected,),
        passed_per_position=(accepted,),
        drafter="model",
        gate=Gate.ON,
        reason="on: the draft model drafts 3 tokens; acceptance 0.67 over the last 24 tested",
        time_to_first_token_ms=38.4,
        generation_ms=12.0 * num_steps,
        draft_ms=3.1 * num_steps,
        verify_ms=8.2 * num_steps,
        sample_ms=0.4 * num_steps,
        other_ms=0.3 * num_steps,
        expected_plain_ms=9.3 * max(1, len(sources)),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--api-key")
    parser.add_argument("--admin-key")
    parser.add_argument("--grace-period", type=float, default=0.2)
    options = parser.parse_args()
    configure_logging("warning")
    config = ServeConfig(
        api_key=options.api_key,
        admin_key=options.admin_key,
        grace_period_s=options.grace_period,
    )
    anyio.run(run, options.port, config)


async def run(port: int, config: ServeConfig) -> None:
    listener = bind("127.0.0.1", port)

    def build_engine(deliver: Callable[[StepResult], None]) -> ScriptedEngine:
        return ScriptedEngine(Labels(deliver), answer, ROOMY, step_s=STEP_S)

    async with anyio.create_task_group() as tasks:
        await tasks.start(
            functools.partial(serve, listener, build_engine, CharacterCodec(), config)
        )
        sys.stdout.write(f"{address_of(listener)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
