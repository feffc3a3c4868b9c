"""Runs cells, the modes in turns, so that all of them see the same machine.

Each round takes the modes in a new order, all with the same prompts; the first round warms up and
is not counted. Ratios are to plain decoding in the same round.
"""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from paceline.benchmark.counters import read_counters
from paceline.benchmark.loop_latency import ping_server
from paceline.benchmark.modes import PLAIN, ClosedLoop
from paceline.benchmark.summary import Cell, Run
from paceline.benchmark.traffic import Target, first_error, run_load
from paceline_client import ConnectError
from paceline_client.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.benchmark.modes import Load, Mode
    from paceline.benchmark.workloads import Workload


@dataclass(frozen=True, slots=True)
class Server:
    """Where to measure. api_key: for the sockets."""

    url: str
    api_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What to measure. is_cold: prompts begin differently in every run, so that the prefix cache
    has nothing of them. seed: of the order of modes."""

    workloads: Sequence[Workload]
    loads: Sequence[Load]
    modes: Sequence[Mode]
    rounds: int
    max_tokens: int
    is_cold: bool = False
    seed: int = 0

    @property
    def num_runs(self) -> int:
        """With those that warm up."""
        return len(self.workloads) * len(self.loads) * len(self.modes) * (self.rounds + 1)


async def compare(
    server: Server, settings: Settings, on_run: Callable[[str], None] = lambda what: None
) -> list[Cell]:
    """All cells. on_run: is told before each run what it is.

    Raises ConnectError if the server isn't there, ConfigError if it is no Paceline server.
    """
    cells = []
    for workload in settings.workloads:
        for load in settings.loads:
            cells += await _compare_modes(server, settings, workload, load, on_run)
    return cells


async def _compare_modes(
    server: Server,
    settings: Settings,
    workload: Workload,
    load: Load,
    on_run: Callable[[str], None],
) -> list[Cell]:
    cells = {
        mode.name: Cell(workload.name, load.name, load.size, mode.name) for mode in settings.modes
    }
    source = random.Random(f"{settings.seed} {workload.name} {load.name}")
    for number in range(settings.rounds + 1):
        order = list(settings.modes)
        source.shuffle(order)
        runs: dict[str, Run] = {}
        first = await _next_prompts(server, settings, workload, load, number)
        for mode in order:
            on_run(f"{workload.name}, {load.name}, {mode.name}")
            tag = f"({source.getrandbits(40):x}) " if settings.is_cold else ""
            target = Target(
                server.url, server.api_key, workload, mode, settings.max_tokens, tag, first
            )
            runs[mode.name] = await _run(server, load, target)
        if number == 0:
            continue
        plain = runs[PLAIN.name].tokens_per_second if PLAIN.name in runs else 0.0
        for name, run in runs.items():
            cells[name].runs.append(run)
            if plain:
                cells[name].ratios.append(run.tokens_per_second / plain)
    return list(cells.values())


async def _next_prompts(
    server: Server, settings: Settings, workload: Workload, load: Load, number: int
) -> int:
    """Where the texts of a round begin. In a closed loop each round has other ones, whose K/V is
    computed first: else the mode that comes first would do that for the others."""
    if not isinstance(load, ClosedLoop):
        return 0
    first = number * load.sessions * load.requests
    if not settings.is_cold:
        await run_load(load, Target(server.url, server.api_key, workload, PLAIN, 1, first=first))
    return first


async def _run(server: Server, load: Load, target: Target) -> Run:
    socket_url = Endpoint.of(server.url).url
    count = functools.partial(anyio.to_thread.run_sync, read_counters, socket_url)
    pings: list[float] = []
    before = await count()
    try:
        async with anyio.create_task_group() as tasks:
            await tasks.start(ping_server, server.url, server.api_key, pings.append)
            answers = await run_load(load, target)
            tasks.cancel_scope.cancel()
    except* ConnectError as group:
        raise first_error(group) from None
    return Run(answers, (await count()).since(before), pings)
