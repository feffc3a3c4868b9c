"""Events that wait: nothing lost, order kept, memory bounded by the text."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from paceline_client.buffers import EventBuffer, latest, merge_deltas
from paceline_protocol import messages as m

_LOGPROB = m.Logprob(token="a", logprob=-1.0, bytes=[97], top_logprobs=[])


def _delta(text: str, item_id: str = "msg_1", *, source: m.TokenSource | None = None) -> object:
    tokens = m.DeltaTokens(tokens=[m.SourcedToken(id=len(text), text=text, source="plain")])
    return m.OutputTextDelta(
        item_id=item_id,
        output_index=0,
        content_index=0,
        delta=text,
        logprobs=[_LOGPROB] * len(text),
        paceline=UNSET if source is None else tokens,
    )


@pytest.mark.anyio
@given(
    texts=st.lists(st.text(max_size=3), max_size=30),
    breaks=st.sets(st.integers(0, 30)),
    high_water=st.integers(1, 5),
)
async def test_text_is_whole_and_in_order(
    texts: list[str], breaks: set[int], high_water: int
) -> None:
    buffer: EventBuffer[object] = EventBuffer(merge_deltas, high_water)
    pushed: list[object] = []
    for number, text in enumerate(texts):
        if number in breaks:
            pushed.append(f"mark {number}")
        pushed.append(_delta(text, source="plain"))
    for event in pushed:
        buffer.push(event)
    num_marks = sum(isinstance(event, str) for event in pushed)
    assert len(buffer) <= high_water + 2 * num_marks + 1
    assert _outline([await buffer.next() for _ in range(len(buffer))]) == _outline(pushed)


def _outline(events: list[object]) -> list[str]:
    """Marks, and between them the joined text with its log-probabilities and tokens counted."""
    outline: list[str] = []
    text, num_logprobs, tokens = "", 0, ""
    for event in [*events, "end"]:
        if isinstance(event, m.OutputTextDelta):
            text += event.delta
            num_logprobs += len(event.logprobs)
            tokens += "".join(t.text for t in event.paceline.tokens) if event.paceline else ""
            continue
        outline += [text, str(num_logprobs), tokens, str(event)]
        text, num_logprobs, tokens = "", 0, ""
    return outline


def test_only_neighbours_of_one_text_are_merged() -> None:
    assert merge_deltas(_delta("a"), _delta("b", "msg_2")) is None
    assert merge_deltas(_delta("a"), "something else") is None
    assert merge_deltas(_delta("a"), _delta("b")) == _delta("ab")


@pytest.mark.anyio
async def test_a_failure_comes_after_what_waits_and_stays() -> None:
    buffer: EventBuffer[str] = EventBuffer(latest, 10)
    buffer.push("first")
    buffer.fail(KeyError("why"))
    buffer.fail(ValueError("a later one"))
    assert await buffer.next() == "first"
    for _ in range(2):
        with pytest.raises(KeyError, match="why"):
            await buffer.next()


@pytest.mark.anyio
async def test_whoever_waits_is_woken() -> None:
    buffer: EventBuffer[int] = EventBuffer(latest, 1)
    seen: list[int] = []

    async def read() -> None:
        seen.extend([await buffer.next(), await buffer.next()])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        buffer.push(1)
        await anyio.wait_all_tasks_blocked()
        buffer.push(2)
    assert seen == [1, 2]


@pytest.mark.anyio
async def test_several_who_wait_are_all_woken() -> None:
    buffer: EventBuffer[int] = EventBuffer(latest, 1)

    async def read() -> None:
        with pytest.raises(KeyError):
            await buffer.next()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        buffer.fail(KeyError("the end"))


@pytest.mark.anyio
async def test_of_states_only_the_latest_waits() -> None:
    buffer: EventBuffer[int] = EventBuffer(latest, 1)
    for number in range(5):
        buffer.push(number)
    assert len(buffer) == 1
    assert await buffer.next() == 4
