"""Many answers at once over one connection, each in a lane that the client picks.

Needs nothing but the base install of Paceline.

python parallel_lanes.py [ws://127.0.0.1:8765]
"""

from __future__ import annotations

import sys

import anyio

from paceline_client import Session, connect

CITIES = ("Paris", "Rome", "Tokyo", "Cairo", "Lima", "Oslo", "Bern", "Quito")


async def describe(session: Session, city: str) -> None:
    response = await session.ask(f"Describe {city} in one sentence.", max_output_tokens=40)
    print(f"{city}: {response.output_text}")


async def main(url: str) -> None:
    async with connect(url) as session, anyio.create_task_group() as tasks:
        for city in CITIES:
            tasks.start_soon(describe, session, city)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "ws://127.0.0.1:8765")
