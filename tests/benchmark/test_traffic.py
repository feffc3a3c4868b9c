"""Load over a real socket: every request that was to be made is made, as its mode says."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import anyio
import pytest

from paceline.benchmark.comparison import Server, Settings, compare
from paceline.benchmark.loop_latency import ping_server, watch_loop
from paceline.benchmark.modes import ADAPTIVE, PLAIN, ClosedLoop, Poisson, parse_mode
from paceline.benchmark.traffic import Target, run_load
from paceline.benchmark.workloads import Workload
from paceline.core.errors import ConfigError
from paceline_client import ConnectError
from tests.server.serving import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import Request

CHAT = Workload("chat", "", ("one", "two", "three"), is_chat=True, temperature=0.0)
RAW = Workload("raw", "", ("def f():\n",), is_chat=False, temperature=0.5, top_p=0.9)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _answer(request: Request) -> Sequence[str]:
    return ["ab", "cd", "ef"]


def _target(url: str, workload: Workload = CHAT, tag: str = "") -> Target:
    return Target(url, None, workload, PLAIN, 32, tag)


@pytest.mark.anyio
async def test_a_closed_loop_asks_each_session_so_many_times() -> None:
    async with serving(_answer) as server:
        answers = await run_load(ClosedLoop(3, 4), _target(server.http_url))
        keys = [request.speculation_key for request in server.engine.submitted]
    asked = Counter(key.partition("/")[0] for key in keys)
    assert len(asked) == 3, "a connection for each session"
    assert min(asked.values()) >= 4
    answers = [answer for answer in answers if not answer.is_extra]
    assert len(answers) == 12
    for answer in answers:
        assert answer.error is None
        assert answer.model == "fake-model"
        assert answer.num_tokens == 7
        assert 1 <= len(answer.event_times) <= 3
        assert answer.asked_at < answer.event_times[0] <= answer.event_times[-1] < answer.ended_at
        assert answer.summary is not None
        assert answer.first_token_s is not None
        assert len(answer.gaps_s) == len(answer.event_times) - 1


@pytest.mark.anyio
async def test_a_closed_loop_keeps_its_load_until_the_slowest_session_has_its_answers() -> None:
    """One session's answers are ten times as long as those of the other two."""

    def answer(request: Request) -> Sequence[str]:
        is_slow = request.speculation_key == server.engine.submitted[0].speculation_key
        return ["x"] * (30 if is_slow else 3)

    async with serving(answer, step_s=0.002) as server:
        answers = await run_load(ClosedLoop(3, 2), _target(server.http_url))
    own = [answer for answer in answers if not answer.is_extra]
    assert sorted(answer.num_tokens for answer in own) == [4, 4, 4, 4, 31, 31]
    assert len(answers) > 6
    assert not any(answer.error for answer in answers)


@pytest.mark.anyio
async def test_an_answer_that_the_server_cuts_is_a_failure() -> None:
    async with serving(lambda request: ["x"] * 1000, step_s=0.002) as server:

        async def cut() -> None:
            await server.wait_until(lambda: bool(server.engine.submitted))
            server.engine.cancel(server.engine.submitted[0].request_id)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cut)
            [answer] = await run_load(ClosedLoop(1, 1), _target(server.http_url))
    assert answer.error == "it was cancelled"


@pytest.mark.anyio
async def test_arrivals_at_random_follow_from_the_seed() -> None:
    async with serving(_answer) as server:
        load = Poisson(200.0, 0.2, seed=5)
        first, second = [await run_load(load, _target(server.http_url)) for _ in range(2)]
        other = await run_load(Poisson(200.0, 0.2, seed=6), _target(server.http_url))
    assert len(first) == len(second)
    assert len(first) > 10

    def offsets(answers: list[float]) -> list[float]:
        return [round(at - min(answers), 6) for at in sorted(answers)]

    due = [offsets([answer.asked_at for answer in each]) for each in (first, second, other)]
    assert due[0] == due[1]
    assert due[0] != due[2]
    assert not any(answer.error for answer in first)


@pytest.mark.anyio
async def test_requests_say_what_the_workload_and_the_mode_say() -> None:
    async with serving(_answer) as server:
        target = Target(server.http_url, None, RAW, parse_mode("fixed:3"), 9, "(tag) ")
        await run_load(ClosedLoop(1, 1), target)
        [request] = server.engine.submitted
        text = "".join(chr(token - 1) for token in request.prompt_ids)
    assert text == "(tag) def f():\n"
    assert (request.speculation, request.drafter) == ("on", "model")
    assert request.num_speculative_tokens == 3
    assert request.max_new_tokens == 9
    assert (request.sampling.temperature, request.sampling.top_p) == (0.5, 0.9)


@pytest.mark.anyio
async def test_what_fails_is_counted_with_its_reason() -> None:
    async with serving(lambda request: ["ab", "!InternalError"]) as server:
        answers = await run_load(ClosedLoop(2, 2), _target(server.http_url))
    assert len(answers) == 4
    assert all(answer.error and "it broke" in answer.error for answer in answers)


@pytest.mark.anyio
async def test_no_server_is_said_at_once() -> None:
    with pytest.raises(ConnectError):
        await run_load(ClosedLoop(1, 1), _target("ws://127.0.0.1:9"))


@pytest.mark.anyio
async def test_modes_take_turns_and_the_first_round_does_not_count() -> None:
    seen: list[str] = []
    async with serving(_answer, step_s=0.001) as server:
        settings = Settings(
            workloads=[CHAT, RAW],
            loads=[ClosedLoop(2, 1), Poisson(100.0, 0.1)],
            modes=[PLAIN, ADAPTIVE],
            rounds=2,
            max_tokens=16,
            is_cold=True,
        )
        cells = await compare(Server(server.http_url), settings, seen.append)
        prompts = [request.prompt_ids for request in server.engine.submitted]
    assert len(seen) == settings.num_runs == 2 * 2 * 2 * 3
    assert [(c.workload, c.load, c.mode) for c in cells] == [
        (workload, load, mode)
        for workload in ("chat", "raw")
        for load in ("2 sessions", "100/s")
        for mode in ("off", "auto")
    ]
    for cell in cells:
        values = cell.to_json()
        assert values["rounds"] == len(cell.ratios) == 2
        assert values["tokens_per_second"] > 0
        assert values["server_loop_ms"]["p50"] > 0
        assert (values["ratio_to_plain"] == 1.0) or cell.mode == "auto"
    # No run's prompt begins like another run's.
    runs = {bytes(str(prompt[:20]), "ascii") for prompt in prompts}
    assert len(runs) > settings.num_runs / 2


@pytest.mark.anyio
async def test_rounds_have_prompts_of_their_own_which_all_modes_share() -> None:
    async with serving(_answer) as server:
        settings = Settings(
            workloads=[CHAT],
            loads=[ClosedLoop(1, 1)],
            modes=[PLAIN, ADAPTIVE],
            rounds=2,
            max_tokens=16,
        )
        await compare(Server(server.http_url), settings)
        asked = [(each.prompt_ids, each.max_new_tokens) for each in server.engine.submitted]
    assert len(asked) == 3 * 3
    for number in range(3):
        warm_up, *others = asked[3 * number : 3 * number + 3]
        assert warm_up[1] == 1, "the prompt alone"
        assert others == [(warm_up[0], 16)] * 2
    assert len({prompt for prompt, _ in asked}) == 3


@pytest.mark.anyio
async def test_an_event_loop_that_is_kept_busy_is_late() -> None:
    late: list[float] = []
    async with anyio.create_task_group() as tasks:
        await tasks.start(watch_loop, late.append)
        time.sleep(0.05)  # noqa: ASYNC251  (what is to be noticed)
        await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    assert max(late) > 0.03


@pytest.mark.anyio
async def test_pings_are_answered_until_cancelled() -> None:
    seconds: list[float] = []
    is_enough = anyio.Event()

    def record(second: float) -> None:
        seconds.append(second)
        if len(seconds) == 2:
            is_enough.set()

    async with serving(_answer) as server, anyio.create_task_group() as tasks:
        await tasks.start(ping_server, server.http_url, None, record)
        await is_enough.wait()
        tasks.cancel_scope.cancel()
    assert min(seconds) > 0


@pytest.mark.parametrize("text", ["on", "fixed", "fixed:0", "fixed:17", "ngram:x", ""])
def test_modes_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="off, auto, fixed:N or ngram:N") as caught:
        parse_mode(text)
    assert caught.value.field == "mode"
