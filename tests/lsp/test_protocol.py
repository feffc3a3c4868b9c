"""The language server between an editor and a whole Paceline server before a scripted engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
from lsprotocol import types
from pygls.exceptions import JsonRpcException

from paceline.core.events import FinishReason
from paceline_lsp import link
from tests.fakes_engine import CharacterCodec
from tests.lsp.editor import URI, Editor, editing
from tests.server.serving import Server, serving

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paceline.core.request import Request

pytestmark = pytest.mark.anyio


def _prompt(request: Request) -> str:
    return CharacterCodec().text_of(request.prompt_ids)


def _saying(text: str) -> Callable[[Request], Sequence[str]]:
    """Always the same answer, three characters a step."""
    return lambda request: [text[at : at + 3] for at in range(0, len(text), 3)]


async def _until_submitted(server: Server, count: int) -> None:
    await server.wait_until(lambda: len(server.engine.submitted) >= count)


async def test_a_completion_arrives_at_the_cursor() -> None:
    async with (
        serving(_saying("a, b):\n    return a + b\n\n\ndef other():")) as server,
        editing(server.http_url, "import os\n\n\ndef add(|\n\n\nx = 1\n") as editor,
    ):
        (item,) = await editor.items()
        assert item.insert_text == "a, b):\n    return a + b"
        assert item.range == types.Range(editor.position(), editor.position())
        (request,) = server.engine.submitted
        assert _prompt(request) == ("<prefix>import os\n\n\ndef add(<suffix>\n\n\nx = 1\n<middle>")
        assert request.sampling.is_greedy


async def test_characters_outside_the_basic_plane_before_the_cursor() -> None:
    async with (
        serving(_saying("🎉 done")) as server,
        editing(server.http_url, 'x = "👩‍🚀é|"\n') as editor,
    ):
        editor.type("😀")
        (item,) = await editor.items()
        assert _prompt(server.engine.submitted[0]) == '<prefix>x = "👩‍🚀é😀<suffix>"\n<middle>'
        editor.accept(item)
        assert editor.text == 'x = "👩‍🚀é😀🎉 done"\n'
        editor.type("!")
        await editor.items()
        assert _prompt(server.engine.submitted[1]) == (
            '<prefix>x = "👩‍🚀é😀🎉 done!<suffix>"\n<middle>'
        )


async def test_cancelling_reaches_the_engine() -> None:
    async with serving(_saying("never")) as server, editing(server.http_url, "x|") as editor:
        server.engine.pause()
        future = editor.ask()
        await _until_submitted(server, 1)
        request_id = server.engine.submitted[0].request_id
        editor.cancel(future)
        await server.wait_until(lambda: request_id in server.engine.pending_cancels)
        server.engine.resume()
        await server.wait_until(lambda: len(server.engine.finished) == 1)
        assert server.engine.finished[0].reason is FinishReason.CANCELLED
        with pytest.raises(JsonRpcException):
            await editor.answer(future)


async def test_asking_again_ends_the_request_before() -> None:
    """Also for editors that do not cancel; and the new request goes out after the cancellation."""
    async with serving(_saying("abc")) as server, editing(server.http_url, "x|") as editor:
        server.engine.pause()
        first = editor.ask()
        await _until_submitted(server, 1)
        editor.type("y")
        second = editor.ask()
        await _until_submitted(server, 2)
        before, after = server.engine.submitted
        assert before.request_id in server.engine.pending_cancels
        server.engine.resume()
        assert await editor.answer(first) == []
        assert [item.insert_text for item in await editor.answer(second)] == ["abc"]
        assert _prompt(after) == "<prefix>xy<suffix><middle>"


async def test_many_keystrokes_leave_one_request() -> None:
    async with serving(_saying("abc")) as server, editing(server.http_url, "x|") as editor:
        server.engine.pause()
        futures = []
        for character in "typing quickly":
            editor.type(character)
            futures.append(editor.ask())
        *superseded, last = futures
        for future in superseded:
            assert await editor.answer(future) == []
        await server.wait_until(
            lambda: len(server.engine.submitted) - len(server.engine.pending_cancels) == 1
        )
        server.engine.resume()
        assert len(await editor.answer(last)) == 1
        assert _prompt(server.engine.submitted[-1]) == ("<prefix>xtyping quickly<suffix><middle>")


async def test_a_pause_in_typing_is_awaited_but_not_by_a_key() -> None:
    async with (
        serving(_saying("abc")) as server,
        editing(server.http_url, "x|", debounceMs=10_000) as editor,
    ):
        waiting = editor.ask(automatic=True)
        editor.type("y")
        assert await editor.text_at_cursor() == "abc"
        assert await editor.answer(waiting) == []
        assert [_prompt(each) for each in server.engine.submitted] == ["<prefix>xy<suffix><middle>"]


async def test_typing_what_was_predicted_needs_no_request() -> None:
    async with serving(_saying(" return 1")) as server, editing(server.http_url, "    |") as editor:
        assert await editor.text_at_cursor() == "return 1"
        for number, character in enumerate("return ", start=1):
            editor.type(character)
            assert await editor.text_at_cursor(automatic=True) == "return 1"[number:]
        assert len(server.engine.submitted) == 1
        editor.type("2")
        await editor.items()
        assert len(server.engine.submitted) == 2


async def test_the_stream_is_left_where_the_block_ends() -> None:
    text = "\n    return 1\n\ndef g():\n" + "    x = 1\n" * 1000
    async with (
        serving(_saying(text)) as server,
        editing(server.http_url, "def f():|", maxOutputTokens=4000) as editor,
    ):
        server.engine.step_s = 0.001
        assert await editor.text_at_cursor() == "\n    return 1"
        await server.wait_until(lambda: len(server.engine.finished) == 1)
        assert server.engine.finished[0].reason is FinishReason.CANCELLED


async def test_a_space_before_the_cursor_is_left_to_the_model() -> None:
    """Its tokens begin with the space of a word, so it hardly knows prompts that end with one."""
    answers = iter([" 1 + 2", "one"])
    async with (
        serving(lambda _: [next(answers)]) as server,
        editing(server.http_url, "x = |\n") as editor,
    ):
        assert await editor.text_at_cursor() == "1 + 2"
        assert _prompt(server.engine.submitted[0]) == "<prefix>x =<suffix>\n<middle>"
        editor.type("y ")
        assert await editor.text_at_cursor() is None  # "yone" is not what the cursor is at


async def test_within_a_line_the_model_stops_at_its_end() -> None:
    async with serving(_saying("x, y)")) as server, editing(server.http_url, "f(|)\n") as editor:
        assert await editor.text_at_cursor() == "x, y"
        assert server.engine.submitted[0].stop[0] == "\n"


async def test_the_selected_entry_of_the_list_is_continued() -> None:
    async with serving(_saying("(1)")) as server, editing(server.http_url, "x = pri|") as editor:
        span = types.Range(editor.position(4), editor.position())
        (item,) = await editor.items(selected=types.SelectedCompletionInfo(span, "print"))
        assert (item.insert_text, item.range) == ("print(1)", span)
        assert _prompt(server.engine.submitted[0]) == "<prefix>x = print<suffix><middle>"


async def test_nothing_worth_offering_is_no_item() -> None:
    async with serving(_saying("  \n \n")) as server, editing(server.http_url, "x|") as editor:
        assert await editor.items() == []


async def test_languages_that_are_left_out() -> None:
    async with (
        serving(_saying("abc")) as server,
        editing(server.http_url, disabledLanguages=["markdown"]) as editor,
    ):
        assert await editor.items() == []  # not open
        editor.open("x|", language_id="markdown")
        assert await editor.items() == []
        assert server.engine.submitted == []


async def test_a_closed_document_has_no_completions() -> None:
    async with serving(_saying("abc")) as server, editing(server.http_url, "x|") as editor:
        server.engine.pause()
        future = editor.ask()
        await _until_submitted(server, 1)
        editor.client.text_document_did_close(
            types.DidCloseTextDocumentParams(types.TextDocumentIdentifier(URI))
        )
        assert await editor.answer(future) == []
        assert await editor.items() == []


# What the editor is told, and tells


async def test_capabilities_depend_on_the_editor() -> None:
    async with serving(_saying("abc")) as server:
        for inline, wanted, has_list in [
            (True, "auto", False),
            (False, "auto", True),
            (True, "always", True),
            (False, "never", False),
        ]:
            async with editing(server.http_url, inline=inline, completionItems=wanted) as editor:
                capabilities = editor.server.lsp.protocol.server_capabilities
                assert capabilities.inline_completion_provider is not None
                assert (capabilities.completion_provider is not None) is has_list
                assert capabilities.execute_command_provider is not None
                assert capabilities.execute_command_provider.commands == [
                    "paceline.didAcceptCompletionItem"
                ]


async def test_an_entry_of_the_completion_list() -> None:
    async with (
        serving(_saying("t(x)\n    return x")) as server,
        editing(server.http_url, "😀 = 1\ndef f():\n    😀prin|\n", inline=False) as editor,
    ):
        result = await editor.client.text_document_completion_async(
            types.CompletionParams(types.TextDocumentIdentifier(URI), editor.position())
        )
        assert isinstance(result, types.CompletionList)
        assert result.is_incomplete
        (item,) = result.items
        assert (item.label, item.filter_text) == ("print(x) …", "print(x)\n    return x")
        assert isinstance(item.text_edit, types.TextEdit)
        assert item.text_edit.range == types.Range(
            editor.position(editor.offset - 4), editor.position()
        )
        assert item.text_edit.new_text == "print(x)\n    return x"


async def test_both_kinds_asked_for_at_one_place_are_one_request() -> None:
    async with (
        serving(_saying("abc")) as server,
        editing(server.http_url, "x|", completionItems="always") as editor,
    ):
        server.engine.pause()
        inline = editor.ask(automatic=True)
        listed = editor.client.protocol.send_request(
            types.TEXT_DOCUMENT_COMPLETION,
            types.CompletionParams(types.TextDocumentIdentifier(URI), editor.position()),
        )
        await _until_submitted(server, 1)
        server.engine.resume()
        assert [item.insert_text for item in await editor.answer(inline)] == ["abc"]
        assert [item.filter_text for item in await editor.answer(listed)] == ["xabc"]
        assert len(server.engine.submitted) == 1


async def test_one_of_both_kinds_can_be_cancelled() -> None:
    async with (
        serving(_saying("abc")) as server,
        editing(server.http_url, "x|", completionItems="always", debounceMs=0) as editor,
    ):
        server.engine.pause()
        inline = editor.ask(automatic=True)
        await _until_submitted(server, 1)
        listed = editor.client.protocol.send_request(
            types.TEXT_DOCUMENT_COMPLETION,
            types.CompletionParams(types.TextDocumentIdentifier(URI), editor.position()),
        )
        editor.cancel(inline)
        await _until_submitted(server, 2)
        server.engine.resume()
        assert [item.filter_text for item in await editor.answer(listed)] == ["xabc"]
        assert server.engine.submitted[0].request_id in server.engine.pending_cancels or (
            server.engine.finished[0].reason is FinishReason.CANCELLED
        )


async def test_what_becomes_of_a_completion_is_counted() -> None:
    async with serving(_saying("😀 abc")) as server, editing(server.http_url, "x|") as editor:
        (item,) = await editor.items()
        assert item.command is not None
        notify = editor.client.protocol.notify
        notify("textDocument/didShowCompletion", {"item": _json(item)})
        notify(
            "textDocument/didPartiallyAcceptCompletion",
            {"item": _json(item), "acceptedLength": 3},
        )
        await editor.client.workspace_execute_command_async(
            types.ExecuteCommandParams(item.command.command, item.command.arguments)
        )
        assert (await editor.status())["counts"] == {
            "offered": 1,
            "shown": 1,
            "accepted": 1,
            "partly_accepted": 1,
            "offered_characters": 6,
            "accepted_characters": 6,
        }


async def test_malformed_notifications_change_nothing() -> None:
    async with serving(_saying("abc")) as server, editing(server.http_url, "x|") as editor:
        for params in ({}, {"item": None}, {"item": {"command": {"arguments": [1]}}}):
            editor.client.protocol.notify("textDocument/didShowCompletion", params)
            editor.client.protocol.notify("textDocument/didPartiallyAcceptCompletion", params)
        assert (await editor.status())["counts"]["shown"] == 0


async def test_the_status_says_when_a_request_runs() -> None:
    async with serving(_saying("abc")) as server, editing(server.http_url, "x|") as editor:
        await editor.items()
        busy = [(await editor.notified("paceline/didChangeStatus")).busy for _ in range(2)]
        assert busy == [True, False]


async def test_no_server_is_an_error_in_the_status_and_no_item(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link, "RETRY_S", 0.0)
    async with editing("ws://127.0.0.1:9", "x|") as editor:
        assert await editor.items() == []
        status = await editor.status()
        assert status["kind"] == "error"
        assert "no connection to ws://127.0.0.1:9" in status["message"]
        async with serving(_saying("abc")) as server:
            # the address changes in the settings, and work goes on
            editor.client.workspace_did_change_configuration(
                types.DidChangeConfigurationParams({"paceline": {"url": server.http_url}})
            )
            assert await editor.text_at_cursor() == "abc"
            assert (await editor.status())["kind"] == "normal"


async def test_a_server_that_restarts_is_found_again() -> None:
    async with serving(_saying("abc")) as server:
        address = server.http_url
        async with editing(address, "x|") as editor:
            assert await editor.text_at_cursor() == "abc"
            await _stopped(server)
            editor.type("y")
            assert await editor.items() == []
            assert (await editor.status())["kind"] == "error"


async def test_a_refusal_is_shown_in_the_status() -> None:
    async with serving(_saying("abc")) as server, editing(server.http_url, "x|") as editor:
        server.engine.is_full = True
        assert await editor.items() == []
        assert "requests wait" in (await editor.status())["message"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"debounceMs": "soon"}, "debounceMs: expected `int`, got `str`"),
        ({"colour": "red"}, "unknown field `colour`"),
    ],
)
async def test_wrong_settings_are_told_and_leave_the_old_ones(
    options: dict[str, Any], message: str
) -> None:
    async with (
        serving(_saying("abc")) as server,
        editing(server.http_url, "x|", **options) as editor,
    ):
        shown = await editor.notified("window/showMessage")
        assert message in shown.message
        assert await editor.text_at_cursor() == "abc"
        editor.client.workspace_did_change_configuration(
            types.DidChangeConfigurationParams({"paceline": options})
        )
        shown = await editor.notified("window/showMessage")
        assert message in shown.message


async def _stopped(server: Server) -> None:
    server.shutdown.begin()
    server.shutdown.begin()
    while True:
        try:
            async with await anyio.connect_tcp(*server.address):
                await anyio.sleep(0.01)
        except OSError:
            return


def _json(item: types.InlineCompletionItem) -> dict[str, Any]:
    assert item.command is not None
    return {
        "insertText": item.insert_text,
        "command": {"command": item.command.command, "arguments": item.command.arguments},
    }


def test_helpers_count_utf_16() -> None:
    editor = object.__new__(Editor)
    editor.text, editor.offset = "a😀b", 2
    assert editor.position() == types.Position(0, 3)
