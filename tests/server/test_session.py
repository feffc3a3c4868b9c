"""The session's promises, told as conversations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.core.errors import EngineStoppedError, QueueFullError
from paceline.core.events import FinishReason, Gate, SpeculationSummary, Usage
from paceline.core.request import DrafterKind, Speculation
from tests.fakes_engine import EOS_ID, LIMITS
from tests.server.driver import SETTINGS, Driver, prompt_text, types

WHOLE_RESPONSE = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


def test_a_response_from_request_to_completed() -> None:
    driver = Driver()
    response_id = driver.create(
        "hi",
        instructions="be brief",
        temperature=0.5,
        top_p=0.9,
        max_output_tokens=20,
        metadata={"k": "v"},
    )
    driver.tokens(response_id, "Hel")
    driver.tokens(response_id, "lo")
    driver.end_token(response_id)
    driver.finish(response_id)

    assert types(driver.sent) == WHOLE_RESPONSE
    assert [event["sequence_number"] for event in driver.sent] == list(range(10))
    assert all("stream_id" not in event for event in driver.sent)
    assert [event["delta"] for event in driver.sent if "delta" in event] == ["Hel", "lo"]
    assert driver.sent[6]["text"] == "Hello"
    created = driver.sent[0]["response"]
    assert created["id"] == response_id
    assert created["status"] == "in_progress"
    assert created["output"] == []
    assert created["usage"] is None
    done = driver.sent[-1]["response"]
    assert done["status"] == "completed"
    assert done["completed_at"] == 1_000.0
    assert done["instructions"] == "be brief"
    assert done["temperature"] == 0.5
    assert done["top_p"] == 0.9
    assert done["max_output_tokens"] == 20
    assert done["metadata"] == {"k": "v"}
    assert done["output"] == [driver.sent[8]["item"]]
    assert done["output"][0]["content"][0]["text"] == "Hello"
    assert done["output"][0]["status"] == "completed"
    assert done["usage"] == {
        "input_tokens": 7,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 12,
    }
    request = driver.requests[response_id]
    assert prompt_text(request) == "<system>be brief</system><user>hi</user><assistant>"
    assert request.max_new_tokens == 20
    assert request.sampling.temperature == 0.5
    assert request.stop_token_ids == {EOS_ID}
    assert driver.session.num_open == 0


def test_the_summary_tells_what_speculation_did() -> None:
    driver = Driver()
    response_id = driver.create()
    driver.finish(
        response_id,
        usage=Usage(num_prompt=7, num_cached=3, num_output=10),
        summary=SpeculationSummary(
            num_drafted=9,
            num_examined=8,
            num_passed=6,
            num_accepted=6,
            num_steps=4,
            accepted_per_position=(4, 2),
            examined_per_position=(4, 4),
            passed_per_position=(4, 2),
            drafter="ngram",
            gate=Gate.ON,
            reason="on: acceptance 0.75 over 8 examined",
            time_to_first_token_ms=12.0,
            generation_ms=500.0,
            verify_ms=400.0,
        ),
    )
    summary = driver.sent[-1]["response"]["paceline"]
    assert summary["acceptance"] == 0.75
    assert summary["tokens_per_step"] == 2.5
    assert summary["tokens_per_second"] == 20.0
    assert summary["accepted_per_position"] == [4, 2]
    assert summary["passed_per_position"] == [4, 2]
    assert summary["examined_per_position"] == [4, 4]
    assert summary["gate"] == "on"
    assert summary["reason"] == "on: acceptance 0.75 over 8 examined"
    assert summary["cached_tokens"] == 3
    assert summary["expected_plain_ms"] is None


def test_native_options_reach_the_engine() -> None:
    driver = Driver()
    response_id = driver.create(
        stream_id="a",
        paceline={
            "top_k": 5,
            "min_p": 0.1,
            "stop": "END",
            "stop_token_ids": [9],
            "speculation": "on",
            "num_speculative_tokens": 3,
            "drafter": "ngram",
        },
    )
    request = driver.requests[response_id]
    assert request.sampling.top_k == 5
    assert request.sampling.min_p == 0.1
    assert request.stop == ("END",)
    assert request.stop_token_ids == {EOS_ID, 9}
    assert request.speculation is Speculation.ON
    assert request.num_speculative_tokens == 3
    assert request.drafter is DrafterKind.NGRAM
    assert request.speculation_key == "sess_1/a"


def test_without_a_limit_the_answer_may_fill_the_context() -> None:
    driver = Driver()
    request = driver.requests[driver.create("hi")]
    assert request.max_new_tokens == LIMITS.max_sequence_tokens - len(request.prompt_ids)


def test_deltas_carry_their_tokens_on_request() -> None:
    driver = Driver()
    response_id = driver.create(paceline={"include": ["tokens"]})
    driver.tokens(response_id, "ab")
    driver.end_token(response_id)
    driver.finish(response_id)
    deltas = [event for event in driver.sent if event["type"] == "response.output_text.delta"]
    assert [delta["delta"] for delta in deltas] == ["ab", ""]
    assert [t["text"] for t in deltas[0]["paceline"]["tokens"]] == ["a", "b"]
    assert deltas[0]["paceline"]["tokens"][0]["source"] == "accepted"
    assert [t["id"] for t in deltas[1]["paceline"]["tokens"]] == [EOS_ID]


def test_text_held_back_to_the_end_is_sent() -> None:
    driver = Driver()
    response_id = driver.create()
    driver.tokens(response_id, "a")
    events = driver.finish(response_id, FinishReason.LENGTH, text="\ufffd")
    assert events[0]["delta"] == "\ufffd"
    assert events[1]["text"] == "a\ufffd"
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_an_answer_of_nothing_is_an_empty_message() -> None:
    driver = Driver()
    response_id = driver.create()
    driver.end_token(response_id)
    driver.finish(response_id)
    assert types(driver.sent) == [t for t in WHOLE_RESPONSE if not t.endswith("delta")]
    assert driver.sent[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_a_failed_response_keeps_what_was_sent() -> None:
    driver = Driver()
    response_id = driver.create()
    driver.tokens(response_id, "a")
    events = driver.finish(
        response_id, FinishReason.ERROR, error="NaN", error_code="NonFiniteLogitsError"
    )
    assert types(events)[-1] == "response.failed"
    response = events[-1]["response"]
    assert response["status"] == "failed"
    assert response["error"] == {
        "code": "server_error",
        "message": "NaN",
        "type": "non_finite_logits",
    }
    assert response["output"][0]["content"][0]["text"] == "a"
    assert response["output"][0]["status"] == "incomplete"
    driver.create(previous_response_id=None)  # the connection lives on


@pytest.mark.parametrize(
    ("error", "code", "finer"),
    [
        (QueueFullError("8 wait"), "rate_limit_exceeded", "queue_full"),
        (EngineStoppedError("gone"), "server_error", "server_shutting_down"),
    ],
)
def test_what_the_engine_does_not_take_fails(
    error: QueueFullError | EngineStoppedError, code: str, finer: str
) -> None:
    driver = Driver()
    driver.submit_error = error
    events = driver.send(type="response.create", input="hi")
    assert types(events) == ["response.created", "response.in_progress", "response.failed"]
    assert events[-1]["response"]["error"] == {
        "code": code,
        "message": str(error),
        "type": finer,
    }
    assert driver.session.num_open == 0


def test_a_raw_completion_has_no_template_and_no_next_turn() -> None:
    driver = Driver()
    driver.send(type="completion.create", prompt="def f(", max_output_tokens=3)
    ((response_id, request),) = driver.requests.items()
    assert prompt_text(request) == "def f("
    driver.tokens(response_id, "x):")
    driver.finish(response_id, FinishReason.LENGTH)
    assert driver.sent[-1]["type"] == "response.incomplete"
    events = driver.send(type="response.create", input="hi", previous_response_id=response_id)
    assert events[0]["error"]["code"] == "previous_response_not_found"
    assert "is a completion" in events[0]["error"]["message"]


class TestLanes:
    def test_one_lane_is_first_in_first_out(self) -> None:
        driver = Driver()
        first = driver.create("one", stream_id="a")
        assert driver.send(type="response.create", input="two", stream_id="a") == []
        assert list(driver.requests) == [first]
        events = driver.finish(first)
        assert types(events)[-3:] == [
            "response.completed",
            "response.created",
            "response.in_progress",
        ]
        assert len(driver.requests) == 2

    def test_lanes_run_in_parallel_and_every_event_names_its_lane(self) -> None:
        driver = Driver()
        first = driver.create("one", stream_id="a")
        second = driver.create("two", stream_id="b")
        third = driver.create("three")
        for response_id in (third, second, first):
            events = [*driver.tokens(response_id, "x"), *driver.finish(response_id)]
            expected = driver.requests[response_id].speculation_key.removeprefix("sess_1/")
            assert {event.get("stream_id", "") for event in events} == {expected}
            assert [event["sequence_number"] for event in events] == list(range(2, 9))

    def test_a_refused_request_lets_the_next_one_go(self) -> None:
        driver = Driver()
        first = driver.create("one")
        driver.send(type="response.create", input="x", previous_response_id="resp_unknown")
        driver.send(type="response.create", input="three")
        events = driver.finish(first)
        assert types(events)[-3:] == ["error", "response.created", "response.in_progress"]

    def test_the_number_of_lanes_is_bounded(self) -> None:
        driver = Driver()
        first = driver.create(stream_id="a")
        driver.create(stream_id="b")
        driver.create(stream_id="c")
        events = driver.send(type="response.create", input="x", stream_id="d")
        assert events[0]["error"]["code"] == "too_many_lanes"
        assert events[0]["error"]["param"] == "stream_id"
        assert events[0]["stream_id"] == "d"
        driver.finish(first)
        driver.create(stream_id="d")

    def test_the_number_of_waiting_requests_is_bounded(self) -> None:
        driver = Driver()
        first = driver.create()
        for _ in range(4):
            assert driver.send(type="response.create", input="x") == []
        events = driver.send(type="response.create", input="x")
        assert events[0]["error"]["code"] == "queue_full"
        assert events[0]["status"] == 429
        driver.finish(first)
        assert driver.send(type="response.create", input="x") == []


class TestTurns:
    def test_the_next_turn_continues_with_the_ids_kept(self) -> None:
        driver = Driver()
        first = driver.create("hi", instructions="be brief")
        driver.tokens(first, "Hello")
        driver.end_token(first)
        driver.finish(first)
        second = driver.create("more", previous_response_id=first, instructions="be brief")
        text = prompt_text(driver.requests[second])
        assert text == (
            "<system>be brief</system><user>hi</user><assistant>Hello</assistant>"
            "<user>more</user><assistant>"
        )
        before = driver.requests[first].prompt_ids
        assert driver.requests[second].prompt_ids[: len(before)] == before

    def test_instructions_are_not_inherited(self) -> None:
        driver = Driver()
        first = driver.create("hi", instructions="be brief")
        driver.finish(first)
        second = driver.create("more", previous_response_id=first)
        assert prompt_text(driver.requests[second]).startswith("<user>hi</user>")

    def test_any_stored_response_can_be_forked(self) -> None:
        driver = Driver()
        first = driver.create("hi")
        driver.finish(first)
        second = driver.create("left", previous_response_id=first, stream_id="a")
        third = driver.create("right", previous_response_id=first, stream_id="b")
        driver.finish(second)
        driver.finish(third)
        again = driver.create("again", previous_response_id=second)
        text = prompt_text(driver.requests[again])
        assert "left" in text
        assert "right" not in text

    @pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.LENGTH])
    def test_cut_off_responses_count(self, reason: FinishReason) -> None:
        driver = Driver()
        first = driver.create("hi")
        driver.tokens(first, "Hel")
        driver.finish(first, reason)
        second = driver.create("more", previous_response_id=first)
        assert "<assistant>Hel</assistant>" in prompt_text(driver.requests[second])

    def test_a_stop_string_cuts_ids_that_were_not_shown(self) -> None:
        """Committed ids hold the stop string, the shown text does not: the text decides."""
        driver = Driver()
        first = driver.create("hi", paceline={"stop": "END"})
        driver.tokens(first, "Hel")
        driver.session._open[first].token_ids.extend([70, 79, 69])
        driver.finish(first, FinishReason.STOP, stop_match="END")
        second = driver.create("more", previous_response_id=first)
        assert "<assistant>Hel</assistant>" in prompt_text(driver.requests[second])

    def test_a_failed_response_is_not_a_turn(self) -> None:
        driver = Driver()
        first = driver.create("hi")
        driver.finish(first, FinishReason.ERROR, error="x")
        events = driver.send(type="response.create", input="x", previous_response_id=first)
        assert events[0]["error"]["code"] == "previous_response_not_found"

    def test_one_that_still_runs_cannot_be_continued_yet(self) -> None:
        driver = Driver()
        first = driver.create("hi", stream_id="a")
        events = driver.send(type="response.create", input="x", previous_response_id=first)
        assert events[0]["error"]["code"] == "previous_response_not_found"
        assert "has not ended yet" in events[0]["error"]["message"]

    def test_in_its_own_lane_it_has_ended_by_then(self) -> None:
        driver = Driver()
        first = driver.create("hi")
        driver.send(type="response.create", input="more", previous_response_id=first)
        driver.finish(first)
        assert len(driver.requests) == 2

    def test_bad_requests_evict_nothing(self) -> None:
        driver = Driver()
        first = driver.create("hi")
        driver.finish(first)
        driver.send(type="response.create", input="x", previous_response_id="nope")
        driver.send(type="response.create", input="x", temperature=-1, previous_response_id=first)
        driver.send(type="response.create", input="refuse me", previous_response_id=first)
        driver.create("more", previous_response_id=first)

    def test_the_store_is_bounded_in_tokens_and_forgets_the_least_recently_used(self) -> None:
        driver = Driver(replace(SETTINGS, max_stored_tokens=200))
        ids = []
        for _ in range(3):
            response_id = driver.create("x" * 50)
            driver.finish(response_id)
            ids.append(response_id)
            if len(ids) == 2:  # use the first, so that the second is the oldest
                driver.finish(driver.create("y" * 20, previous_response_id=ids[0]))
        known = [
            driver.send(type="response.create", input="z", previous_response_id=each)[0]["type"]
            for each in ids
        ]
        assert known[1] == "error"
        assert known[2] != "error"


class TestWarmUp:
    def test_it_prefills_and_sends_no_output(self) -> None:
        driver = Driver()
        first = driver.create("hi", instructions="be brief", generate=False)
        assert driver.requests[first].max_new_tokens == 1
        driver.tokens(first, "H")
        driver.finish(first, FinishReason.LENGTH)
        assert types(driver.sent) == [
            "response.created",
            "response.in_progress",
            "response.completed",
        ]
        response = driver.sent[-1]["response"]
        assert response["output"] == []
        assert response["usage"]["output_tokens"] == 0
        second = driver.create("more", previous_response_id=first, instructions="be brief")
        assert prompt_text(driver.requests[second]) == (
            "<system>be brief</system><user>hi</user><user>more</user><assistant>"
        )

    def test_instructions_alone_can_be_prepared(self) -> None:
        driver = Driver()
        first = driver.create([], instructions="be brief", generate=False)
        assert "be brief" in prompt_text(driver.requests[first])

    def test_nothing_at_all_cannot(self) -> None:
        driver = Driver()
        events = driver.send(type="response.create", generate=False)
        assert events[0]["error"]["param"] == "input"


class TestCancel:
    def test_by_response_id(self) -> None:
        driver = Driver()
        first = driver.create("hi")
        driver.tokens(first, "Hel")
        assert driver.send(type="response.cancel", response_id=first) == []
        assert driver.cancelled == [first]
        assert driver.send(type="response.cancel", response_id=first) == []
        assert driver.cancelled == [first]
        events = driver.finish(first, FinishReason.CANCELLED)
        assert types(events) == [
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
        assert events[-1]["response"]["status"] == "cancelled"
        assert events[-1]["response"]["incomplete_details"] is None
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hel"

    def test_by_lane_with_everything_that_waits_in_it(self) -> None:
        driver = Driver()
        first = driver.create("one", stream_id="a")
        other = driver.create("other", stream_id="b")
        driver.send(type="response.create", input="two", stream_id="a")
        driver.send(type="response.create", input="three", stream_id="a")
        events = driver.send(type="response.cancel", stream_id="a")
        assert driver.cancelled == [first]
        assert (
            types(events)
            == [
                "response.created",
                "response.in_progress",
                "response.incomplete",
            ]
            * 2
        )
        assert [event["sequence_number"] for event in events] == [0, 1, 2] * 2
        events = driver.finish(first, FinishReason.CANCELLED)
        assert types(events) == ["response.incomplete"]
        assert list(driver.requests) == [first, other]
        assert driver.session.num_open == 1

    def test_without_a_name_it_is_the_lane_without_a_name(self) -> None:
        driver = Driver()
        driver.create("one", stream_id="a")
        second = driver.create("two")
        driver.send(type="response.cancel")
        assert driver.cancelled == [second]

    def test_while_the_prompt_is_being_encoded(self) -> None:
        driver = Driver(encodes=False)
        driver.send(type="response.create", input="one")
        driver.send(type="response.create", input="two")
        (prompt,) = driver.prompts
        events = driver.send(type="response.cancel", response_id=prompt.response_id)
        assert types(events)[-1] == "response.incomplete"
        assert len(driver.prompts) == 2  # the next one of the lane goes
        driver.encode_next()
        assert driver.requests == {}
        driver.encode_next()
        assert len(driver.requests) == 1

    def test_a_finish_that_was_faster_wins(self) -> None:
        driver = Driver()
        first = driver.create("hi")
        driver.send(type="response.cancel", response_id=first)
        events = driver.finish(first, FinishReason.STOP)
        assert types(events)[-1] == "response.completed"

    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"response_id": "resp_nope"}, "response_id"),
            ({"stream_id": "nope"}, "stream_id"),
            ({}, "stream_id"),
        ],
    )
    def test_nothing_to_cancel_is_an_error(self, fields: dict[str, str], param: str) -> None:
        driver = Driver()
        events = driver.send(type="response.cancel", **fields)
        assert events[0]["error"]["code"] == "response_not_found"
        assert events[0]["error"]["param"] == param
        driver.create()

    def test_a_response_of_another_lane_is_not_found(self) -> None:
        driver = Driver()
        first = driver.create(stream_id="a")
        events = driver.send(type="response.cancel", response_id=first, stream_id="b")
        assert events[0]["error"]["code"] == "response_not_found"


class TestEnds:
    def test_a_disconnect_cancels_what_runs_and_forgets_the_rest(self) -> None:
        driver = Driver()
        first = driver.create(stream_id="a")
        second = driver.create(stream_id="b")
        driver.send(type="response.create", input="x", stream_id="a")
        driver.run(driver.session.on_disconnect())
        assert driver.cancelled == [first, second]
        sent = len(driver.sent)
        driver.tokens(first, "late")
        driver.finish(first, FinishReason.CANCELLED)
        driver.send(type="response.create", input="too late")
        driver.send(type="nonsense")
        driver.run(driver.session.on_disconnect())
        assert len(driver.sent) == sent
        assert driver.cancelled == [first, second]

    def test_a_slow_reader_is_closed_with_1013(self) -> None:
        driver = Driver()
        first = driver.create()
        driver.run(driver.session.on_slow_reader("nothing was read for 30 s"))
        assert driver.cancelled == [first]
        assert driver.close_code() == 1013
        assert driver.closed is not None
        assert not driver.closed.flush
        driver.closed = None
        driver.run(driver.session.on_slow_reader("again"))
        assert driver.close_code() is None

    def test_draining_closes_an_idle_session_at_once(self) -> None:
        driver = Driver()
        driver.run(driver.session.on_drain())
        assert driver.close_code() == 1012
        assert driver.closed is not None
        assert driver.closed.flush

    def test_draining_lets_accepted_requests_end_and_takes_no_more(self) -> None:
        driver = Driver()
        first = driver.create("one")
        driver.send(type="response.create", input="two")
        driver.run(driver.session.on_drain())
        driver.run(driver.session.on_drain())
        events = driver.send(type="response.create", input="three")
        assert events[0]["error"]["code"] == "server_shutting_down"
        assert events[0]["status"] == 503
        driver.finish(first)
        assert driver.close_code() is None
        (second,) = set(driver.requests) - {first}
        driver.finish(second)
        assert driver.close_code() == 1012

    def test_after_the_grace_time_the_rest_fails_and_says_why(self) -> None:
        driver = Driver()
        first = driver.create("one")
        driver.send(type="response.create", input="two")
        driver.run(driver.session.on_drain())
        events = driver.run(driver.session.on_drain_deadline())
        assert types(events)[-1] == "response.failed"
        assert driver.cancelled == [first]
        assert driver.close_code() is None
        ended = [events[-1], driver.finish(first, FinishReason.CANCELLED)[-1]]
        for event in ended:
            response = event["response"]
            assert (response["status"], response["incomplete_details"]) == ("failed", None)
            assert response["error"]["type"] == "server_shutting_down"
        assert driver.close_code() == 1012

    def test_a_cancel_that_is_under_way_is_not_repeated_at_the_deadline(self) -> None:
        driver = Driver()
        first = driver.create("one")
        driver.send(type="response.cancel", response_id=first)
        driver.run(driver.session.on_drain())
        driver.run(driver.session.on_drain_deadline())
        assert driver.cancelled == [first]
        (*_, ended) = driver.finish(first, FinishReason.CANCELLED)
        assert (ended["type"], ended["response"]["error"]) == ("response.incomplete", None)

    def test_answers_for_requests_that_are_gone_are_ignored(self) -> None:
        driver = Driver(encodes=False)
        driver.send(type="response.create", input="refuse me")
        driver.send(type="response.cancel")
        sent = len(driver.sent)
        driver.encode_next()
        driver.run(driver.session.on_submit_failed("resp_1", QueueFullError("full")))
        assert len(driver.sent) == sent
        assert driver.requests == {}
