"""Every wrong body gets a status, a code and the path of what is wrong, and runs nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from paceline.server.http.client_names import ClientNames
from paceline_protocol.errors import ErrorCode, ProtocolError
from tests.server.serving import serving

if TYPE_CHECKING:
    import httpx

    from tests.server.serving import Server

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
FIM = "/v1/fim/completions"
INFILL = "/infill"
USER = {"role": "user", "content": "hi"}
M: dict[str, Any] = {"messages": [USER]}
P: dict[str, Any] = {"prompt": "hi"}
I: dict[str, Any] = {"input": "hi"}  # noqa: E741
T: dict[str, Any] = {"type": "function"}
F = "tools[0].function"
LARGE_SCHEMA = {"enum": [f"choice number {number}" for number in range(10_000)]}
G: dict[str, Any] = {"input_prefix": "hi", "input_suffix": "x"}

# path, body, status, code, param
CASES: list[tuple[str, Any, int, str, str | None]] = [
    (CHAT, [], 400, "invalid_type", None),
    (CHAT, 7, 400, "invalid_type", None),
    (CHAT, {}, 400, "missing_required_parameter", "messages"),
    (CHAT, I, 400, "missing_required_parameter", "messages"),
    (CHAT, {"messages": []}, 400, "invalid_value", "messages"),
    (CHAT, {"messages": "hi"}, 400, "invalid_type", "messages"),
    (CHAT, {"messages": ["hi"]}, 400, "invalid_type", "messages[0]"),
    (CHAT, {"messages": [{"content": "x"}]}, 400, "missing_required_parameter", "messages[0].role"),
    (CHAT, {"messages": [{"role": "king"}]}, 400, "invalid_value", "messages[0].role"),
    (
        CHAT,
        {"messages": [{"role": "user"}]},
        400,
        "missing_required_parameter",
        "messages[0].content",
    ),
    (CHAT, {"messages": [USER | {"content": 7}]}, 400, "invalid_type", "messages[0].content"),
    (
        CHAT,
        {"messages": [USER, {"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "invalid_value",
        "messages[1].content[0].type",
    ),
    (
        CHAT,
        {"messages": [USER, {"role": "tool", "content": "x"}]},
        400,
        "missing_required_parameter",
        "messages[1].tool_call_id",
    ),
    (
        CHAT,
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        400,
        "missing_required_parameter",
        "messages[1].tool_calls[0].function",
    ),
    (CHAT, {"messages": [USER | {"content": ""}]}, 400, "invalid_value", "messages"),
    (CHAT, {"messages": [USER | {"content": "refuse me"}]}, 400, "invalid_value", "messages"),
    (CHAT, M | {"model": "gpt-9"}, 404, "model_not_found", "model"),
    (CHAT, M | {"model": 7}, 400, "invalid_type", "model"),
    (CHAT, M | {"temperature": -1}, 400, "invalid_value", "temperature"),
    (CHAT, M | {"temperature": "hot"}, 400, "invalid_type", "temperature"),
    (CHAT, M | {"top_p": 0}, 400, "invalid_value", "top_p"),
    (CHAT, M | {"top_p": 1.1}, 400, "invalid_value", "top_p"),
    (CHAT, M | {"top_k": -2}, 400, "invalid_value", "top_k"),
    (CHAT, M | {"min_p": 2}, 400, "invalid_value", "min_p"),
    (CHAT, M | {"repetition_penalty": 0}, 400, "invalid_value", "repetition_penalty"),
    (CHAT, M | {"presence_penalty": 3}, 400, "invalid_value", "presence_penalty"),
    (CHAT, M | {"frequency_penalty": -3}, 400, "invalid_value", "frequency_penalty"),
    (CHAT, M | {"seed": -1}, 400, "invalid_value", "seed"),
    (CHAT, M | {"seed": 1.5}, 400, "invalid_type", "seed"),
    (CHAT, M | {"stop": ""}, 400, "invalid_value", "stop"),
    (CHAT, M | {"stop": [""]}, 400, "invalid_value", "stop"),
    (CHAT, M | {"stop": ["x", ""]}, 400, "invalid_value", "stop"),
    (CHAT, M | {"stop": ["x"] * 17}, 400, "invalid_value", "stop"),
    (CHAT, M | {"stop": [1]}, 400, "invalid_type", "stop[0]"),
    (CHAT, M | {"stop_token_ids": [-1]}, 400, "invalid_value", "stop_token_ids[0]"),
    (CHAT, M | {"stop_token_ids": [1 << 30]}, 400, "invalid_value", "stop_token_ids"),
    (CHAT, M | {"logit_bias": {"a": 1}}, 400, "invalid_type", "logit_bias"),
    (CHAT, M | {"logit_bias": {"5": 101}}, 400, "invalid_value", "logit_bias.5"),
    (CHAT, M | {"logit_bias": {"1073741824": 1}}, 400, "invalid_value", "logit_bias"),
    (CHAT, M | {"n": 0}, 400, "invalid_value", "n"),
    (CHAT, M | {"n": 129}, 400, "invalid_value", "n"),
    (CHAT, M | {"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    (CHAT, M | {"max_completion_tokens": -5}, 400, "invalid_value", "max_completion_tokens"),
    (CHAT, M | {"logprobs": 3}, 400, "invalid_type", "logprobs"),
    (CHAT, M | {"top_logprobs": 3}, 400, "invalid_value", "top_logprobs"),
    (CHAT, M | {"logprobs": True, "top_logprobs": 21}, 400, "invalid_value", "top_logprobs"),
    (CHAT, M | {"stream": "yes"}, 400, "invalid_type", "stream"),
    (CHAT, M | {"stream_options": True}, 400, "invalid_type", "stream_options"),
    (CHAT, M | {"modalities": ["audio"]}, 400, "unsupported_parameter", "modalities"),
    (CHAT, M | {"functions": [{"name": "f"}]}, 400, "unsupported_parameter", "functions"),
    (CHAT, M | {"paceline": {"topk": 3}}, 400, "unknown_parameter", "paceline.topk"),
    (
        CHAT,
        M | {"num_speculative_tokens": 4},
        400,
        "unsupported_parameter",
        "num_speculative_tokens",
    ),
    (CHAT, M | {"speculation": "off"}, 400, "unsupported_parameter", "speculation"),
    (CHAT, M | {"paceline": {"top_k": -1}}, 400, "invalid_value", "paceline.top_k"),
    (CHAT, M | {"paceline": {"speculation": "x"}}, 400, "invalid_value", "paceline.speculation"),
    (
        CHAT,
        M | {"response_format": {"type": "xml"}},
        400,
        "invalid_value",
        "response_format.type",
    ),
    (
        CHAT,
        M | {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        400,
        "missing_required_parameter",
        "response_format.json_schema.schema",
    ),
    (
        CHAT,
        M | {"response_format": {"type": "json_schema", "json_schema": {"schema": {"wrong": 1}}}},
        400,
        "invalid_value",
        "response_format.json_schema.schema",
    ),
    (
        CHAT,
        M | {"response_format": {"type": "json_schema", "schema": {"wrong": 1}}},
        400,
        "invalid_value",
        "response_format.schema",
    ),
    (CHAT, M | {"response_format": "json"}, 400, "invalid_type", "response_format"),
    (
        CHAT,
        M | {"response_format": {"type": "json_object"}, "guided_choice": ["a"]},
        400,
        "invalid_value",
        "guided_choice",
    ),
    (CHAT, M | {"tools": [T | {"function": {"name": "?"}}]}, 400, "invalid_value", f"{F}.name"),
    (
        CHAT,
        M | {"tools": [T | {"function": {"name": "f", "parameters": 7}}]},
        400,
        "invalid_type",
        f"{F}.parameters",
    ),
    (
        CHAT,
        M | {"tools": [T | {"function": {"name": "f", "description": 7}}]},
        400,
        "invalid_type",
        f"{F}.description",
    ),
    (CHAT, M | {"tools": [T | {"name": "?"}]}, 400, "invalid_value", "tools[0].name"),
    (
        CHAT,
        M
        | {
            "tools": [T | {"function": {"name": "f"}}],
            "tool_choice": {"type": "function", "function": {"name": "g"}},
        },
        400,
        "invalid_value",
        "tool_choice.function.name",
    ),
    (CHAT, M | {"guided_regex": "a" * 20_000}, 400, "invalid_value", "guided_regex"),
    (
        CHAT,
        M | {"guided_grammar": "start: " + "a" * 40_000},
        400,
        "invalid_value",
        "guided_grammar",
    ),
    (CHAT, M | {"guided_choice": ["a"] * 100_000}, 400, "invalid_value", "guided_choice"),
    (CHAT, M | {"guided_choice": ["a" * 200_000]}, 400, "invalid_value", "guided_choice"),
    (CHAT, M | {"guided_json": LARGE_SCHEMA}, 400, "invalid_value", "guided_json"),
    (CHAT, M | {"guided_json": {"pattern": "a" * 20_000}}, 400, "invalid_value", "guided_json"),
    (
        CHAT,
        M | {"response_format": {"type": "json_schema", "json_schema": {"schema": LARGE_SCHEMA}}},
        400,
        "invalid_value",
        "response_format.json_schema.schema",
    ),
    (
        CHAT,
        M
        | {
            "tools": [T | {"function": {"name": "f", "strict": True, "parameters": LARGE_SCHEMA}}],
        },
        400,
        "invalid_value",
        "tools",
    ),
    (CHAT, M | {"metadata": {str(i): "x" for i in range(17)}}, 400, "invalid_value", "metadata"),
    (CHAT, M | {"metadata": {"k" * 65: "x"}}, 400, "invalid_value", "metadata"),
    (CHAT, M | {"metadata": {"note": "x" * 513}}, 400, "invalid_value", "metadata.note"),
    (RESPONSES, I | {"metadata": {"note": "x" * 513}}, 400, "invalid_value", "metadata.note"),
    (RESPONSES, I | {"grammar": {"choice": []}}, 400, "invalid_value", "grammar.choice"),
    (
        RESPONSES,
        I | {"text": {"format": {"type": "json_schema", "schema": LARGE_SCHEMA}}},
        400,
        "invalid_value",
        "text.format.schema",
    ),
    (CHAT, M | {"guided_regex": "wrong"}, 400, "invalid_value", "guided_regex"),
    (CHAT, M | {"guided_json": "{"}, 400, "invalid_value", "guided_json"),
    (CHAT, M | {"guided_json": {"wrong": 1}}, 400, "invalid_value", "guided_json"),
    (CHAT, M | {"guided_choice": [""]}, 400, "invalid_value", "guided_choice"),
    (
        CHAT,
        M | {"guided_choice": ["a"], "guided_regex": "b"},
        400,
        "invalid_value",
        "guided_regex",
    ),
    (
        CHAT,
        M | {"structured_outputs": {"grammar": "wrong"}},
        400,
        "invalid_value",
        "structured_outputs.grammar",
    ),
    (CHAT, M | {"structured_outputs": {"json": 3}}, 400, "invalid_type", "structured_outputs.json"),
    (TEXT, P | {"guided_grammar": "wrong"}, 400, "invalid_value", "guided_grammar"),
    (TEXT, {}, 400, "missing_required_parameter", "prompt"),
    (TEXT, {"prompt": ""}, 400, "invalid_value", "prompt"),
    (TEXT, {"prompt": []}, 400, "invalid_value", "prompt"),
    (TEXT, {"prompt": [1, "a"]}, 400, "invalid_type", "prompt"),
    (TEXT, {"prompt": [-1]}, 400, "invalid_value", "prompt[0]"),
    (TEXT, {"prompt": [1 << 30]}, 400, "invalid_value", "prompt"),
    (TEXT, {"prompt": ["a"] * 100, "n": 2}, 400, "invalid_value", "prompt"),
    (TEXT, {"prompt": [1], "suffix": "x"}, 400, "invalid_type", "prompt"),
    (TEXT, P | {"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    (TEXT, P | {"logprobs": True}, 400, "invalid_type", "logprobs"),
    (TEXT, P | {"logprobs": 21}, 400, "invalid_value", "logprobs"),
    (TEXT, P | {"echo": True, "logprobs": 1}, 400, "unsupported_parameter", "echo"),
    (TEXT, P | {"echo": True, "max_tokens": 0}, 400, "unsupported_parameter", "echo"),
    (
        TEXT,
        P | {"echo": True, "max_tokens": 0, "logprobs": 1},
        400,
        "unsupported_parameter",
        "echo",
    ),
    (TEXT, P | {"best_of": 3}, 400, "unsupported_parameter", "best_of"),
    (TEXT, P | {"model": "x"}, 404, "model_not_found", "model"),
    (TEXT, {"prompt": "x" * 5000}, 400, "context_length_exceeded", "prompt"),
    (RESPONSES, {}, 400, "missing_required_parameter", "input"),
    (RESPONSES, {"input": ""}, 400, "invalid_value", "input"),
    (RESPONSES, {"input": [{"role": "king"}]}, 400, "invalid_value", "input[0].role"),
    (RESPONSES, I | {"stream": 1}, 400, "invalid_type", "stream"),
    (RESPONSES, I | {"temperature": -1}, 400, "invalid_value", "temperature"),
    (RESPONSES, I | {"max_output_tokens": 0}, 400, "invalid_value", "max_output_tokens"),
    (RESPONSES, I | {"top_k": -1}, 400, "invalid_value", "top_k"),
    (RESPONSES, I | {"top_k": 1, "paceline": 7}, 400, "invalid_type", "paceline"),
    (RESPONSES, I | {"paceline": {"tpo": 1}}, 400, "unknown_parameter", "paceline.tpo"),
    (
        RESPONSES,
        I | {"previous_response_id": "x"},
        404,
        "previous_response_not_found",
        "previous_response_id",
    ),
    (RESPONSES, I | {"background": True}, 400, "unsupported_parameter", "background"),
    (RESPONSES, I | {"conversation": "c"}, 400, "unsupported_parameter", "conversation"),
    (RESPONSES, I | {"model": "x"}, 404, "model_not_found", "model"),
    (
        RESPONSES,
        I | {"tools": [{"type": "web_search"}]},
        400,
        "unsupported_value",
        "tools[0].type",
    ),
    (
        RESPONSES,
        I | {"tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]},
        400,
        "unsupported_value",
        "tools[1].type",
    ),
    (FIM, {"suffix": "x"}, 400, "missing_required_parameter", "prompt"),
    (FIM, P | {"suffix": 7}, 400, "invalid_type", "suffix"),
    (FIM, P | {"random_seed": -1}, 400, "invalid_value", "random_seed"),
    (FIM, P | {"max_tokens": 0}, 400, "invalid_value", "max_tokens"),
    (INFILL, {}, 400, "missing_required_parameter", "input_prefix"),
    (INFILL, G | {"n_predict": -2}, 400, "invalid_value", "n_predict"),
    (INFILL, G | {"input_extra": [{}]}, 400, "missing_required_parameter", "input_extra[0].text"),
    (INFILL, G | {"response_fields": "content"}, 400, "invalid_type", "response_fields"),
    (INFILL, G | {"temperature": -1}, 400, "invalid_value", "temperature"),
]


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
async def test_wrong_bodies(server: Server, http: httpx.AsyncClient, is_stream: bool) -> None:
    """All in one server: none of them leaves anything behind that changes the next."""
    assert len(CASES) >= 60
    for path, body, status, code, param in CASES:
        sent = body | {"stream": True} if is_stream and isinstance(body, dict) else body
        if isinstance(body, dict) and "stream" in body:
            sent = body
        answered = await http.post(path, json=sent)
        shown = (path, body, answered.text)
        assert answered.status_code == status, shown
        error = answered.json()["error"]
        assert (error["code"], error["param"]) == (code, param), shown
        assert error["type"] == "invalid_request_error"
        assert error["message"], shown
        assert "['" not in error["message"], "a list as Python writes it"
        _require_the_clients_names(path, body, error["message"], shown)
    assert server.engine.submitted == []
    assert (await http.post(CHAT, json=M)).status_code == 200


def _require_the_clients_names(path: str, body: Any, message: str, shown: object) -> None:
    """No sentence speaks of a field of our own message that the client did not send."""
    sent = json.dumps(body)
    for ours in ("paceline.", "text.format", "max_output_tokens"):
        is_own = path == RESPONSES or ours.partition(".")[0] in sent
        assert is_own or ours not in message, shown
    assert path == RESPONSES or not message.startswith("input is"), shown


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES, FIM, INFILL])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"not json",
        b'{"prompt": NaN}',
        b"\xff\xfe",
        b'{"prompt": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
    ],
    ids=["empty", "open", "words", "nan", "bytes", "surrogate", "arrays", "objects"],
)
async def test_bodies_that_are_no_json(http: httpx.AsyncClient, path: str, body: bytes) -> None:
    answered = await http.post(path, content=body)
    assert answered.status_code == 400, answered.text
    assert answered.json()["error"]["type"] == "invalid_request_error"


async def test_a_body_that_is_too_large() -> None:
    import httpx

    async with (
        serving(max_message_bytes=2048) as server,
        httpx.AsyncClient(base_url=server.http_url) as http,
    ):
        answered = await http.post(TEXT, json={"prompt": "x" * 4000})
        assert answered.status_code == 413
        assert answered.json()["error"]["code"] == "request_too_large"
        assert (await http.post(TEXT, json=P)).status_code == 200


async def test_addresses_and_methods(http: httpx.AsyncClient) -> None:
    unknown = await http.get("/v1/nothing")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "unknown_url"
    page = await http.get("/no<b>where", headers={"Accept": "text/html,*/*;q=0.8"})
    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")
    assert 'href="/telemetry"' in page.text
    assert "<b>" not in page.text
    for path, accept in [("/v1/nothing", "text/html"), ("/nothing", "application/json")]:
        unknown = await http.get(path, headers={"Accept": accept})
        assert unknown.json()["error"]["code"] == "unknown_url"
    wrong = await http.get(CHAT)
    assert wrong.status_code == 405
    assert wrong.json()["error"]["code"] == "method_not_allowed"
    assert wrong.headers["allow"] == "POST"
    socket_only = await http.get(RESPONSES)
    assert socket_only.status_code == 426


async def test_a_fault_of_ours_is_a_500_and_the_server_lives(http: httpx.AsyncClient) -> None:
    broken = {"messages": [{"role": "user", "content": "break the template"}]}
    answered = await http.post(CHAT, json=broken)
    assert answered.status_code == 500
    assert answered.json()["error"]["code"] == "server_error"
    assert (await http.post(CHAT, json=M)).status_code == 200


def test_the_table_holds_what_json_can_hold() -> None:
    for _, body, *_ in CASES:
        json.dumps(body)


@pytest.mark.parametrize("path", [CHAT, TEXT, RESPONSES, FIM, INFILL])
@pytest.mark.parametrize("body", [b"", b" \n"], ids=["nothing", "space"])
async def test_an_empty_body_is_called_empty(
    http: httpx.AsyncClient, path: str, body: bytes
) -> None:
    answered = await http.post(path, content=body)
    error = answered.json()["error"]
    assert (answered.status_code, error["code"]) == (400, "invalid_json")
    assert error["message"].startswith("the body is empty; it must be a JSON object")


async def test_the_limits_are_said(http: httpx.AsyncClient) -> None:
    limits: list[tuple[dict[str, Any], str]] = [
        (
            {"guided_choice": ["a"] * 100_000},
            "guided_choice has 100000 texts; it must have at most",
        ),
        ({"guided_regex": "a" * 20_000}, "guided_regex has 20000 characters; it must have at most"),
        (
            {"metadata": {"k" * 65: "x"}},
            "a key of metadata has 65 characters; it must have at most",
        ),
        ({"metadata": {"k": "x" * 513}}, "metadata.k has 513 characters; it must have at most 512"),
    ]
    for more, said in limits:
        answered = await http.post(CHAT, json=M | more)
        assert answered.json()["error"]["message"].startswith(said), answered.text


async def test_as_much_as_the_limits_allow(http: httpx.AsyncClient) -> None:
    largest = {
        "guided_choice": [f"{number:05}" for number in range(10_000)],
        "metadata": {f"{number:064}": "x" * 512 for number in range(16)},
    }
    answered = await http.post(CHAT, json=M | largest)
    assert answered.status_code == 200, answered.text


@pytest.mark.parametrize(
    ("message", "param", "told", "path"),
    [
        ("input is empty; send input", "input", "messages is empty; send input", "messages"),
        ("text.format.schema[0] is x", "text.format.schema[0]", "schema[0] is x", "schema[0]"),
        ("text.formats or my.text.format", "text", "text.formats or my.text.format", "text"),
        ("the input leaves text.format.", "text.format.x", "the input leaves form.", "form.x"),
    ],
)
def test_errors_in_the_clients_words(message: str, param: str, told: str, path: str) -> None:
    names = ClientNames(
        {"text.format": "form", "text.format.schema": "schema", "input": "messages"}
    )
    error = ProtocolError(ErrorCode.INVALID_VALUE, message, param=param)
    names.put_into(error)
    assert (error.message, error.param) == (told, path)
