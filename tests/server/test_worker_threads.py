"""Work beside the event loop: results, errors, order, and an end that waits for nobody."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest

from paceline.server.worker_threads import WorkerThreads

BACKEND = Path(__file__).parents[2] / "backend"


@pytest.mark.anyio
async def test_results_and_errors_come_back() -> None:
    workers = WorkerThreads(2)
    assert await workers.run(divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        await workers.run(divmod, 7, 0)
    assert await workers.run(threading.get_ident) != threading.get_ident()


@pytest.mark.anyio
async def test_no_more_at_once_than_allowed_in_order() -> None:
    workers = WorkerThreads(1)
    go_on = threading.Event()
    seen: list[int] = []

    def work(number: int) -> None:
        assert go_on.wait(30)
        seen.append(number)

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(workers.run, work, number)
        await anyio.wait_all_tasks_blocked()
        assert seen == []
        go_on.set()
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.anyio
async def test_who_is_cancelled_leaves_at_once_and_the_work_keeps_its_place() -> None:
    workers = WorkerThreads(1)
    go_on = threading.Event()
    order: list[str] = []

    def slow() -> None:
        assert go_on.wait(30)
        order.append("slow")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(workers.run, slow)
        await anyio.wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert order == []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(workers.run, order.append, "next")
        await anyio.wait_all_tasks_blocked()
        assert order == []  # its turn has not come: the thread is still busy
        go_on.set()
    assert order == ["slow", "next"]


@pytest.mark.anyio
async def test_who_is_cancelled_in_the_queue_takes_no_place() -> None:
    workers = WorkerThreads(1)
    go_on = threading.Event()
    seen: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(workers.run, go_on.wait, 30)
        await anyio.wait_all_tasks_blocked()
        with anyio.CancelScope() as scope:
            tasks.start_soon(_cancel_when_blocked, scope)
            await workers.run(seen.append, "never")
        assert scope.cancelled_caught
        go_on.set()
    await workers.run(seen.append, "later")
    assert seen == ["later"]


async def _cancel_when_blocked(scope: anyio.CancelScope) -> None:
    await anyio.wait_all_tasks_blocked()
    scope.cancel()


def test_a_process_ends_while_work_runs_on() -> None:
    """With ordinary threads it would end with the work, which takes an hour."""
    program = """
import threading
import time

import anyio

from paceline.server.worker_threads import WorkerThreads


async def main():
    begun = threading.Event()

    def work():
        begun.set()
        time.sleep(3600)

    workers = WorkerThreads(1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(workers.run, work)
        while not begun.is_set():
            await anyio.sleep(0.001)
        tasks.cancel_scope.cancel()
    print("left")


anyio.run(main)
"""
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(BACKEND)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "left\n", "")
