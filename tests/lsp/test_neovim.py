"""A real editor: headless Neovim with the Lua client of `clients/lsp/nvim`, before the language
server in a process of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from anyio.from_thread import start_blocking_portal

from paceline.core.events import FinishReason
from tests.fakes_engine import CharacterCodec
from tests.lsp.neovim import LANGUAGE_SERVER, PATIENCE_S, ROOT, Neovim
from tests.server.serving import Server, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from paceline.core.request import Request

pytestmark = pytest.mark.editor


# Before a scripted engine: what happens is known to the character


def _answer(request: Request) -> Sequence[str]:
    text = CharacterCodec().text_of(request.prompt_ids)
    answers = {
        "def add(<suffix>": "a, b):\n    return a + b\n\nx = 1",
        "😀 = '🎉é<suffix>": "日本語 👩‍🚀",
        "print(<suffix>": "value)",
    }
    for asked, answer in answers.items():
        if asked in text:
            return [answer[at : at + 2] for at in range(0, len(answer), 2)]
    return ["more"]


@pytest.fixture
def scripted() -> Iterator[Server]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving(_answer)) as server,
    ):
        yield server


def _prompts(server: Server) -> list[str]:
    return [CharacterCodec().text_of(each.prompt_ids) for each in server.engine.submitted]


def test_ghost_text_is_shown_and_accepted(scripted: Server, tmp_path: Path) -> None:
    with Neovim(tmp_path, url=scripted.http_url, debounceMs=0) as editor:
        editor.edit("a.py", "def add|\n\nx = 1")
        editor.input("(")
        ghost = editor.until(lambda: editor.ghost, "a completion")
        assert ghost == "a, b):\n    return a + b"
        assert editor.text == "def add(\n\nx = 1"  # ghost text is no text
        editor.input("<Tab>")
        editor.until(lambda: "return" in editor.text, "the accepted text")
        assert editor.text == "def add(a, b):\n    return a + b\n\nx = 1"
        assert editor.lua("return vim.api.nvim_win_get_cursor(0)") == [2, len("    return a + b")]
        # what follows the accepted text is asked for, with the text as it is now
        editor.until(lambda: len(_prompts(scripted)) >= 2, "the next request")
        editor.until(lambda: editor.ghost == "more", "the next completion")
        assert _prompts(scripted)[-1].startswith("<prefix>def add(a, b):\n    return a + b<suffix>")


def test_typing_before_the_language_server_is_ready(scripted: Server, tmp_path: Path) -> None:
    """It starts with the first document, and a person does not wait for it."""
    with Neovim(tmp_path, url=scripted.http_url, debounceMs=0) as editor:
        slow = ["sh", "-c", 'sleep 2; exec "$@"', "sh", *LANGUAGE_SERVER]
        editor.lua(
            "require('paceline').setup({ cmd = ..., settings = select(2, ...) })",
            slow,
            {
                "url": scripted.http_url,
            },
        )
        editor.edit("notes.txt", "say|")
        editor.input("!")
        editor.until(lambda: editor.ghost == "more", "a completion")
        assert _prompts(scripted) == ["<prefix>say!<suffix>\n<middle>"]


def test_a_buffer_without_a_name_has_completions_and_keeps_them(
    scripted: Server, tmp_path: Path
) -> None:
    with Neovim(tmp_path, url=scripted.http_url, debounceMs=0) as editor:
        editor.input("ione")
        editor.until(lambda: editor.ghost == "more", "a completion")
        editor.input("<Esc>")
        editor.lua("vim.cmd('file named.txt')")
        editor.input("A two")
        editor.until(lambda: editor.ghost == "more", "a completion under the new name")
        assert _prompts(scripted)[-1] == "<prefix>one two<suffix>\n<middle>"


def test_the_accept_key_is_itself_when_nothing_is_shown(scripted: Server, tmp_path: Path) -> None:
    with Neovim(tmp_path, url=scripted.http_url) as editor:
        editor.lua("require('paceline').setup({ auto = false })")
        editor.edit("a.txt", "x|")
        editor.input("<Tab>y")
        editor.until(lambda: editor.text == "x\ty", "the tab")


def test_characters_of_every_width_before_the_cursor(scripted: Server, tmp_path: Path) -> None:
    with Neovim(tmp_path, url=scripted.http_url, debounceMs=0) as editor:
        editor.edit("a.py", "# 👩‍🚀 ünsaved\n😀 = '|'\n")
        editor.input("🎉é")
        # Neovim shows the joiner in the emoji as <200d>; inserted is what came.
        editor.until(lambda: (editor.ghost or "").startswith("日本語 👩"), "a completion")
        assert _prompts(scripted)[-1] == ("<prefix># 👩‍🚀 ünsaved\n😀 = '🎉é<suffix>'\n\n<middle>")
        editor.input("<Tab>")
        editor.until(lambda: "日本語" in editor.text, "the accepted text")
        assert editor.text == "# 👩‍🚀 ünsaved\n😀 = '🎉é日本語 👩‍🚀'\n"
        editor.input("!")
        editor.until(lambda: "!" in editor.text, "the next character")
        assert editor.text == "# 👩‍🚀 ünsaved\n😀 = '🎉é日本語 👩‍🚀!'\n"
        editor.until(lambda: "👩‍🚀!<suffix>" in _prompts(scripted)[-1], "the next request")


def test_typing_what_is_shown_keeps_it(scripted: Server, tmp_path: Path) -> None:
    with Neovim(tmp_path, url=scripted.http_url, debounceMs=0) as editor:
        editor.edit("a.py", "print|")
        editor.input("(")
        editor.until(lambda: editor.ghost == "value)", "a completion")
        num_asked = len(scripted.engine.submitted)
        editor.input("val")
        editor.until(lambda: editor.ghost == "ue)", "the rest of it")
        assert len(scripted.engine.submitted) == num_asked
        editor.input("id")
        editor.until(lambda: editor.ghost == "more", "another completion")


def test_parts_are_accepted_one_after_the_other(scripted: Server, tmp_path: Path) -> None:
    with Neovim(tmp_path, url=scripted.http_url, debounceMs=0) as editor:
        editor.edit("a.py", "def add|\n\nx = 1")
        editor.input("(")
        editor.until(lambda: editor.ghost, "a completion")
        for key, text, ghost in [
            ("<M-w>", "def add(a", ", b):\n    return a + b"),
            ("<M-w>", "def add(a,", " b):\n    return a + b"),
            ("<M-l>", "def add(a, b):", "\n    return a + b"),
            ("<M-l>", "def add(a, b):\n    return a + b", None),
        ]:
            editor.input(key)
            editor.until(partial(_starts_with, editor, f"{text}\n"), text)
            if ghost is not None:
                assert editor.ghost == ghost
        assert editor.text == "def add(a, b):\n    return a + b\n\nx = 1"
        counts = editor.lua(
            "local client = vim.tbl_values(vim.lsp.get_active_clients())[1]\n"
            "return client.request_sync('paceline/status', vim.empty_dict(), 30000, 0).result"
        )["counts"]
        assert (counts["accepted"], counts["partly_accepted"]) == (1, 1)
        assert counts["accepted_characters"] == len("a, b):\n    return a + b")


def _starts_with(editor: Neovim, text: str) -> bool:
    return editor.text.startswith(text)


def test_dismissing_takes_it_away(scripted: Server, tmp_path: Path) -> None:
    with Neovim(tmp_path, url=scripted.http_url, debounceMs=0) as editor:
        editor.edit("a.py", "print|")
        editor.input("(")
        editor.until(lambda: editor.ghost, "a completion")
        editor.input("<C-]>")
        editor.until(lambda: editor.ghost is None, "nothing")
        editor.input("<Esc>")
        assert editor.text == "print("


def test_typing_on_cancels_the_request_in_the_engine(scripted: Server, tmp_path: Path) -> None:
    engine = scripted.engine
    engine.pause()
    with Neovim(tmp_path, url=scripted.http_url, debounceMs=0) as editor:
        editor.edit("a.py", "print|")
        editor.input("(")
        assert engine.wait_until(lambda: bool(engine.submitted))
        first = engine.submitted[-1].request_id
        editor.input("x")
        assert engine.wait_until(lambda: first in engine.pending_cancels)
        editor.until(lambda: _prompts(scripted)[-1].startswith("<prefix>print(x<"), "the next")
        engine.resume()
        editor.until(lambda: editor.ghost == "more", "a completion")
        reasons = {each.request_id: each.reason for each in engine.finished}
        assert reasons[first] is FinishReason.CANCELLED


def test_no_server_is_told_in_the_status(tmp_path: Path) -> None:
    with Neovim(tmp_path, url="ws://127.0.0.1:9", debounceMs=0) as editor:
        editor.edit("a.py", "x|")
        editor.input("y")
        editor.until(lambda: editor.status["kind"] == "error", "the error")
        assert "no connection to ws://127.0.0.1:9" in editor.status["message"]
        assert editor.ghost is None


def test_a_missing_program_is_told_once(tmp_path: Path) -> None:
    with Neovim(tmp_path, command=["no-such-program"], url="ws://127.0.0.1:9") as editor:
        editor.lua("told = {}; vim.notify = function(text) table.insert(told, text) end")
        for name in ("a.py", "b.py"):
            editor.edit(name, "x|")
            editor.input("y")
        assert editor.status["kind"] == "error"
        assert "no program no-such-program" in editor.status["message"]
        assert editor.lua("return told") == [editor.status["message"]]


# Before SmolLM2


class RealServer:
    """`paceline serve`, and what it logs."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.address = ""

    def finished(self) -> list[dict[str, Any]]:
        """The log's lines about responses that have ended."""
        lines = [line for line in self._log.read_text().splitlines() if line.startswith("{")]
        return [
            record for record in map(json.loads, lines) if record["event"] == "response finished"
        ]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    folder = tmp_path_factory.mktemp("server")
    command = [sys.executable, "-c", "from paceline.cli import main; main()", "serve"]
    python_path = ":".join(str(ROOT / each) for each in ("backend", "protocol", "clients/python"))
    out, log = folder / "out", folder / "log"
    with (
        out.open("w") as stdout,
        log.open("w") as stderr,
        subprocess.Popen(
            [
                *command,
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--log-level",
                "info",
                "--kv-memory",
                "512MiB",
            ],
            env=os.environ | {"PYTHONPATH": python_path, "OMP_WAIT_POLICY": "PASSIVE"},
            stdout=stdout,
            stderr=stderr,
        ) as process,
    ):
        try:
            server = RealServer(log)
            deadline = time.monotonic() + 4 * PATIENCE_S  # it measures its own costs first
            while not (found := re.search(r"http://\S+", out.read_text() + log.read_text())):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
            server.address = found.group().rstrip('",')
            yield server
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()


@pytest.mark.weights
@pytest.mark.e2e
def test_a_completion_from_the_real_server(real: RealServer, tmp_path: Path) -> None:
    with Neovim(tmp_path, url=real.address, maxOutputTokens=24) as editor:
        editor.edit("colours.py", "# 😀 the days of the week\ndays = ['Monday', 'Tuesday',|\n")
        editor.input(" ")
        ghost = editor.until(lambda: editor.ghost, "a completion")
        assert "Wednesday" in ghost
        before = editor.text
        editor.input("<Tab>")
        editor.until(lambda: editor.text != before, "the accepted text")
        assert editor.text == before.replace("'Tuesday', ", f"'Tuesday', {ghost}", 1)


@pytest.mark.weights
@pytest.mark.e2e
def test_typing_on_cancels_in_the_real_engine(real: RealServer, tmp_path: Path) -> None:
    """A row of numbers goes on without end, so the request runs when the key comes."""
    row = ", ".join(str(number) for number in range(1, 60))
    with Neovim(tmp_path, url=real.address, debounceMs=0, maxOutputTokens=4000) as editor:
        editor.edit("numbers.txt", f"🎵 {row}|")
        num_finished = len(real.finished())
        editor.input(",")
        editor.until(lambda: editor.status["busy"], "a running request")
        editor.input(" 60")
        editor.input("<Esc>")
        ended = editor.until(lambda: real.finished()[num_finished:], "its end")
        assert ended[0]["finish_reason"] == "cancelled"
        editor.until(lambda: not editor.status["busy"], "rest")
        assert editor.text == f"🎵 {row}, 60"
