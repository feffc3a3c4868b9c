"""Every wrong request gets one error that names what is wrong, and the connection lives on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from paceline_protocol.codecs import JSON_CODEC, MSGPACK_CODEC
from paceline_protocol.errors import ProtocolError
from tests.fakes_engine import LIMITS
from tests.server.driver import SETTINGS, Driver, types

CREATE = {"type": "response.create", "input": "hi"}
TOOL: dict[str, Any] = {"type": "function", "name": "f"}
COMPLETE = {"type": "completion.create", "prompt": "hi"}

CASES: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("no type", {"input": "hi"}, "missing_required_parameter", "type"),
    ("unknown type", {"type": "response.nope"}, "unknown_event_type", "type"),
    ("number as type", {"type": 3}, "invalid_type", "type"),
    ("no input", {"type": "response.create"}, "missing_required_parameter", "input"),
    ("empty text", CREATE | {"input": ""}, "invalid_value", "input"),
    ("no items", CREATE | {"input": []}, "invalid_value", "input"),
    (
        "only empty messages",
        CREATE | {"input": [{"role": "user", "content": ""}]},
        "invalid_value",
        "input",
    ),
    (
        "only reasoning",
        CREATE | {"input": [{"type": "reasoning", "summary": []}]},
        "invalid_value",
        "input",
    ),
    ("number as input", CREATE | {"input": 7}, "invalid_type", "input"),
    (
        "role",
        CREATE | {"input": [{"role": "king", "content": "x"}]},
        "invalid_value",
        "input[0].role",
    ),
    (
        "no content",
        CREATE | {"input": [{"role": "user"}]},
        "missing_required_parameter",
        "input[0].content",
    ),
    (
        "image",
        CREATE
        | {
            "input": [
                {"role": "user", "content": "x"},
                {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]},
            ]
        },
        "invalid_value",
        "input[1].content[0].type",
    ),
    ("temperature below 0", CREATE | {"temperature": -0.1}, "invalid_value", "temperature"),
    ("temperature as text", CREATE | {"temperature": "hot"}, "invalid_type", "temperature"),
    ("top_p of 0", CREATE | {"top_p": 0}, "invalid_value", "top_p"),
    ("top_p above 1", CREATE | {"top_p": 1.5}, "invalid_value", "top_p"),
    ("no tokens", CREATE | {"max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
    ("half a token", CREATE | {"max_output_tokens": 1.5}, "invalid_type", "max_output_tokens"),
    ("model", CREATE | {"model": "gpt-9"}, "model_not_found", "model"),
    (
        "previous response",
        CREATE | {"previous_response_id": "resp_x"},
        "previous_response_not_found",
        "previous_response_id",
    ),
    ("tools as text", CREATE | {"tools": "f"}, "invalid_type", "tools"),
    ("tool as text", CREATE | {"tools": ["f"]}, "invalid_type", "tools[0]"),
    (
        "another tool",
        CREATE | {"tools": [{"type": "web_search"}]},
        "unsupported_value",
        "tools[0].type",
    ),
    (
        "no name",
        CREATE | {"tools": [{"type": "function"}]},
        "missing_required_parameter",
        "tools[0].name",
    ),
    (
        "name with a space",
        CREATE | {"tools": [{"type": "function", "name": "a b"}]},
        "invalid_value",
        "tools[0].name",
    ),
    ("two of a name", CREATE | {"tools": [TOOL, TOOL]}, "invalid_value", "tools[1].name"),
    (
        "parameters",
        CREATE | {"tools": [TOOL | {"parameters": "none"}]},
        "invalid_type",
        "tools[0].parameters",
    ),
    (
        "description",
        CREATE | {"tools": [TOOL | {"description": 3}]},
        "invalid_type",
        "tools[0].description",
    ),
    (
        "strict parameters that cannot be",
        CREATE | {"tools": [TOOL | {"parameters": {"wrong": 1}, "strict": True}]},
        "invalid_value",
        "tools",
    ),
    ("required of nothing", CREATE | {"tool_choice": "required"}, "invalid_value", "tool_choice"),
    (
        "another choice",
        CREATE | {"tools": [TOOL], "tool_choice": "maybe"},
        "invalid_value",
        "tool_choice",
    ),
    ("choice", CREATE | {"tools": [TOOL], "tool_choice": 3}, "invalid_value", "tool_choice"),
    (
        "choice of another",
        CREATE | {"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}},
        "invalid_value",
        "tool_choice.name",
    ),
    (
        "tools and a regex",
        CREATE | {"tools": [TOOL], "paceline": {"grammar": {"regex": "a"}}},
        "invalid_value",
        "paceline.grammar.regex",
    ),
    (
        "tool format",
        CREATE | {"paceline": {"tool_format": "mine"}},
        "invalid_value",
        "paceline.tool_format",
    ),
    (
        "format",
        CREATE | {"text": {"format": {"type": "xml"}}},
        "invalid_value",
        "text.format.type",
    ),
    ("format as text", CREATE | {"text": {"format": "json"}}, "invalid_type", "text.format"),
    (
        "no schema",
        CREATE | {"text": {"format": {"type": "json_schema", "name": "x"}}},
        "missing_required_parameter",
        "text.format.schema",
    ),
    (
        "schema as text",
        CREATE | {"text": {"format": {"type": "json_schema", "schema": "{}"}}},
        "invalid_type",
        "text.format.schema",
    ),
    (
        "schema that cannot be",
        CREATE | {"text": {"format": {"type": "json_schema", "schema": {"wrong": 1}}}},
        "invalid_value",
        "text.format.schema",
    ),
    (
        "two grammars",
        CREATE | {"paceline": {"grammar": {"regex": "a", "lark": "start: b"}}},
        "invalid_value",
        "paceline.grammar",
    ),
    ("no grammar", CREATE | {"paceline": {"grammar": {}}}, "invalid_value", "paceline.grammar"),
    (
        "grammar and format",
        CREATE
        | {"text": {"format": {"type": "json_object"}}, "paceline": {"grammar": {"regex": "a"}}},
        "invalid_value",
        "paceline.grammar",
    ),
    (
        "no choices",
        CREATE | {"paceline": {"grammar": {"choice": []}}},
        "invalid_value",
        "paceline.grammar.choice",
    ),
    (
        "regex",
        COMPLETE | {"paceline": {"grammar": {"regex": "wrong"}}},
        "invalid_value",
        "paceline.grammar.regex",
    ),
    (
        "grammar and a least length",
        CREATE | {"paceline": {"grammar": {"regex": "a"}, "min_tokens": 3}},
        "invalid_value",
        "paceline.min_tokens",
    ),
    (
        "a least length above the greatest",
        CREATE | {"max_output_tokens": 4, "paceline": {"min_tokens": 5}},
        "invalid_value",
        "paceline.min_tokens",
    ),
    ("text", CREATE | {"text": "plain"}, "invalid_type", "text"),
    ("background", CREATE | {"background": True}, "unsupported_parameter", "background"),
    ("conversation", CREATE | {"conversation": "conv_1"}, "unsupported_parameter", "conversation"),
    ("prompt", CREATE | {"prompt": {"id": "pmpt_1"}}, "unsupported_parameter", "prompt"),
    ("logprobs", CREATE | {"top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ("seed", CREATE | {"paceline": {"seed": -1}}, "invalid_value", "paceline.seed"),
    (
        "banned id",
        CREATE | {"paceline": {"banned_token_ids": [1 << 30]}},
        "invalid_value",
        "paceline.banned_token_ids",
    ),
    (
        "bias of an unknown id",
        CREATE | {"paceline": {"logit_bias": {"1073741824": 1}}},
        "invalid_value",
        "paceline.logit_bias",
    ),
    ("prompt of an unknown id", COMPLETE | {"prompt": [1 << 30]}, "invalid_value", "prompt"),
    ("prompt of text and ids", COMPLETE | {"prompt": ["a"]}, "invalid_type", "prompt[0]"),
    ("ids and a suffix", COMPLETE | {"prompt": [1], "suffix": "x"}, "invalid_type", "prompt"),
    ("misplaced", CREATE | {"top_k": 3}, "unsupported_parameter", "top_k"),
    ("misspelt", CREATE | {"paceline": {"topk": 3}}, "unknown_parameter", "paceline.topk"),
    ("top_k", CREATE | {"paceline": {"top_k": -1}}, "invalid_value", "paceline.top_k"),
    ("min_p", CREATE | {"paceline": {"min_p": 2}}, "invalid_value", "paceline.min_p"),
    ("empty stop", CREATE | {"paceline": {"stop": ""}}, "invalid_value", "paceline.stop"),
    ("stops", CREATE | {"paceline": {"stop": ["x"] * 17}}, "invalid_value", "paceline.stop"),
    (
        "stop id",
        CREATE | {"paceline": {"stop_token_ids": [1 << 30]}},
        "invalid_value",
        "paceline.stop_token_ids",
    ),
    (
        "speculation",
        CREATE | {"paceline": {"speculation": "yes"}},
        "invalid_value",
        "paceline.speculation",
    ),
    ("drafter", CREATE | {"paceline": {"drafter": "fast"}}, "invalid_value", "paceline.drafter"),
    (
        "draft length",
        CREATE | {"paceline": {"num_speculative_tokens": 17}},
        "invalid_value",
        "paceline.num_speculative_tokens",
    ),
    ("template", CREATE | {"input": "refuse me"}, "invalid_value", "input"),
    ("no prompt", {"type": "completion.create"}, "missing_required_parameter", "prompt"),
    ("empty prompt", COMPLETE | {"prompt": ""}, "invalid_value", "prompt"),
    ("unknown field", COMPLETE | {"n": 2}, "unknown_parameter", "n"),
    (
        "stop of a completion",
        COMPLETE | {"paceline": {"stop": [""]}},
        "invalid_value",
        "paceline.stop",
    ),
    ("lane", CREATE | {"stream_id": ""}, "invalid_value", "stream_id"),
    (
        "the server's telemetry without being an admin",
        {"type": "telemetry.subscribe", "scope": "server"},
        "permission_denied",
        "scope",
    ),
]


@pytest.mark.parametrize(
    ("message", "code", "param"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_wrong_requests(message: dict[str, Any], code: str, param: str | None) -> None:
    driver = Driver()
    events = driver.send(**message)
    assert types(events) == ["error"]
    error = events[0]["error"]
    assert (error["code"], error["param"]) == (code, param)
    assert len(error["message"]) > 10
    assert events[0]["status"] in (400, 403, 404)
    assert driver.session.num_open == 0
    assert driver.closed is None
    response_id = driver.create("now a good one")
    assert types(driver.finish(response_id))[-1] == "response.completed"


def test_errors_find_their_lane() -> None:
    driver = Driver()
    events = driver.send(**CREATE, stream_id="a", temperature=-1)
    assert events[0]["stream_id"] == "a"
    events = driver.send(**CREATE, stream_id="a", tools=[{"type": "function"}])
    assert events[0]["stream_id"] == "a"
    events = driver.send(**CREATE, stream_id="a", previous_response_id="nope")
    assert events[0]["stream_id"] == "a"


@pytest.mark.parametrize("frame", ["", "{", "[1, 2", '{"type": NaN}', "nul\x00"])
def test_malformed_json(frame: str) -> None:
    driver = Driver()
    with pytest.raises(ProtocolError) as caught:
        JSON_CODEC.decode_client(frame)
    events = driver.run(driver.session.on_invalid_message(caught.value))
    assert events[0]["error"]["code"] == "invalid_json"
    driver.create()


@pytest.mark.parametrize("frame", ["[]", "3", '"text"', "null"])
def test_a_message_that_is_no_object(frame: str) -> None:
    with pytest.raises(ProtocolError, match="must be an object"):
        JSON_CODEC.decode_client(frame)


@pytest.mark.parametrize(
    ("message", "param"), [(CREATE, "input"), (COMPLETE, "prompt")], ids=["response", "completion"]
)
def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(
    message: dict[str, Any], param: str
) -> None:
    driver = Driver(replace(SETTINGS, limits=replace(LIMITS, max_model_len=64)))
    field = "prompt" if param == "prompt" else "input"
    events = driver.send(**message | {field: "x" * 100})
    assert types(events) == ["error"]
    error = events[0]["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["param"] == param
    assert "64" in error["message"]
    assert (
        str(100 if param == "prompt" else 100 + len("<user></user><assistant>")) in error["message"]
    )


@pytest.mark.parametrize(
    ("message", "begins"),
    [
        (COMPLETE | {"prompt": [1 << 30]}, "prompt holds the token id 1073741824; ids go from"),
        (
            CREATE | {"paceline": {"stop_token_ids": [1 << 30]}},
            "paceline.stop_token_ids holds the token id",
        ),
        (CREATE | {"metadata": {"a": "b", "c": 1}}, "metadata.c is 1; it must be a string"),
    ],
)
def test_the_field_is_called_what_the_client_calls_it(message: dict[str, Any], begins: str) -> None:
    events = Driver().send(**message)
    assert events[0]["error"]["message"].startswith(begins)


def test_forced_speculation_can_be_forbidden() -> None:
    driver = Driver(replace(SETTINGS, allow_forced=False))
    events = driver.send(**CREATE, paceline={"speculation": "on"})
    assert events[0]["error"]["code"] == "permission_denied"
    assert events[0]["error"]["param"] == "paceline.speculation"
    driver.create(paceline={"speculation": "auto"})


def test_what_changes_nothing_is_ignored() -> None:
    driver = Driver()
    driver.create(
        model="fake-model",
        stream=True,
        store=True,
        background=False,
        tools=[],
        tool_choice="auto",
        parallel_tool_calls=False,
        text={"format": {"type": "text"}, "verbosity": "low"},
        reasoning={"effort": "low"},
        include=["reasoning.encrypted_content"],
        truncation="disabled",
        user="someone",
        service_tier="auto",
        prompt_cache_key="k",
        no_such_field_yet=1,
    )
    assert driver.sent[0]["response"]["parallel_tool_calls"] is False
    assert driver.sent[0]["response"]["tool_choice"] == "auto"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_json_has_no_word_for(value: float) -> None:
    """MessagePack can carry them."""
    driver = Driver()
    frame = msgspec.msgpack.encode(CREATE | {"temperature": value})
    events = driver.send_frame(frame, MSGPACK_CODEC)
    assert events[0]["error"]["code"] == "invalid_value"
    assert events[0]["error"]["param"] == "temperature"
