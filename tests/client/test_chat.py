"""The terminal chat: piped, and on a real pseudo-terminal with a real Ctrl-C."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from paceline_client import chat
from paceline_protocol import messages as m
from paceline_protocol.vectors import SERVER_VECTORS
from tests.client.scripted_server import ScriptedServer, scripted_server

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT = Path(__file__).parents[2]
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\r")


class _Input(io.StringIO):
    def __init__(self, text: str = "", *, is_terminal: bool = False) -> None:
        super().__init__(text)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(scripted_server()) as running,
    ):
        yield running


def _piped(
    question: str | None, url: str, *, stdin: str = "", temperature: float | None = None
) -> tuple[int, str, str]:
    stdout, stderr = io.StringIO(), io.StringIO()
    code = chat.run(
        question,
        url=url,
        system="Be brief.",
        temperature=temperature,
        max_tokens=9,
        stdin=_Input(stdin),
        stdout=stdout,
        stderr=stderr,
    )
    return code, stdout.getvalue(), stderr.getvalue()


def test_a_piped_answer_is_its_bare_text(server: ScriptedServer) -> None:
    assert _piped("hello *there*", server.url) == (0, "HELLO *THERE* \n", "")
    request = server.requests()[0]
    assert (request.instructions, request.max_output_tokens) == ("Be brief.", 9)
    assert request.paceline is not None
    assert request.paceline.include is None


def test_the_question_may_come_from_a_pipe(server: ScriptedServer) -> None:
    assert _piped(None, server.url, stdin="from a pipe\n") == (0, "FROM A PIPE \n", "")
    code, out, err = _piped(None, server.url, stdin=" \n")
    assert (code, out) == (2, "")
    assert "no question" in err


@pytest.mark.parametrize(
    ("question", "said"),
    [("refuse", "64 requests wait already"), ("fail", "the script says so")],
)
def test_a_refusal_is_one_line(server: ScriptedServer, question: str, said: str) -> None:
    code, _, err = _piped(question, server.url)
    assert code == 1
    assert err == f"error: {said}\n"


def test_an_error_in_mid_answer_begins_a_line(server: ScriptedServer) -> None:
    """Both streams usually end on one screen."""
    both = io.StringIO()
    code = chat.run("fail", url=server.url, stdin=_Input(), stdout=both, stderr=both)
    assert (code, both.getvalue()) == (1, "WORD\nerror: the script says so\n")


def test_an_answer_has_a_limit_and_says_when_it_was_reached(server: ScriptedServer) -> None:
    code, out, err = _piped("cut 9", server.url)
    assert (code, out) == (0, "WORD\n")
    assert err == (
        "the answer was cut at 9 tokens; paceline chat --max-tokens N allows another number, "
        "0 as many as fit\n"
    )
    assert "context is full" in _piped("cut 5", server.url)[2]  # before the limit of 9
    assert _piped("whole", server.url)[2] == ""


@pytest.mark.parametrize(
    ("asked", "sent"), [({}, 1024), ({"max_tokens": 5000}, 5000), ({"max_tokens": 0}, None)]
)
def test_the_limit_of_an_answer(
    server: ScriptedServer, asked: dict[str, Any], sent: int | None
) -> None:
    code = chat.run(
        "hi", url=server.url, stdin=_Input(), stdout=io.StringIO(), stderr=io.StringIO(), **asked
    )
    assert code == 0
    assert server.requests()[0].max_output_tokens == sent


def test_a_wrong_option_is_one_line(server: ScriptedServer) -> None:
    code, out, err = _piped("x", server.url, temperature=-1)
    assert (code, out) == (2, "")
    assert err == "error: temperature is -1; it must be a number, 0 or more\n"
    code, out, err = _piped("x", "ftp://example.org")
    assert (code, out) == (2, "")
    assert "url is 'ftp://example.org'" in err


def test_no_server_is_one_line() -> None:
    code, out, err = _piped("x", "127.0.0.1:1")
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert "no server answers at ws://127.0.0.1:1/v1/responses (connection refused)" in err
    assert "paceline serve" in err


def test_commands(server: ScriptedServer) -> None:
    lines = iter(
        ["/help", "one", "/system Be long.", "two", "^C", "/new", "three", "/nope", "", "/quit"]
    )

    def read_line(prompt: str) -> str:
        line = next(lines)
        if line == "^C":
            raise KeyboardInterrupt
        return line

    stdout, stderr = io.StringIO(), io.StringIO()
    code = chat.run(
        url=server.url,
        read_line=read_line,
        stdin=_Input(is_terminal=True),
        stdout=stdout,
        stderr=stderr,
    )
    assert code == 0
    assert [text for text in ("ONE", "TWO", "THREE") if text in stdout.getvalue()] == [
        "ONE",
        "TWO",
        "THREE",
    ]
    assert "/nope is not known" in stderr.getvalue()
    assert [
        (request.instructions, request.previous_response_id) for request in server.requests()
    ] == [(None, None), ("Be long.", "resp_1"), ("Be long.", None)]


def test_the_status_line_tells_what_speculation_did() -> None:
    finished = next(
        vector.message
        for vector in SERVER_VECTORS
        if isinstance(vector.message, m.ResponseCompleted)
    )
    assert chat.status_line(finished.response) == (
        "12 tokens · 96.2 tokens/s · first after 42 ms · acceptance 0.80 · 3.00 tokens/step"
        " · on: acceptance 0.80 over 10 examined"
    )


def test_the_status_line_has_one_acceptance_that_of_the_answer() -> None:
    finished = next(
        vector.message
        for vector in SERVER_VECTORS
        if isinstance(vector.message, m.ResponseCompleted)
    )
    assert finished.response.paceline is not None
    reason = "on: the draft model drafts 4 tokens; acceptance 0.71 over the last 64 tested"
    summary = msgspec.structs.replace(finished.response.paceline, reason=reason)
    line = chat.status_line(msgspec.structs.replace(finished.response, paceline=summary))
    assert line.endswith("tokens/step · on: the draft model drafts 4 tokens")
    assert line.count("acceptance") == 1


def test_ctrl_c_stops_the_answer_and_not_the_program(server: ScriptedServer) -> None:
    with _Terminal(server.url) as terminal:
        terminal.wait_for("> ")
        terminal.type("hold it\n")
        terminal.wait_for("WORD")
        terminal.type("\x03")
        terminal.wait_for("stopped")
        terminal.wait_for("> ")
        terminal.type("and now\n")
        terminal.wait_for("AND NOW")
        terminal.wait_for("> ")
        terminal.type("\x04")
        assert terminal.exit_code() == 0
    assert server.cancellations() == [m.ResponseCancel(response_id="resp_1")]
    assert server.requests()[1].previous_response_id == "resp_1"
    assert server.num_connections == 1


class _Terminal:
    """`chat.run` in a process of its own on a pseudo-terminal."""

    def __init__(self, url: str) -> None:
        self._leader, follower = pty.openpty()
        code = (
            # A session's leader takes the terminal that it opens first; Ctrl-C then is a signal.
            # Started from a background job it would inherit that Ctrl-C is ignored.
            "import os, signal, sys; os.open(os.ttyname(0), os.O_RDWR); "
            "signal.signal(signal.SIGINT, signal.default_int_handler); "
            f"from paceline_client.chat import run; sys.exit(run(url={url!r}))"
        )
        path = [_ROOT / "clients" / "python", _ROOT / "protocol"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), "TERM": "xterm"},
            start_new_session=True,
        )
        os.close(follower)
        self._unread = ""

    def __enter__(self) -> _Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._leader)

    def type(self, keys: str) -> None:
        os.write(self._leader, keys.encode())

    def wait_for(self, text: str) -> None:
        """Read until the text appears; what comes after it is left for the next call."""
        while text not in self._unread:
            ready, _, _ = select.select([self._leader], [], [], 30)
            assert ready, f"{text!r} does not come; seen: {self._unread!r}"
            self._unread += _ESCAPES.sub("", os.read(self._leader, 4096).decode(errors="replace"))
        self._unread = self._unread.split(text, 1)[1]

    def exit_code(self) -> int:
        return self._process.wait(30)
