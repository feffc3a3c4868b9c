"""What a grammar costs, and what the tokens that it forces give back; no draft model anywhere.

    python ops/bench/structured_output.py speed     JSON with forced tokens as drafts, and without
    python ops/bench/structured_output.py mask      a grammar's share of a step, 16 grammars at once
    python ops/bench/structured_output.py tools     20 tool calls over one socket

All on the default target, as `paceline serve --drafter none` runs it. `speed` and `mask` drive one
engine from here, and their columns take turns in one run: `plain` has the grammar and no drafts,
`forced` drafts what the grammar forces, `free` has no grammar at all. `tools` starts a server and
talks to it through its socket. Each writes a result file of its own and fails where a target is
missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "backend"), str(ROOT / "protocol")]

from websockets.asyncio.client import ClientConnection, connect  # noqa: E402

from ops.bench.provenance import write_result  # noqa: E402
from paceline.benchmark.own_server import own_server  # noqa: E402
from paceline.composition import build_engine, check_models, facts_of, plan_for  # noqa: E402
from paceline.core.config import ServeConfig, resolve  # noqa: E402
from paceline.core.events import FinishEvent, FinishReason  # noqa: E402
from paceline.core.request import (  # noqa: E402
    DrafterKind,
    Grammar,
    GrammarKind,
    Request,
    SamplingParams,
    Speculation,
)
from paceline.engine import verifier  # noqa: E402
from paceline.model.chat import ChatMessage  # noqa: E402
from paceline.sampling.grammar import GrammarConstraint  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.engine.engine import Engine
    from paceline.model.tokenizer import TextCodec

LEAST_SPEEDUP = 1.5
MOST_OF_A_STEP = 0.10
MOST_OF_TURN_2 = 1.5
NUM_TURNS = 20
MAX_TOKENS = 400


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(limit: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": limit}


def _number(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


MEMBER = _object(
    first_name=_text(12),
    last_name=_text(12),
    year_of_birth=_number(1900, 2024),
    is_member={"type": "boolean"},
    favourite_colour={"enum": ["red", "green", "blue"]},
    home_address=_object(street=_text(16), postal_code=_number(10000, 99999)),
)
READINGS = _object(
    readings={
        "type": "array",
        "minItems": 4,
        "maxItems": 4,
        "items": _object(
            sensor={"enum": ["hall", "cellar", "attic"]},
            temperature_celsius=_number(-20, 40),
            is_valid={"type": "boolean"},
        ),
    }
)
SUMMARY = _object(title=_text(40), summary=_text(240))

# Name: prompt, schema, whether it is what the target of this bench is about.
WORKLOADS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "member": ("Make up a member of the club as JSON.", MEMBER, True),
    "readings": ("Make up four readings of sensors as JSON.", READINGS, True),
    "prose in JSON": ("Summarise the story of the three little pigs as JSON.", SUMMARY, False),
}
COLUMNS = {"plain": Speculation.OFF, "forced": Speculation.AUTO}


class Run(NamedTuple):
    """One batch of answers, from the first submit to the last finish."""

    seconds: float
    num_tokens: int
    num_steps: int
    steps: tuple[float, ...]


@dataclass
class Bench:
    """One engine, driven from here. step_s: of steps in which every sequence decoded."""

    engine: Engine
    codec: TextCodec
    num_requests: int = 0
    on_step: Callable[[], None] = field(default=lambda: None)

    def prompt(self, text: str) -> tuple[int, ...]:
        return tuple(self.codec.encode_chat([ChatMessage("user", text)]).ids)

    def run(
        self,
        prompt: tuple[int, ...],
        grammars: list[Grammar | None],
        speculation: Speculation,
        max_tokens: int = MAX_TOKENS,
    ) -> Run:
        """One answer for each grammar, all at once. The seeds are the same every time, so that
        all columns write the same texts, but for rounding."""
        for place, grammar in enumerate(grammars):
            self.num_requests += 1
            self.engine.submit(
                Request(
                    f"r{self.num_requests}",
                    prompt,
                    max_tokens,
                    SamplingParams(seed=place),
                    self.codec.eos_token_ids if grammar is not None else frozenset(),
                    speculation=speculation,
                    grammar=grammar,
                )
            )
        started = time.perf_counter()
        num_tokens = num_steps = 0
        steps = []
        while self.engine.has_work:
            self.on_step()
            step_started = time.perf_counter()
            events = self.engine.step().events
            took = time.perf_counter() - step_started
            num_steps += 1
            writing = 0
            for event in events:
                if isinstance(event, FinishEvent):
                    if event.error is not None:
                        raise RuntimeError(event.error)
                    if grammars[0] is not None and event.reason is not FinishReason.STOP:
                        raise RuntimeError(f"an answer did not end within {max_tokens} tokens")
                else:
                    writing += 1
                    num_tokens += len(event.tokens)
            if writing == len(grammars):
                steps.append(took)
        return Run(time.perf_counter() - started, num_tokens, num_steps, tuple(steps))


def make_bench(num_sessions: int) -> Bench:
    config = ServeConfig(drafter=DrafterKind.NONE, max_sequences=num_sessions)
    models = check_models(config)
    decided = resolve(config, facts_of(models))
    plan = plan_for(models, decided, kv_memory=1 << 30)
    return Bench(build_engine(models, decided, plan), models.codec)


def _schema_grammar(schema: dict[str, Any]) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))


def measure_speed(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Tokens per second with forced tokens as drafts over those without, round by round."""
    bench = make_bench(max(options.sessions))
    cells, missed = [], []
    for name, (text, schema, is_target) in WORKLOADS.items():
        prompt = bench.prompt(text)
        for count in options.sessions:
            grammars: list[Grammar | None] = [_schema_grammar(schema)] * count
            ratios, per_step, rates = [], [], []
            for number in range(options.rounds + 1):
                runs = {}
                for column in COLUMNS if number % 2 else reversed(COLUMNS):
                    runs[column] = bench.run(prompt, grammars, COLUMNS[column])
                if number:  # the first one warms up
                    rate = {key: run.num_tokens / run.seconds for key, run in runs.items()}
                    rates.append(rate["plain"])
                    ratios.append(rate["forced"] / rate["plain"])
                    per_step.append(
                        (runs["plain"].num_steps / runs["plain"].num_tokens)
                        / (runs["forced"].num_steps / runs["forced"].num_tokens)
                    )
            cell = {
                "workload": name,
                "sessions": count,
                "plain_tokens_per_second": median(rates),
                "forced_over_plain": median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "fewer_steps": median(per_step),
            }
            cells.append(cell)
            print(
                f"{name:14} {count:3} sessions: forced / plain {cell['forced_over_plain']:.2f} "
                f"(from {cell['lowest']:.2f} to {cell['highest']:.2f}), "
                f"{cell['fewer_steps']:.2f} times fewer steps",
                flush=True,
            )
            if is_target and median(ratios) < LEAST_SPEEDUP:
                missed.append(f"{name} at {count}")
    return {"rounds": options.rounds, "cells": cells}, missed


class Stopwatch:
    """Time spent inside some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, owner: Any, name: str) -> None:
        function = getattr(owner, name)

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.perf_counter() - started

        setattr(owner, name, timed)


def distinct_grammars(count: int) -> list[Grammar | None]:
    """Members of clubs with other fields each; all of them long enough to last for many steps."""
    return [
        _schema_grammar(
            _object(
                **{
                    f"name_{number}": _text(20 + number),
                    f"role_{number % 5}": {"enum": ["rider", "driver", f"guest {number}"]},
                    "notes": {"type": "array", "minItems": 3, "maxItems": 3, "items": _text(60)},
                }
            )
        )
        for number in range(count)
    ]


def measure_mask(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """The grammar's share of a step: by a stopwatch around everything that it does, and by how much
    longer a step takes than one without a grammar."""
    count = max(options.sessions)
    bench = make_bench(count)
    prompt = bench.prompt("Make up a member of the club as JSON.")
    grammars = distinct_grammars(count)
    watch = Stopwatch()
    for name in ("fork", "advance", "forced"):
        watch.around(GrammarConstraint, name)
    watch.around(verifier, "apply_edits")
    inside: list[float] = []
    bench.on_step = lambda: inside.append(watch.seconds)
    columns: dict[str, tuple[list[Grammar | None], Speculation]] = {
        "free": ([None] * count, Speculation.OFF),
        "plain": (grammars, Speculation.OFF),
        "forced": (grammars, Speculation.AUTO),
    }
    shares: dict[str, list[float]] = {"plain": [], "forced": []}
    milliseconds: dict[str, list[float]] = {name: [] for name in columns}
    for number in range(options.rounds + 1):
        order = list(columns)
        for name in order[number % 3 :] + order[: number % 3]:
            asked, speculation = columns[name]
            watch.seconds = 0.0
            run = bench.run(prompt, asked, speculation, MAX_TOKENS if asked[0] else 64)
            if number:
                milliseconds[name].append(median(run.steps) * 1e3)
                if name in shares:
                    shares[name].append(watch.seconds / run.seconds)
    plain_over_free = median(
        plain / free
        for plain, free in zip(milliseconds["plain"], milliseconds["free"], strict=True)
    )
    result = {
        "sessions": count,
        "rounds": options.rounds,
        "share_of_plain_steps": median(shares["plain"]),
        "share_of_forced_steps": median(shares["forced"]),
        "step_over_step_without_grammar": plain_over_free,
        "step_ms": {name: median(values) for name, values in milliseconds.items()},
    }
    for key, value in result.items():
        print(f"{key}: {value}")
    names = ("share_of_plain_steps", "share_of_forced_steps")
    return result, [name for name in names if result[name] > MOST_OF_A_STEP]


TOOL = {
    "type": "function",
    "name": "measure",
    "description": "Measures the temperature of a room.",
    "parameters": _object(room={"enum": ["hall", "cellar", "attic"]}),
    "strict": True,
}
FINAL = ("response.completed", "response.incomplete", "response.failed", "error")


class Turn(NamedTuple):
    """first_token_ms: as the server tells it. first_item_ms: from sending until the socket brings
    the call's first piece, which takes a step more, as the marker before it is not shown. cached,
    fresh: tokens of the prompt that were found, and that were computed."""

    first_token_ms: float
    first_item_ms: float
    cached: int
    fresh: int
    response: dict[str, Any]


async def _turn(socket: ClientConnection, items: Any, **fields: Any) -> Turn:
    body = {"type": "response.create", "input": items, "tools": [TOOL], "tool_choice": "required"}
    body |= {"parallel_tool_calls": False} | fields
    await socket.send(json.dumps(body))
    started, first = time.perf_counter(), None
    while True:
        event = json.loads(await socket.recv())
        if first is None and event["type"] == "response.output_item.added":
            first = (time.perf_counter() - started) * 1e3
        if event["type"] in FINAL:
            break
    if event["type"] != "response.completed" or first is None:
        raise RuntimeError(f"a turn ended with {event}")
    response = event["response"]
    usage, first_token = response["usage"], response["paceline"]["time_to_first_token_ms"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return Turn(first_token, first, cached, usage["input_tokens"] - cached, response)


async def _conversation(url: str, name: str) -> list[Turn]:
    """Twenty tool calls on one connection; every turn brings the same new text."""
    async with connect(url.replace("http", "ws") + "/v1/responses", compression=None) as socket:
        turns = [await _turn(socket, f"House {name}: how warm is it? Measure all rooms.")]
        while len(turns) < NUM_TURNS:
            last = turns[-1].response
            (call,) = last["output"]
            told = {
                "type": "function_call_output",
                "call_id": call["call_id"],
                "output": "It is 17 degrees there. Which room is next?",
            }
            turns.append(await _turn(socket, [told], previous_response_id=last["id"]))
        return turns


def measure_tools(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Whether each turn finds what came before, and how long it waits for its first text."""
    conversations = []
    with own_server(["--drafter", "none", "--kv-memory", "1GiB"]) as url:
        for number in range(options.rounds + 1):
            turns = asyncio.run(_conversation(url, f"{number} of {time.time_ns()}"))
            if number:
                conversations.append(turns)
    missed = []
    for turns in conversations:
        for before, turn in zip(turns, turns[1:], strict=False):
            known = before.response["usage"]["total_tokens"]
            # All whole blocks that were computed; the last token of an answer was not.
            if turn.cached < (known - 1) // 16 * 16:
                missed.append(f"a turn found {turn.cached} of {known} tokens")
    by_turn = {
        name: [
            median(getattr(turns[place], name) for turns in conversations)
            for place in range(NUM_TURNS)
        ]
        for name in ("first_token_ms", "first_item_ms")
    }
    ratios = {name: values[-1] / values[1] for name, values in by_turn.items()}
    result = {
        "conversations": len(conversations),
        "turns_with_prefix_hits": sum(t.cached > 0 for turns in conversations for t in turns[1:]),
        "turns_after_the_first": len(conversations) * (NUM_TURNS - 1),
        "prompt_tokens_at_turn_2": median(t[1].cached + t[1].fresh for t in conversations),
        "prompt_tokens_at_turn_20": median(t[-1].cached + t[-1].fresh for t in conversations),
        "computed_tokens_at_turn_2": median(t[1].fresh for t in conversations),
        "computed_tokens_at_turn_20": median(t[-1].fresh for t in conversations),
        "most_computed_tokens": max(t.fresh for turns in conversations for t in turns[1:]),
        "turn_20_over_turn_2": ratios,
        "milliseconds_by_turn": by_turn,
    }
    for key, value in result.items():
        print(f"{key}: {value}")
    missed += [
        f"{name} of turn 20 is {ratio:.2f} times that of turn 2"
        for name, ratio in ratios.items()
        if ratio > MOST_OF_TURN_2
    ]
    return result, missed


PARTS = {"speed": measure_speed, "mask": measure_mask, "tools": measure_tools}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    result, missed = PARTS[options.part](options)
    command = " ".join(["python ops/bench/structured_output.py", *sys.argv[1:]])
    print(write_result(f"structured_output_{options.part}", command, result))
    for each in missed:
        print(f"MISSED: {each}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
