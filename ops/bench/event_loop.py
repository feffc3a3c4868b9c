"""Whether the event loop keeps its latency while the engine runs flat out.

    python ops/bench/event_loop.py [--sessions 1 16] [--requests 4] [--mode auto]

The whole server runs in this process, as `paceline serve` runs it, with one more task on its event
loop: it sleeps for 5 ms and notes by how much it woke too late. Load comes from `paceline bench` in
a process of its own, on the same machine. What is told is the lateness without load, which is the
machine's own, and under it. Writes results/event_loop.json.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).parents[2]
PACKAGES = ("", "backend", "protocol", "clients/python")
sys.path[:0] = [str(ROOT / each) for each in PACKAGES]

import anyio  # noqa: E402

from ops.bench.provenance import write_result  # noqa: E402
from paceline.benchmark.loop_latency import SLEEP_S, watch_loop  # noqa: E402
from paceline.benchmark.summary import spread_ms  # noqa: E402
from paceline.composition import build_engine, check_models, facts_of, plan_for  # noqa: E402
from paceline.core.config import ServeConfig, resolve  # noqa: E402
from paceline.engine.thread import EngineThread  # noqa: E402
from paceline.server.listener import address_of, bind  # noqa: E402
from paceline.server.logs import configure_logging  # noqa: E402
from paceline.server.serving import serve  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paceline.core.events import StepResult

IDLE_S = 3.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", help="as for `paceline serve`")
    parser.add_argument("--draft", help="as for `paceline serve`")
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--requests", type=int, default=4, help="of each session")
    parser.add_argument("--mode", default="auto", help="as for `paceline bench`")
    options = parser.parse_args()
    configure_logging("warning")
    result = anyio.run(measure, options)
    command = "python " + shlex.join(["ops/bench/event_loop.py", *sys.argv[1:]])
    print(write_result("event_loop", command, result))
    return 0


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Lateness in milliseconds, p50, p95 and p99, by load."""
    config = ServeConfig(
        target=options.target,
        draft=options.draft,
        max_sequences=max(options.sessions),
        log_level="warning",
    )
    models = check_models(config)
    decided = resolve(config, facts_of(models))
    engine = build_engine(models, decided, plan_for(models, decided, kv_memory=None))

    def start_thread(deliver: Callable[[StepResult], None]) -> EngineThread:
        return EngineThread(engine, deliver)

    listener = bind("127.0.0.1", 0)
    address = address_of(listener)
    result: dict[str, Any] = {"threads": decided.threads, "sleep_ms": SLEEP_S * 1e3}
    async with anyio.create_task_group() as tasks:
        run = partial(serve, listener, start_thread, models.codec, config, handle_signals=False)
        shutdown = await tasks.start(run)
        result["idle"] = await lateness(partial(anyio.sleep, IDLE_S))
        for sessions in options.sessions:
            load = partial(_run_load, address, sessions, options.requests, options.mode)
            result[f"{sessions} sessions"] = await lateness(load)
        shutdown.begin()
        shutdown.begin()
    for name, values in result.items():
        if isinstance(values, dict):
            print(name + ": late by " + ", ".join(f"{k} {ms:.2f} ms" for k, ms in values.items()))
    return result


async def lateness(during: Callable[[], Awaitable[object]]) -> dict[str, float]:
    """Of this event loop, while something runs."""
    late: list[float] = []
    async with anyio.create_task_group() as tasks:
        await tasks.start(watch_loop, late.append)
        await during()
        tasks.cancel_scope.cancel()
    return spread_ms(late) or {}


async def _run_load(address: str, sessions: int, requests: int, mode: str) -> None:
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "bench"]
    command += ["--url", address, "--workload", "chat", "--sessions", str(sessions)]
    command += ["--requests", str(requests), "--rounds", "1", "--mode", mode]
    path = os.pathsep.join(str(ROOT / each) for each in PACKAGES[1:])
    await anyio.run_process(
        command, env=os.environ | {"PYTHONPATH": path}, stderr=subprocess.PIPE, check=True
    )


if __name__ == "__main__":
    sys.exit(main())
