"""How long an event loop keeps others waiting: its own lateness, and a server's from outside."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import anyio

from paceline_client.endpoint import Endpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskStatus

SLEEP_S = 0.005
PING_EVERY_S = 0.05


async def watch_loop(
    record: Callable[[float], None],
    *,
    sleep_s: float = SLEEP_S,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Until cancelled: sleeps `sleep_s` and records by how many seconds it woke too late."""
    task_status.started()
    while True:
        due_at = time.perf_counter() + sleep_s
        await anyio.sleep(sleep_s)
        record(max(0.0, time.perf_counter() - due_at))


async def ping_server(
    url: str,
    api_key: str | None,
    record: Callable[[float], None],
    *,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Until cancelled: pings the server on a socket of its own and records the seconds until its
    event loop has answered. An upper bound of that loop's latency: the way there and back and this
    loop's own lateness are in it.

    Raises ConnectError.
    """
    socket = await Endpoint.of(url, api_key=api_key).open()
    try:
        task_status.started()
        while True:
            sent_at = time.perf_counter()
            answered = await socket.ping()
            await answered
            record(time.perf_counter() - sent_at)
            await anyio.sleep(PING_EVERY_S)
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(1):
            await socket.close()
