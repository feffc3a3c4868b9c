"""A server process before a scripted engine: `python -m tests.server.scripted_server NUM_PIECES`.

Prints its address on the first line of standard output, and then what it tells the operator. Every
answer has that many pieces, one every 10 ms.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING

import anyio

from paceline.core.config import ServeConfig
from paceline.server.listener import address_of, bind
from paceline.server.logs import configure_logging
from paceline.server.serving import serve
from tests.fakes_engine import CharacterCodec, ScriptedEngine

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.events import StepResult


def main() -> None:
    num_pieces = int(sys.argv[1])
    configure_logging("info")

    def build_engine(deliver: Callable[[StepResult], None]) -> ScriptedEngine:
        return ScriptedEngine(deliver, lambda _: ["x"] * num_pieces, step_s=0.01)

    anyio.run(run, build_engine)


async def run(build_engine: Callable[[Callable[[StepResult], None]], ScriptedEngine]) -> None:
    listener = bind("127.0.0.1", 0)
    config = ServeConfig(grace_period_s=60.0)
    async with anyio.create_task_group() as tasks:
        await tasks.start(
            functools.partial(serve, listener, build_engine, CharacterCodec(), config, tell=tell)
        )
        tell(address_of(listener))


def tell(what: str) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
