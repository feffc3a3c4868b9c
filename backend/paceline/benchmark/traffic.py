"""Makes load: sessions over real sockets, each request timed as its client sees it.

A closed loop shows what a server can do, arrivals at random show what its users wait for: a closed
loop asks less of a slow server, and hides how long queues get.
"""

from __future__ import annotations

import itertools
import random
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, assert_never

import anyio
import anyio.lowlevel

from paceline.benchmark.modes import ClosedLoop, Poisson
from paceline_client import ConnectError, PacelineClientError, connect
from paceline_protocol.events import OutputTextDelta

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream

    from paceline.benchmark.modes import Load, Mode
    from paceline.benchmark.workloads import Workload
    from paceline_client import ResponseStream, Session
    from paceline_protocol.responses import PacelineSummary, Response

_CANCELLED = "it was cancelled"


@dataclass(slots=True)
class Answer:
    """One request. asked_at: when it was asked for, or was due; event_times: of its text deltas, in
    order; all in seconds of `time.perf_counter`. error: why there is no whole answer. is_extra: it
    kept up the load, and was maybe stopped at its end: its tokens count, its times do not."""

    asked_at: float
    event_times: list[float] = field(default_factory=list)
    ended_at: float = 0.0
    model: str = ""
    num_tokens: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    summary: PacelineSummary | None = None
    error: str | None = None
    is_extra: bool = False

    @property
    def first_token_s(self) -> float | None:
        """Time to the first text; None if none came."""
        return self.event_times[0] - self.asked_at if self.event_times else None

    @property
    def per_token_s(self) -> float | None:
        """Time per output token after the first; None for answers of one token."""
        if self.num_tokens < 2 or len(self.event_times) < 2:
            return None
        return (self.event_times[-1] - self.event_times[0]) / (self.num_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Times between adjacent text deltas, each of which may hold several tokens."""
        return [
            later - earlier
            for earlier, later in zip(self.event_times, self.event_times[1:], strict=False)
        ]


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go and how they ask. tag: begins each prompt, so that no K/V of an earlier run
    helps; empty leaves prompts as they are. first: number of the text to begin with."""

    url: str
    api_key: str | None
    workload: Workload
    mode: Mode
    max_tokens: int
    tag: str = ""
    first: int = 0


async def run_load(load: Load, target: Target) -> list[Answer]:
    """All answers, refused and failed ones too. Raises ConnectError if there is no server."""
    try:
        match load:
            case ClosedLoop():
                return await _closed_loop(load, target)
            case Poisson():
                return await _poisson(load, target)
            case _:
                assert_never(load)
    except* ConnectError as group:
        raise first_error(group) from None


def first_error(group: BaseExceptionGroup[ConnectError]) -> ConnectError:
    """Out of a task group whose tasks all fail alike."""
    error = group.exceptions[0]
    return first_error(error) if isinstance(error, BaseExceptionGroup) else error


async def _closed_loop(load: ClosedLoop, target: Target) -> list[Answer]:
    """Sessions that have all their answers ask on, with the same texts, until the last one has
    its own; what runs then is stopped. The load is the same to the end, where otherwise it would
    fade, for longer the more the sessions' speeds differ. In return the texts of fast sessions
    weigh more in the throughput."""
    answers: list[Answer] = []
    running: set[ResponseStream] = set()
    num_busy = load.sessions
    is_connected = [anyio.Event() for _ in range(load.sessions)]

    async def run_session(number: int) -> None:
        nonlocal num_busy
        async with connect(target.url, api_key=target.api_key) as session:
            is_connected[number].set()
            for event in is_connected:
                await event.wait()
            for turn in range(load.requests):
                index = number + turn * load.sessions
                answers.append(await _ask(session, target, index, time.perf_counter()))
            num_busy -= 1
            if not num_busy:
                for stream in running:
                    stream.cancel()
            for turn in itertools.count():
                # Another session's stream may be about to be stopped, or to begin.
                await anyio.lowlevel.checkpoint()
                if not num_busy:
                    break
                index = number + turn % load.requests * load.sessions
                again = replace(target, tag=f"{target.tag}{turn} ") if target.tag else target
                answer = await _ask(session, again, index, time.perf_counter(), running)
                was_stopped = answer.error == _CANCELLED and not num_busy
                if answer.error is not None and not was_stopped:
                    answers.append(answer)
                    break  # nothing to keep up a load with
                answer.error, answer.is_extra = None, True
                answers.append(answer)

    async with anyio.create_task_group() as tasks:
        for number in range(load.sessions):
            tasks.start_soon(run_session, number)
    return answers


async def _poisson(load: Poisson, target: Target) -> list[Answer]:
    """Idle sessions come back before new ones are opened. A request's time runs from when it was
    due, so that a client that falls behind doesn't hide what its users would wait."""
    answers: list[Answer] = []
    source = random.Random(load.seed)
    send, receive = anyio.create_memory_object_stream[tuple[int, float]](float("inf"))

    async def run_session(jobs: MemoryObjectReceiveStream[tuple[int, float]]) -> None:
        async with jobs, connect(target.url, api_key=target.api_key) as session:
            async for index, due_at in jobs:
                answers.append(await _ask(session, target, index, due_at))

    async with anyio.create_task_group() as tasks, receive, send:
        due_at, index = time.perf_counter(), 0
        ends_at = due_at + load.seconds
        while (due_at := due_at + source.expovariate(load.rate)) < ends_at:
            await anyio.sleep(max(0.0, due_at - time.perf_counter()))
            waiting = send.statistics()
            if waiting.tasks_waiting_receive <= waiting.current_buffer_used:
                tasks.start_soon(run_session, receive.clone())
            await send.send((index, due_at))
            index += 1
    return answers


async def _ask(
    session: Session,
    target: Target,
    index: int,
    asked_at: float,
    running: set[ResponseStream] | None = None,
) -> Answer:
    """running: is to hold its stream for as long as it runs."""
    workload = target.workload
    text = target.tag + workload.texts[(target.first + index) % len(workload.texts)]
    if workload.is_chat:
        stream = session.respond(
            text,
            max_output_tokens=target.max_tokens,
            temperature=workload.temperature,
            top_p=workload.top_p,
            paceline=target.mode.options,
        )
    else:
        stream = session.complete(
            text,
            max_output_tokens=target.max_tokens,
            temperature=workload.temperature,
            top_p=workload.top_p,
            paceline=target.mode.options,
        )
    answer = Answer(asked_at)
    if running is not None:
        running.add(stream)
    try:
        async with stream:
            async for event in stream:
                if isinstance(event, OutputTextDelta):
                    answer.event_times.append(time.perf_counter())
    except PacelineClientError as error:
        answer.error = str(error)
    if running is not None:
        running.discard(stream)
    answer.ended_at = time.perf_counter()
    response = stream.response
    if response is not None:
        _note(answer, response)
    is_whole = response is not None and response.status in ("completed", "incomplete")
    if answer.error is None and not is_whole:
        answer.error = _CANCELLED
    return answer


def _note(answer: Answer, response: Response) -> None:
    answer.model = response.model
    answer.summary = response.paceline
    if response.usage is not None:
        answer.num_tokens = response.usage.output_tokens
        answer.num_prompt_tokens = response.usage.input_tokens
        answer.num_cached_tokens = response.usage.input_tokens_details.cached_tokens
