"""`completion.create` with a suffix."""

from __future__ import annotations

import dataclasses

from paceline.core.events import FinishReason
from tests.fakes_engine import EOS_ID, LIMITS
from tests.server.driver import SETTINGS, Driver, prompt_text, types


def _ask(driver: Driver, **fields: object) -> list[dict[str, object]]:
    return driver.send(type="completion.create", **fields)


def test_prefix_and_suffix_reach_the_model() -> None:
    driver = Driver()
    _ask(driver, prompt="def f(", suffix="):\n", max_output_tokens=20)
    (request,) = driver.requests.values()
    assert prompt_text(request) == "<prefix>def f(<suffix>):\n<middle>"
    assert request.max_new_tokens == 20


def test_the_forms_own_ends_join_those_of_the_request() -> None:
    driver = Driver()
    _ask(driver, prompt="a", suffix="b", paceline={"stop": "\n\n", "stop_token_ids": [9]})
    (request,) = driver.requests.values()
    assert request.stop == ("\n\n", "STOP")
    assert request.stop_token_ids == frozenset({EOS_ID, 9, ord("\f") + 1})


def test_the_requests_own_stops_come_first_when_there_is_no_room() -> None:
    driver = Driver()
    own = [str(number) for number in range(16)]
    _ask(driver, prompt="a", suffix="b", paceline={"stop": own})
    (request,) = driver.requests.values()
    assert request.stop == tuple(own)


def test_a_long_document_is_cut_instead_of_refused() -> None:
    limits = dataclasses.replace(LIMITS, max_model_len=64)
    driver = Driver(dataclasses.replace(SETTINGS, limits=limits))
    _ask(driver, prompt="x" * 500, suffix="y" * 500, max_output_tokens=16)
    (request,) = driver.requests.values()
    assert len(request.prompt_ids) == 48
    assert request.max_new_tokens == 16


def test_a_filling_has_a_length_even_when_none_is_asked_for() -> None:
    driver = Driver()
    _ask(driver, prompt="a", suffix="")
    _ask(driver, prompt="a", stream_id="other")
    filling, raw = driver.requests.values()
    assert filling.max_new_tokens == 256
    assert raw.max_new_tokens == LIMITS.max_sequence_tokens - 1


def test_a_gap_at_the_start_of_a_document() -> None:
    driver = Driver()
    _ask(driver, prompt="", suffix="import os\n")
    assert len(driver.requests) == 1
    (error,) = _ask(driver, prompt="", suffix="")
    assert error["type"] == "error"


def test_events_are_those_of_a_response() -> None:
    driver = Driver()
    _ask(driver, prompt="a", suffix="b")
    (response_id,) = driver.requests
    driver.tokens(response_id, "middle")
    driver.finish(response_id, FinishReason.STOP)
    assert types(driver.sent)[0] == "response.created"
    assert types(driver.sent)[-1] == "response.completed"
    assert driver.sent[-1]["response"]["output"][0]["content"][0]["text"] == "middle"


def test_a_filling_is_no_turn() -> None:
    driver = Driver()
    _ask(driver, prompt="a", suffix="b")
    (response_id,) = driver.requests
    driver.finish(response_id)
    (error,) = driver.send(type="response.create", input="go on", previous_response_id=response_id)
    assert error["error"]["code"] == "previous_response_not_found"
