"""What a client that reads nothing costs the others, over real sockets on the default target.

Four clients answer one prompt after the other. Beside them runs a fifth with one long answer that
carries the log-probabilities of 20 alternatives a token (about two kilobytes an event): in one half
of the phases it reads, in the other half it does not. Phases alternate; the ratio of the medians of
the four clients' tokens a second says what the silence costs them.

    python ops/bench/slow_reader.py [--phases 6] [--seconds 15]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import time
from typing import Any

from provenance import write_result
from websockets.asyncio.client import ClientConnection, connect

from paceline.benchmark.own_server import own_server
from paceline_client import connect as connect_session
from paceline_protocol.events import ResponseCompleted, ResponseIncomplete

NUM_CLIENTS = 4
LONG = {
    "type": "response.create",
    "input": "Write a very long story about a bicycle race.",
    "max_output_tokens": 4000,
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 20,
    "paceline": {"min_tokens": 4000},
}


async def silent(url: str) -> ClientConnection:
    """A connection whose socket is never read beyond a few kilobytes."""
    host, _, port = url.removeprefix("http://").partition(":")
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.connect((host, int(port)))
    raw.setblocking(False)
    address = url.replace("http", "ws") + "/v1/responses"
    return await connect(address, sock=raw, compression=None, max_queue=1, ping_interval=None)


async def keep_reading(connection: ClientConnection) -> None:
    async for _ in connection:
        pass


async def talk(url: str, until: float) -> int:
    """Tokens of one client that asks again and again until the time is over."""
    num_tokens = 0
    async with connect_session(url) as session:
        while time.perf_counter() < until:
            async for event in session.respond(
                "Explain what a Python generator is.", temperature=0.0, max_output_tokens=32
            ):
                if isinstance(event, ResponseCompleted | ResponseIncomplete):
                    assert event.response.usage is not None
                    num_tokens += event.response.usage.output_tokens
    return num_tokens


async def phase(url: str, seconds: float, *, reads: bool) -> dict[str, Any]:
    """Tokens a second of the four together."""
    connection = await silent(url)
    await connection.send(json.dumps(LONG))
    reader = asyncio.create_task(keep_reading(connection)) if reads else None
    await asyncio.sleep(1.0)
    started = time.perf_counter()
    counts = await asyncio.gather(*(talk(url, started + seconds) for _ in range(NUM_CLIENTS)))
    rate = sum(counts) / (time.perf_counter() - started)
    if reader is not None:
        reader.cancel()
    connection.transport.abort()
    return {"reads": reads, "tokens_per_s": rate}


async def run(url: str, num_phases: int, seconds: float) -> list[dict[str, Any]]:
    await phase(url, 3.0, reads=True)  # warms up
    phases = []
    for turn in range(2 * num_phases):
        made = await phase(url, seconds, reads=turn % 2 == 0)
        print(f"reads: {made['reads']!s:5} {made['tokens_per_s']:6.1f} tokens a second", flush=True)
        phases.append(made)
    return phases


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--phases", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=15.0)
    arguments = parser.parse_args()
    with own_server(["--drafter", "none", "--kv-memory", "512MiB"]) as url:
        phases = asyncio.run(run(url, arguments.phases, arguments.seconds))
    rates = {
        reads: statistics.median(p["tokens_per_s"] for p in phases if p["reads"] is reads)
        for reads in (True, False)
    }
    ratio = rates[False] / rates[True]
    print(f"beside a reader {rates[True]:.1f}, a silent client {rates[False]:.1f}: {ratio:.3f}x")
    command = "python ops/bench/slow_reader.py"
    command += f" --phases {arguments.phases} --seconds {arguments.seconds:g}"
    path = write_result("slow_reader", command, {"phases": phases, "ratio": ratio})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
