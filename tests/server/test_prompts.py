"""Items become messages."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.core.errors import RequestError
from paceline.model.chat import ChatMessage, ChatToolCall, EncodedChat
from paceline.server.prompts import ChatPrompt, encode, messages_of
from paceline_protocol.codecs import JSON_CODEC
from paceline_protocol.errors import ProtocolError
from paceline_protocol.requests import ResponseCreate
from tests.fakes_engine import CharacterCodec


def _messages(items: str) -> list[ChatMessage]:
    event = JSON_CODEC.decode_client(f'{{"type": "response.create", "input": {items}}}')
    assert isinstance(event, ResponseCreate)
    return list(messages_of(event.input))


def test_a_text_is_a_message_of_the_user() -> None:
    assert _messages('"hi"') == [ChatMessage("user", "hi")]


def test_all_kinds_of_items() -> None:
    assert _messages(
        """[
        {"role": "developer", "content": "be brief"},
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{\\"x\\": 1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "2"},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "two", "annotations": []},
            {"type": "refusal", "refusal": "!"}]}
        ]"""
    ) == [
        ChatMessage("developer", "be brief"),
        ChatMessage("user", "ab"),
        ChatMessage("assistant", "", tool_calls=(ChatToolCall("f", '{"x": 1}', "c1"),)),
        ChatMessage("tool", "2", tool_call_id="c1"),
        ChatMessage("assistant", "two!"),
    ]


def test_messages_without_any_text_are_refused() -> None:
    with pytest.raises(ProtocolError, match="holds no text"):
        _messages('[{"role": "user", "content": ""}, {"role": "user", "content": []}]')


def test_an_empty_output_beside_text_is_fine() -> None:
    messages = _messages(
        '[{"role": "user", "content": "x"}, '
        '{"type": "function_call_output", "call_id": "c", "output": ""}]'
    )
    assert [message.content for message in messages] == ["x", ""]


def test_a_schema_nested_too_deeply_is_refused_by_name() -> None:
    class Nesting(CharacterCodec):
        def encode_chat(self, *args: Any, **options: Any) -> EncodedChat:
            raise RecursionError("maximum recursion depth exceeded")

    messages = (ChatMessage("user", "hi"),)
    with pytest.raises(RequestError, match="nested too deeply") as caught:
        encode(ChatPrompt(messages, tools=({"type": "function"},)), Nesting())
    assert caught.value.field == "tools"
