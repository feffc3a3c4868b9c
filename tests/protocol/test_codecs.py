"""Decoding what clients send: precise errors, leniency where OpenAI's clients need it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paceline_protocol import JSON_CODEC, MSGPACK_CODEC, ErrorCode, ProtocolError, UnknownEvent
from paceline_protocol import messages as m

if TYPE_CHECKING:
    from paceline_protocol.codecs import Codec

CREATE = "response.create"

REJECTED: list[tuple[object, ErrorCode, str | None, str]] = [
    ([1], ErrorCode.INVALID_TYPE, None, "must be an object, not an array"),
    (None, ErrorCode.INVALID_TYPE, None, "not null"),
    (True, ErrorCode.INVALID_TYPE, None, "not a boolean"),
    ("response.create", ErrorCode.INVALID_TYPE, None, "not a string"),
    ({"type": {}}, ErrorCode.INVALID_TYPE, "type", "not an object"),
    ({"type": CREATE, "generate": "no"}, ErrorCode.INVALID_TYPE, "generate", "true or false"),
    ({"type": CREATE, "instructions": ["x"]}, ErrorCode.INVALID_TYPE, "instructions", "an array;"),
    ({"type": CREATE, "input": None, "include": {}}, ErrorCode.INVALID_TYPE, "include", "array"),
    ({"type": CREATE, "input": False}, ErrorCode.INVALID_TYPE, "input", "input is false"),
    (
        {"type": CREATE, "paceline": {"min_p": 2}},
        ErrorCode.INVALID_VALUE,
        "paceline.min_p",
        "from 0 to 1",
    ),
    (
        {"type": CREATE, "paceline": {"repetition_penalty": 0}},
        ErrorCode.INVALID_VALUE,
        "paceline.repetition_penalty",
        "a number above 0",
    ),
    (
        {"type": CREATE, "paceline": {"stop": [1]}},
        ErrorCode.INVALID_TYPE,
        "paceline.stop[0]",
        "a string",
    ),
    ({}, ErrorCode.MISSING_REQUIRED_PARAMETER, "type", "type is missing"),
    ({"type": 3}, ErrorCode.INVALID_TYPE, "type", "must be a string, not a number"),
    ({"type": "response.make"}, ErrorCode.UNKNOWN_EVENT_TYPE, "type", "`response.create`"),
    ({"type": CREATE, "input": 3}, ErrorCode.INVALID_TYPE, "input", "a string or an array"),
    (
        {"type": CREATE, "input": [{"role": "tool", "content": "x"}]},
        ErrorCode.INVALID_VALUE,
        "input[0].role",
        '"tool"; it must be `assistant`, `developer`, `system` or `user`',
    ),
    (
        {"type": CREATE, "input": ["x", 3]},
        ErrorCode.INVALID_TYPE,
        "input[0]",
        "must be an object",
    ),
    (
        {"type": CREATE, "input": [{"type": "item_reference", "id": "x"}]},
        ErrorCode.INVALID_VALUE,
        "input[0].type",
        "`message`",
    ),
    (
        {"type": CREATE, "input": [{"role": "user"}]},
        ErrorCode.MISSING_REQUIRED_PARAMETER,
        "input[0].content",
        "a string or an array",
    ),
    (
        {"type": CREATE, "input": [{"role": "user", "content": [{"type": "input_image"}]}]},
        ErrorCode.INVALID_VALUE,
        "input[0].content[0].type",
        "`input_text`",
    ),
    (
        {"type": CREATE, "input": [{"type": "function_call_output", "output": "3"}]},
        ErrorCode.MISSING_REQUIRED_PARAMETER,
        "input[0].call_id",
        "must be a string",
    ),
    ({"type": CREATE, "temperature": -0.5}, ErrorCode.INVALID_VALUE, "temperature", "0 or more"),
    ({"type": CREATE, "temperature": "1"}, ErrorCode.INVALID_TYPE, "temperature", "a number"),
    ({"type": CREATE, "top_p": 0}, ErrorCode.INVALID_VALUE, "top_p", "above 0 and at most 1"),
    ({"type": CREATE, "top_p": 1.1}, ErrorCode.INVALID_VALUE, "top_p", "above 0 and at most 1"),
    (
        {"type": CREATE, "max_output_tokens": 0},
        ErrorCode.INVALID_VALUE,
        "max_output_tokens",
        "from 1 to",
    ),
    (
        {"type": CREATE, "max_output_tokens": 2**40},
        ErrorCode.INVALID_VALUE,
        "max_output_tokens",
        "from 1 to",
    ),
    ({"type": CREATE, "top_logprobs": 21}, ErrorCode.INVALID_VALUE, "top_logprobs", "0 to 20"),
    ({"type": CREATE, "metadata": {"a": 1}}, ErrorCode.INVALID_TYPE, "metadata.a", "a string"),
    ({"type": CREATE, "stream_id": ""}, ErrorCode.INVALID_VALUE, "stream_id", "1 to 128"),
    ({"type": CREATE, "top_k": 5}, ErrorCode.UNSUPPORTED_PARAMETER, "top_k", "inside `paceline`"),
    (
        {"type": CREATE, "paceline": {"topk": 5}},
        ErrorCode.UNKNOWN_PARAMETER,
        "paceline.topk",
        "did you mean `top_k`?",
    ),
    (
        {"type": CREATE, "paceline": {"x" * 10_000: 5}},
        ErrorCode.UNKNOWN_PARAMETER,
        "paceline." + "x" * 60,
        "known are",
    ),
    (
        {"type": CREATE, "paceline": {"logit_bias": {"eleven": 1}}},
        ErrorCode.INVALID_TYPE,
        "paceline.logit_bias",
        "a key of paceline.logit_bias must be an integer",
    ),
    (
        {"type": CREATE, "paceline": {"speculation": "maybe"}},
        ErrorCode.INVALID_VALUE,
        "paceline.speculation",
        "`auto`, `off` or `on`",
    ),
    (
        {"type": CREATE, "paceline": {"include": ["logits"]}},
        ErrorCode.INVALID_VALUE,
        "paceline.include[0]",
        "`tokens`",
    ),
    (
        {"type": CREATE, "paceline": {"num_speculative_tokens": 17}},
        ErrorCode.INVALID_VALUE,
        "paceline.num_speculative_tokens",
        "from 0 to 16",
    ),
    (
        {"type": "completion.create"},
        ErrorCode.MISSING_REQUIRED_PARAMETER,
        "prompt",
        "must be a string",
    ),
    (
        {"type": "completion.create", "prompt": "x", "n": 2},
        ErrorCode.UNKNOWN_PARAMETER,
        "n",
        "known are",
    ),
    (
        {"type": "completion.create", "prompt": "x", "stop": ["\n"]},
        ErrorCode.UNSUPPORTED_PARAMETER,
        "stop",
        "inside `paceline`",
    ),
    (
        {"type": "response.cancel", "id": "resp_1"},
        ErrorCode.UNKNOWN_PARAMETER,
        "id",
        "response_id",
    ),
    (
        {"type": "telemetry.subscribe", "scope": "all"},
        ErrorCode.INVALID_VALUE,
        "scope",
        "`server` or `session`",
    ),
    (
        {"type": "telemetry.subscribe", "interval_ms": 1},
        ErrorCode.INVALID_VALUE,
        "interval_ms",
        "from 50 to 60000",
    ),
]


@pytest.mark.parametrize(("value", "code", "param", "part"), REJECTED)
@pytest.mark.parametrize("binary", [False, True], ids=["json", "msgpack"])
def test_a_wrong_message_gets_its_code_path_and_remedy(
    value: object, code: ErrorCode, param: str | None, part: str, binary: bool
) -> None:
    codec, payload = _encoded(value, binary)
    with pytest.raises(ProtocolError) as caught:
        codec.decode_client(payload)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert part in caught.value.message
    assert "\n" not in caught.value.message


def test_an_error_names_the_lane_that_the_message_named() -> None:
    with pytest.raises(ProtocolError) as caught:
        JSON_CODEC.decode_client(
            json.dumps({"type": CREATE, "stream_id": "left", "temperature": -1})
        )
    assert caught.value.stream_id == "left"
    event = m.ErrorEvent.from_error(caught.value)
    assert (event.stream_id, event.status) == ("left", 400)
    assert event.error == m.ErrorDetails(
        type="invalid_request_error",
        code="invalid_value",
        message="temperature is -1; it must be a number, 0 or more",
        param="temperature",
    )


@pytest.mark.parametrize(
    "text",
    ["", "{", '{"type":', "nan", '{"type":"response.create","temperature":NaN}', "[" * 100_000],
)
def test_broken_json(text: str) -> None:
    with pytest.raises(ProtocolError) as caught:
        JSON_CODEC.decode_client(text)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_JSON, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"type":"x\\ud800"}', "lone surrogate"),
        ('{"type":"\\udc00"}', "surrogate pair"),
        ('{"type":"\\ud800\\u0041 and more text"}', "surrogate pair"),
        ('{"type":"\\ud8', "truncated"),
        ('{"type":"\\ud83d\\ude00', "truncated"),
        ('{"a":' * 500, "truncated"),
    ],
)
def test_a_lone_surrogate_is_not_called_an_early_end(text: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as caught:
        JSON_CODEC.decode_client(text)
    assert caught.value.code is ErrorCode.INVALID_JSON


@pytest.mark.parametrize("codec", [JSON_CODEC, MSGPACK_CODEC])
def test_an_empty_message_is_called_empty(codec: Codec) -> None:
    with pytest.raises(ProtocolError, match="the message is empty; it must be a .* with a `type`"):
        codec.decode_client(b"" if codec.is_binary else " \n")


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x81", b"\x91" * 100_000, b"\xa1\xff"])
def test_broken_msgpack(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        MSGPACK_CODEC.decode_client(payload)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_MSGPACK, None)


def test_not_a_number_is_out_of_range_where_the_encoding_can_carry_it() -> None:
    payload = msgspec.msgpack.encode({"type": CREATE, "temperature": float("nan")})
    with pytest.raises(ProtocolError) as caught:
        MSGPACK_CODEC.decode_client(payload)
    assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_VALUE, "temperature")


def test_the_wrong_kind_of_frame_is_refused_as_such() -> None:
    with pytest.raises(ProtocolError, match=r"paceline\.v1\.msgpack") as binary:
        JSON_CODEC.decode_client(b"{}")
    with pytest.raises(ProtocolError, match="binary frames") as text:
        MSGPACK_CODEC.decode_client("{}")
    assert binary.value.code is text.value.code is ErrorCode.UNEXPECTED_FRAME_TYPE


def test_openai_messages_are_lenient() -> None:
    """Unknown fields are ignored and items may leave their type out."""
    event = JSON_CODEC.decode_client(
        json.dumps(
            {
                "type": CREATE,
                "input": [
                    {"role": "user", "content": "a", "phase": "final_answer"},
                    {"type": "message", "role": "developer", "content": []},
                ],
                "service_tier": "auto",
                "stream": True,
                "store": None,
                "tools": [],
            }
        )
    )
    assert event == m.ResponseCreate(
        input=[
            m.MessageItem(role="user", content="a"),
            m.MessageItem(role="developer", content=[]),
        ],
        tools=[],
    )


def test_fields_that_a_server_may_have_to_refuse_arrive_as_they_were_sent() -> None:
    raw = {
        "tools": [{"type": "function", "name": "f"}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema"}},
        "background": True,
        "conversation": {"id": "c"},
        "prompt": {"id": "p"},
    }
    event = JSON_CODEC.decode_client(json.dumps({"type": CREATE, **raw}))
    assert {name: getattr(event, name) for name in raw} == raw


@pytest.mark.parametrize("bias", [{"11": -100, "42": 1.5}, {11: -100, 42: 1.5}])
def test_logit_bias_takes_ids_as_numbers_and_as_text(bias: dict[Any, float]) -> None:
    value = {"type": CREATE, "paceline": {"logit_bias": bias}}
    event = MSGPACK_CODEC.decode_client(msgspec.msgpack.encode(value))
    assert isinstance(event, m.ResponseCreate)
    assert event.paceline is not None
    assert event.paceline.logit_bias == {11: -100.0, 42: 1.5}


@pytest.mark.parametrize(
    ("stop", "strings"), [(None, ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())]
)
def test_stop_is_one_string_or_many(stop: Any, strings: tuple[str, ...]) -> None:
    assert m.PacelineOptions(stop=stop).stop_strings == strings


@pytest.mark.parametrize("binary", [False, True], ids=["json", "msgpack"])
def test_a_newer_servers_event_is_handed_on_as_plain_values(binary: bool) -> None:
    value = {"type": "response.sung", "sequence_number": 3, "tune": [1, 2]}
    codec, payload = _encoded(value, binary)
    assert codec.decode_server(payload) == UnknownEvent(type="response.sung", data=value)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "msgpack"])
@pytest.mark.parametrize(
    ("value", "param"),
    [
        ({"type": "response.output_text.delta", "delta": 3}, "delta"),
        ({"type": "response.output_text.delta"}, "item_id"),
        ({"type": None}, "type"),
        ([], None),
    ],
)
def test_a_broken_server_event_is_an_error(value: object, param: str | None, binary: bool) -> None:
    codec, payload = _encoded(value, binary)
    with pytest.raises(ProtocolError) as caught:
        codec.decode_server(payload)
    assert caught.value.param == param


def test_a_number_of_a_hundred_digits_is_not_repeated_in_the_answer() -> None:
    with pytest.raises(ProtocolError, match="a very large number"):
        JSON_CODEC.decode_client(json.dumps({"type": CREATE, "metadata": 10**100}))


def test_what_only_messagepack_can_carry_is_named() -> None:
    for value, param, part in [
        ({"type": CREATE, "input": b"abc"}, "input", "binary data"),
        (msgspec.msgpack.Ext(3, b"x"), None, "an extension type"),
    ]:
        with pytest.raises(ProtocolError, match=part) as caught:
            MSGPACK_CODEC.decode_client(msgspec.msgpack.encode(value))
        assert (caught.value.code, caught.value.param) == (ErrorCode.INVALID_TYPE, param)


def test_broken_bytes_from_a_server_are_an_error() -> None:
    with pytest.raises(ProtocolError, match="not valid JSON"):
        JSON_CODEC.decode_server("{")
    with pytest.raises(ProtocolError, match="not valid MessagePack"):
        MSGPACK_CODEC.decode_server(b"\xc1")


# Drawing the values may be slow on a busy machine; that says nothing about the codecs.
slow_is_fine = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

_JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
_FIELDS = sorted({field.name for cls in m.CLIENT_EVENTS for field in msgspec.structs.fields(cls)})


@slow_is_fine
@given(
    tag=st.sampled_from([str(cls.__struct_config__.tag) for cls in m.CLIENT_EVENTS]),
    fields=st.dictionaries(st.sampled_from(_FIELDS), _JSON_VALUES, max_size=6),
)
def test_any_values_give_a_message_or_a_protocol_error(tag: str, fields: dict[str, Any]) -> None:
    try:
        event = JSON_CODEC.decode_client(json.dumps({**fields, "type": tag}))
    except ProtocolError as error:
        faulty = (error.param or "prompt").split(".")[0].split("[")[0]
    else:
        assert JSON_CODEC.decode_client(JSON_CODEC.encode(event)) == event
        return
    assert faulty in {*fields, "prompt"}


@slow_is_fine
@given(payload=st.binary(max_size=200))
def test_any_bytes_give_a_message_or_a_protocol_error(payload: bytes) -> None:
    for decode in (MSGPACK_CODEC.decode_client, MSGPACK_CODEC.decode_server):
        try:
            decode(payload)
        except ProtocolError:
            continue


@slow_is_fine
@given(text=st.text(max_size=200))
def test_any_text_gives_a_message_or_a_protocol_error(text: str) -> None:
    for decode in (JSON_CODEC.decode_client, JSON_CODEC.decode_server):
        try:
            decode(text)
        except ProtocolError:
            continue


def _encoded(value: object, binary: bool) -> tuple[Any, Any]:
    if binary:
        return MSGPACK_CODEC, msgspec.msgpack.encode(value)
    return JSON_CODEC, json.dumps(value)
