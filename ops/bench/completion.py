"""From keystroke to text in an editor: `paceline lsp` before `paceline serve`, cold and warm.

An editor types one character into a document whose prefix has 1,500 tokens or more, and waits for
the rest of the line. Cold: the document was never seen. Warm: it was, but for the newest character.
Both with and without speculation, in turns on one server in one run, so that the ratios compare
like with like. The pause in typing that the language server awaits is set to 0.

    python ops/bench/completion.py                     starts a server of its own
    python ops/bench/completion.py --url ws://HOST:PORT

Fails if a warm answer is not at least twice as fast as a cold one (by medians).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from lsprotocol import types
from pygls.lsp.client import LanguageClient

ROOT = Path(__file__).parents[2]
PACKAGES = ("", "backend", "protocol", "clients/python", "clients/lsp")
sys.path[:0] = [str(ROOT / each) for each in PACKAGES]

from ops.bench.provenance import write_result  # noqa: E402
from paceline.benchmark.own_server import own_server  # noqa: E402
from paceline_client import connect  # noqa: E402

MIN_PREFIX_TOKENS = 1500
LEAST_SPEEDUP = 2.0
# What a person might be writing; each run types other characters after it.
CURSOR = (
    "\n\ndef count_words(text: str) -> dict[str, int]:\n    counts: dict[str, int] = {}\n    for "
)
CHARACTERS = "wtieslnc"


class Editor:
    """One document at a time in one language server. speculation: `auto` or `off`."""

    def __init__(self, speculation: str) -> None:
        self.speculation = speculation
        self._client = LanguageClient("bench", "1")
        self._client.feature("paceline/didChangeStatus")(lambda status: None)
        self._number = 0

    async def start(self, url: str, max_tokens: int) -> None:
        command = [sys.executable, "-c", "from paceline.cli import main; main()", "lsp"]
        await self._client.start_io(*command, "--url", url)
        await self._client.initialize_async(
            types.InitializeParams(
                capabilities=types.ClientCapabilities(),
                initialization_options={
                    "debounceMs": 0,
                    "multiline": "never",
                    "maxOutputTokens": max_tokens,
                    "prefixCharacters": 100_000,
                    "speculation": self.speculation,
                },
            )
        )
        self._client.initialized(types.InitializedParams())

    async def stop(self) -> None:
        await self._client.shutdown_async(None)
        self._client.exit(None)
        await self._client.stop()  # type: ignore[no-untyped-call]

    def open(self, name: str, text: str) -> None:
        """The cursor is at the end."""
        self._uri, self._text = f"file:///bench/{name}.py", text
        self._client.text_document_did_open(
            types.DidOpenTextDocumentParams(types.TextDocumentItem(self._uri, "python", 0, text))
        )

    async def keystroke(self, character: str) -> tuple[float, str]:
        """Types the character; seconds until the completion is there, and its text. The character
        is taken back afterwards, which is not timed."""
        started = time.perf_counter()
        self._insert(character)
        answer = await self._client.text_document_inline_completion_async(
            types.InlineCompletionParams(
                types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
                types.TextDocumentIdentifier(self._uri),
                self._position(len(self._text) + 1),
            )
        )
        seconds = time.perf_counter() - started
        self._change(self._position(len(self._text)), self._position(len(self._text) + 1), "")
        assert isinstance(answer, types.InlineCompletionList)
        return seconds, str(answer.items[0].insert_text) if answer.items else ""

    def _insert(self, character: str) -> None:
        end = self._position(len(self._text))
        self._change(end, end, character)

    def _position(self, offset: int) -> types.Position:
        """The document is ASCII, and all that is ever typed stands in its last line."""
        line_start = self._text.rfind("\n") + 1
        return types.Position(self._text.count("\n"), offset - line_start)

    def _change(self, start: types.Position, end: types.Position, text: str) -> None:
        self._number += 1
        change = types.TextDocumentContentChangePartial(range=types.Range(start, end), text=text)
        self._client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self._number, self._uri), [change]
            )
        )


def document(name: str, num_characters: int) -> str:
    """Source code of this repository under a first line of its own, so that nothing of it is in
    the prefix cache."""
    sources = sorted((ROOT / "clients" / "python" / "paceline_client").glob("*.py"))
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    body = text.encode("ascii", errors="ignore").decode()[:num_characters]
    return f"# {name}\n{body}{CURSOR}"


async def run(url: str, options: argparse.Namespace) -> dict[str, Any]:
    num_tokens = await _count_tokens(url, document("0", options.characters))
    if num_tokens < MIN_PREFIX_TOKENS:
        raise SystemExit(
            f"the prefix has {num_tokens} tokens, fewer than {MIN_PREFIX_TOKENS}; "
            "raise --characters"
        )
    print(f"prefix of {num_tokens} tokens, {options.rounds} rounds\n", flush=True)
    editors = [Editor("auto"), Editor("off")]
    seconds: dict[tuple[str, str], list[float]] = {}
    num_texts = 0
    for editor in editors:
        await editor.start(url, options.max_tokens)
    for number in range(-1, options.rounds):  # the first round warms the programs, not the cache
        for editor in editors if number % 2 else reversed(editors):
            # The time makes names that no earlier run on the same server had.
            name = f"{time.time_ns()} {editor.speculation}"
            editor.open(name.replace(" ", "-"), document(name, options.characters))
            for at in range(1 + options.keystrokes):
                took, text = await editor.keystroke(CHARACTERS[at % len(CHARACTERS)])
                if number < 0:
                    continue
                kind = "warm" if at else "cold"
                seconds.setdefault((editor.speculation, kind), []).append(took)
                num_texts += bool(text)
        print(f"round {number + 1} of {options.rounds}", flush=True)
    for editor in editors:
        await editor.stop()
    total = sum(map(len, seconds.values()))
    return {
        "prefix_tokens": num_tokens,
        "max_output_tokens": options.max_tokens,
        "requests": total,
        "requests_with_text": num_texts,
        "milliseconds": {
            f"{speculation} {kind}": _summary(values)
            for (speculation, kind), values in sorted(seconds.items())
        },
        "warm_speedup": {
            speculation: statistics.median(seconds[speculation, "cold"])
            / statistics.median(seconds[speculation, "warm"])
            for speculation in ("auto", "off")
        },
        "speculation_speedup": {
            kind: statistics.median(seconds["off", kind]) / statistics.median(seconds["auto", kind])
            for kind in ("cold", "warm")
        },
    }


def _summary(values: list[float]) -> dict[str, float]:
    percentiles = statistics.quantiles(values, n=20, method="inclusive")
    return {
        "p50": statistics.median(values) * 1000,
        "p95": percentiles[18] * 1000,
        "count": len(values),
    }


async def _count_tokens(url: str, text: str) -> int:
    async with connect(url) as session:
        response = await session.complete(text, suffix="", max_output_tokens=1).finish()
    assert response.usage is not None
    return response.usage.input_tokens


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", help="a running server; its cache must have room")
    parser.add_argument("--rounds", type=int, default=12, help="documents for each setting")
    parser.add_argument("--keystrokes", type=int, default=8, help="warm ones for each document")
    parser.add_argument("--characters", type=int, default=7000, help="of the document")
    parser.add_argument("--max-tokens", type=int, default=24, help="of a completion")
    parser.add_argument("--save", action="store_true", help="write results/completion.json")
    options = parser.parse_args()
    if options.rounds < 2 or options.keystrokes < 1:
        parser.error("--rounds must be 2 or more and --keystrokes 1 or more")
    os.environ["PYTHONPATH"] = ":".join(sys.path)
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(own_server(()))
        result = asyncio.run(run(url, options))
    for name, row in result["milliseconds"].items():
        print(f"{name:10} p50 {row['p50']:7.0f} ms   p95 {row['p95']:7.0f} ms   n {row['count']}")
    for name, ratio in result["warm_speedup"].items():
        print(f"warm against cold, speculation {name}: {ratio:.2f}")
    for name, ratio in result["speculation_speedup"].items():
        print(f"speculation auto against off, {name}: {ratio:.2f}")
    print(f"{result['requests_with_text']} of {result['requests']} requests gave text")
    if options.save:
        print(write_result("completion", " ".join(["python", *sys.argv]), result))
    slow = {name: r for name, r in result["warm_speedup"].items() if r < LEAST_SPEEDUP}
    if slow:
        print(f"FAILED: warm is not {LEAST_SPEEDUP} times as fast as cold: {slow}")
    return 1 if slow else 0


if __name__ == "__main__":
    raise SystemExit(main())
