"""Threads for work that must not run on the event loop, and that nobody waits for at the end.

A prompt's encoding takes milliseconds, but a grammar without measure takes seconds, and no thread
can be told to stop. anyio's own worker threads would keep the process alive until they are done;
these do not.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, TypeVar

import anyio
import anyio.from_thread
import anyio.lowlevel

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class WorkerThreads:
    """At most `max_threads` functions at once; further ones wait for their turn, in order."""

    def __init__(self, max_threads: int) -> None:
        self._limiter = anyio.CapacityLimiter(max_threads)

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """What `function(*arguments)` returns or raises, computed in a thread of its own.

        A caller that is cancelled is let go at once. The function then runs on to its end, unseen,
        and keeps its place until then.
        """
        place = object()
        await self._limiter.acquire_on_behalf_of(place)
        token = anyio.lowlevel.current_token()
        context = contextvars.copy_context()
        ended = anyio.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def on_end() -> None:
            self._limiter.release_on_behalf_of(place)
            ended.set()

        def work() -> None:
            try:
                results.append(context.run(function, *arguments))
            except BaseException as error:  # handed to whoever waits
                errors.append(error)
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits
                anyio.from_thread.run_sync(on_end, token=token)

        try:
            threading.Thread(target=work, name="paceline-worker", daemon=True).start()
        except BaseException:
            self._limiter.release_on_behalf_of(place)
            raise
        await ended.wait()
        if errors:
            try:
                raise errors[0]
            finally:
                errors.clear()  # else the error would hold on to itself
        return results[0]
