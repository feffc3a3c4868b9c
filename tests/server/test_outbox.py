"""What waits for a reader: merged, numbered, complete and bounded."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from paceline.server.outbox import Outbox
from paceline_protocol.errors import ErrorCode
from paceline_protocol.events import (
    ContentPartDone,
    DeltaTokens,
    ErrorEvent,
    OutputTextDelta,
    OutputTextDone,
    ResponseCompleted,
    ResponseCreated,
    ServerEvent,
    SourcedToken,
    TelemetrySample,
)
from paceline_protocol.items import Logprob, OutputMessage, OutputText, TopLogprob
from paceline_protocol.responses import Response


def _response(response_id: str, text: str = "") -> Response:
    message = OutputMessage(id="msg", status="completed", content=[OutputText(text=text)])
    return Response(id=response_id, created_at=1.0, model="m", status="completed", output=[message])


def _delta(
    response_id: str, text: str, tokens: list[SourcedToken] | None = None
) -> OutputTextDelta:
    return OutputTextDelta(
        item_id=f"item of {response_id}",
        output_index=0,
        content_index=0,
        delta=text,
        paceline=UNSET if tokens is None else DeltaTokens(tokens=tokens),
    )


def _take_all(outbox: Outbox) -> list[ServerEvent]:
    events = []
    while (event := outbox.take()) is not None:
        events.append(event)
    return events


_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("delta"), st.sampled_from("abc"), st.text(max_size=3)),
        st.tuples(st.just("other"), st.sampled_from("abc"), st.just("")),
        st.tuples(st.just("error"), st.just("a"), st.just("")),
        st.tuples(st.just("take"), st.just("a"), st.just("")),
    ),
    max_size=200,
)


@given(_ACTIONS)
def test_nothing_is_lost_reordered_or_misnumbered(actions: list[tuple[str, str, str]]) -> None:
    """Each response's events, deltas joined between its other events, come out as they went in."""
    outbox = Outbox(1 << 30)
    went_in: dict[str, list[str]] = defaultdict(lambda: [""])
    taken: list[ServerEvent] = []
    num_errors = 0
    for kind, response_id, text in actions:
        match kind:
            case "delta":
                outbox.put(_delta(response_id, text), response_id)
                went_in[response_id][-1] += text
            case "other":
                outbox.put(ResponseCreated(response=_response(response_id)), response_id)
                went_in[response_id].append("")
            case "error":
                outbox.put(ErrorEvent.of(ErrorCode.INVALID_VALUE, "no"))
                num_errors += 1
            case "take":
                event = outbox.take()
                taken += [event] if event is not None else []
    taken += _take_all(outbox)
    assert len(outbox) == 0
    assert outbox.num_bytes == 0
    came_out: dict[str, list[str]] = defaultdict(lambda: [""])
    numbers: dict[str, list[int]] = defaultdict(list)
    for event in taken:
        if isinstance(event, ErrorEvent):
            assert event.sequence_number is None
            num_errors -= 1
            continue
        if isinstance(event, OutputTextDelta):
            response_id = event.item_id.removeprefix("item of ")
            came_out[response_id][-1] += event.delta
        else:
            assert isinstance(event, ResponseCreated)
            response_id = event.response.id
            came_out[response_id].append("")
        numbers[response_id].append(event.sequence_number)
    assert num_errors == 0
    assert came_out == went_in
    assert all(given == list(range(len(given))) for given in numbers.values())


@given(st.lists(st.sampled_from("ab"), min_size=1, max_size=300))
def test_a_reader_who_waits_gets_one_delta_for_each_response(order: list[str]) -> None:
    """Other lanes in between don't stand in the way, so waiting costs no frames."""
    outbox = Outbox(1 << 30)
    for at, response_id in enumerate(order):
        outbox.put(_delta(response_id, f"{at},"), response_id)
    events = _take_all(outbox)
    assert len(events) == len(set(order))
    for event in events:
        assert isinstance(event, OutputTextDelta)
        response_id = event.item_id.removeprefix("item of ")
        expected = "".join(f"{at}," for at, each in enumerate(order) if each == response_id)
        assert event.delta == expected


def test_waiting_text_costs_its_bytes_and_not_an_object_for_each_step() -> None:
    outbox = Outbox(1 << 30)
    for _ in range(10_000):
        outbox.put(_delta("a", "word "), "a")
    assert outbox.num_bytes < 60_000
    (event,) = _take_all(outbox)
    assert isinstance(event, OutputTextDelta)
    assert event.delta == "word " * 10_000


_ALTERNATIVES = [TopLogprob(token="\x00", logprob=-12.345678901234567, bytes=[0])] * 20
_DELTAS = {
    "escaped text": _delta("a", "\x00" * 3000),
    "wide text": _delta("a", "\U0001f600" * 3000),
    "tokens": _delta("a", "\x00", [SourcedToken(id=49151, text="\x00", source="accepted")]),
    "logprobs": msgspec.structs.replace(
        _delta("a", "\x00"),
        logprobs=[Logprob(token="\x00", logprob=-1.25, bytes=[0], top_logprobs=_ALTERNATIVES)],
    ),
}


@pytest.mark.parametrize("delta", _DELTAS.values(), ids=_DELTAS)
def test_a_delta_that_waited_long_still_fits_a_frame_that_every_client_takes(
    delta: OutputTextDelta,
) -> None:
    outbox = Outbox(1 << 30)
    for _ in range(2000):
        outbox.put(delta, "a")
    events = _take_all(outbox)
    assert outbox.num_bytes == 0
    assert 1 < len(events) < 200
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if isinstance(event, OutputTextDelta)) == (
        delta.delta * 2000
    )
    assert max(len(msgspec.json.encode(event)) for event in events) < 2**20


def test_tokens_of_merged_deltas_are_joined() -> None:
    outbox = Outbox(1 << 30)
    tokens = [SourcedToken(id=at, text=str(at), source="plain") for at in range(4)]
    outbox.put(_delta("a", "01", tokens[:2]), "a")
    outbox.put(_delta("a", "23", tokens[2:]), "a")
    (event,) = _take_all(outbox)
    assert isinstance(event, OutputTextDelta)
    assert event.paceline == DeltaTokens(tokens=tokens)


def test_a_finished_response_frees_its_numbers() -> None:
    outbox = Outbox(1 << 30)
    for _ in range(2):
        outbox.put(ResponseCreated(response=_response("a")), "a")
        outbox.put(ResponseCompleted(response=_response("a")), "a")
        assert [event.sequence_number for event in _take_all(outbox)] == [0, 1]
    assert outbox._next_numbers == {}
    assert outbox._last == {}


def _sample(scope: Any, time: float) -> TelemetrySample:
    return TelemetrySample(scope=scope, time=time, sessions=[])


def test_of_telemetry_only_the_latest_waits_and_it_comes_last() -> None:
    outbox = Outbox(1 << 30)
    outbox.put_sample(_sample("session", 1.0))
    outbox.put_sample(_sample("server", 2.0))
    outbox.put_sample(_sample("session", 3.0))
    outbox.put(_delta("a", "x"), "a")
    first, *samples = _take_all(outbox)
    assert isinstance(first, OutputTextDelta)
    assert [(s.scope, s.time) for s in samples if isinstance(s, TelemetrySample)] == [
        ("session", 3.0),
        ("server", 2.0),
    ]


@pytest.mark.parametrize(
    "event",
    [
        _delta("a", "x" * 5000),
        _delta("a", "", [SourcedToken(id=1, text="", source="plain")] * 100),
        OutputTextDone(item_id="i", output_index=0, content_index=0, text="x" * 5000),
        ContentPartDone(
            item_id="i", output_index=0, content_index=0, part=OutputText(text="x" * 5000)
        ),
        ResponseCompleted(response=_response("a", "x" * 5000)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_whatever_holds_text_counts_against_the_limit(event: ServerEvent) -> None:
    outbox = Outbox(4000)
    outbox.put(ResponseCreated(response=_response("a")), "a")
    limits = [outbox.is_over_limit]
    outbox.put(event, "a")
    limits.append(outbox.is_over_limit)
    outbox.clear()
    assert [*limits, outbox.is_over_limit] == [False, True, False]
    assert outbox.take() is None
