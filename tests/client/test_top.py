"""`paceline top` against a server that sends scripted samples."""

from __future__ import annotations

import contextlib
import io
import re
from typing import TYPE_CHECKING, Any

import anyio
import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from paceline_client import RequestRefusedError, top
from paceline_client.top_view import History, screen, sparkline
from paceline_protocol import JSON_CODEC, ErrorCode
from paceline_protocol import messages as m

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.anyio


def _session(number: int, **changes: Any) -> m.SessionTelemetry:
    values: dict[str, Any] = {
        "session_id": f"sess_{number:032d}",
        "lane": None,
        "active": True,
        "gate": "on",
        "reason": "acceptance 0.71 over 64",
        "drafter": "model",
        "acceptance": 0.714,
        "accepted_per_position": [5, 3],
        "examined_per_position": [6, 5],
        "passed_per_position": [5, 3],
        "gamma_histogram": [0, 1, 4, 8],
        "tokens_per_step": 2.4,
        "tokens_per_second": 100.0 - number,
        "time_to_first_token_ms": 31.0,
        "draft_ms": 1.0,
        "verify_ms": 10.0,
        "sample_ms": 1.0,
        "other_ms": 0.5,
    }
    return m.SessionTelemetry(**(values | changes))


def _sample(*sessions: m.SessionTelemetry, waiting: int = 0) -> m.TelemetrySample:
    server = m.ServerTelemetry(
        num_sessions=len(sessions),
        num_running=3,
        num_waiting=waiting,
        num_blocks=200,
        num_free_blocks=50,
        num_cached_blocks=20,
        num_rows=12,
        tokens_per_second=321.5,
        draft_ms=1.0,
        verify_ms=8.0,
        sample_ms=1.0,
        other_ms=2.0,
        measured_step_ms=12.0,
        predicted_step_ms=11.5,
        break_even_rows=24,
    )
    return m.TelemetrySample(
        scope="server", time=0.0, sessions=list(sessions), server=server, ledger_level_ms=1.5
    )


def _drawn(sample: m.TelemetrySample, *, width: int = 120, height: int = 30, note: str = "") -> str:
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    history = History()
    history.add(sample)
    with console.capture() as capture:
        console.print(screen(sample, history, width=width, height=height, note=note))
    return capture.get()


def test_what_the_screen_says() -> None:
    text = _drawn(_sample(_session(1, lane="editor"), waiting=2), width=140)
    for part in (
        "3 answers running, 2 waiting  321.5 tokens/s  1 session listed, 1 connection\n",
        "150 of 200, 20 cached  ledger 1.5 ms",
        "12.0 ms: draft 1.0, verify 8.0, sample 1.0, other 2.0\n",
        "predicted 11.5 ms  12 tokens in the pass; drafting pays up to 24\n",
        "00000000/editor",
        "acceptance 0.71 over 64",
    ):
        assert part in text
    (row,) = [line for line in text.splitlines() if "/editor" in line]
    assert row.split()[1:8] == ["model", "on", "0.71", "2.40", "99.0", "31", "▁▂▅█"]


def test_unknown_values_are_dashes() -> None:
    text = _drawn(_sample(_session(1, acceptance=None, tokens_per_step=None, gamma_histogram=[])))
    (row,) = [line for line in text.splitlines() if "00000000" in line]
    assert row.split()[3:5] == ["-", "-"]


@pytest.mark.parametrize("count", [0, 1, 15, 22, 23, 200])
@pytest.mark.parametrize("note", ["", "the connection is lost"])
def test_it_is_never_taller_than_the_terminal(count: int, note: str) -> None:
    text = _drawn(_sample(*(_session(number) for number in range(count))), height=30, note=note)
    assert len(text.splitlines()) <= 30
    assert (note in text) or not note
    num_rows = len(re.findall("acceptance 0.71", text))
    if num_rows < count:
        assert f"and {count - num_rows} more" in text


def test_those_at_work_come_first() -> None:
    text = _drawn(
        _sample(
            _session(1, active=False, lane="idle"),
            _session(2, tokens_per_second=5.0, lane="slow"),
            _session(3, tokens_per_second=50.0, lane="fast"),
        )
    )
    assert text.index("/fast") < text.index("/slow") < text.index("/idle")


def test_names_cannot_steer_the_terminal() -> None:
    text = _drawn(_sample(_session(1, lane="\x1b[2J[red]x", reason="\x1b]0;title\x07[bold]y")))
    assert "\x1b" not in text
    assert "[2J[red]x" in text  # and are not taken for markup
    assert "[bold]y" in text


LONG_REASON = "on: the draft model drafts 4 tokens; acceptance 0.71 over the last 64 tested"


@pytest.mark.parametrize("width", [30, 40, 60, 80, 100, 120, 160, 200])
def test_narrow_terminals_get_fewer_columns_and_each_of_them_whole(width: int) -> None:
    sessions = [
        _session(number, lane=lane, reason=LONG_REASON, gamma_histogram=[1] * 17)
        for number, lane in enumerate([None, "editor", "5f" * 12, "a very long name of a lane"])
    ]
    text = _drawn(_sample(*sessions), width=width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    head = next(line for line in lines if "session" in line and "paceline" not in line)
    titles = re.split(r" {2,}", head.strip())
    wanted = ["session", "drafter", "gate", "accepted", "tokens/step", "tokens/s", "first ms"]
    assert [title for title in titles if title not in (*wanted, "drafted", "why")] == []
    assert titles[0] == "session"
    [row] = [line for line in lines if "editor" in line]
    cells = re.split(r" {2,}", row.strip())
    assert len(cells) == len(titles)
    assert all("…" not in cell for cell in cells[: -1 if "why" in titles else None])


def test_eighty_columns_show_what_matters_most() -> None:
    text = _drawn(_sample(_session(1, lane="5f" * 12, reason=LONG_REASON)), width=80)
    lines = text.splitlines()
    [row] = [line for line in lines if "5f5f5f5f" in line]
    assert row.split()[:4] == ["00000000/5f5f5f5f", "on", "0.71", "99.0"]
    assert "the draft model dr" in row
    assert "12.0 ms: draft 1.0, verify 8.0, sample 1.0, other 2.0\n" in text
    assert "predicted 11.5 ms  12 tokens in the pass; drafting pays up to 24" in text
    assert "3 running, 0 waiting  321.5 tokens/s  1 session listed, 1 connection\n" in text


def test_what_is_listed_is_not_what_is_connected() -> None:
    """One connection has many lanes, and lanes of connections that have gone are listed too."""
    sample = _sample(*(_session(number) for number in range(38)))
    assert sample.server is not None
    server = msgspec.structs.replace(sample.server, num_sessions=1, num_running=1, num_rows=1)
    text = _drawn(msgspec.structs.replace(sample, server=server), width=160, height=60)
    assert "1 answer running, 0 waiting" in text
    assert "38 sessions listed, 1 connection\n" in text
    assert "1 token in the pass" in text


def test_idle_sessions_have_no_speed() -> None:
    text = _drawn(_sample(_session(1, active=False, lane="editor")))
    [row] = [line for line in text.splitlines() if "/editor" in line]
    assert row.split()[5] == "idle"


def test_sparklines() -> None:
    assert sparkline([]) == ""
    assert sparkline([0.0, 0.0]) == "▁▁"
    assert sparkline([1.0, 8.0]) == "▂█"


# Against a server


@contextlib.asynccontextmanager
async def _telemetry_server(
    answer: Callable[[ServerConnection, m.TelemetrySubscribe], Any],
) -> AsyncIterator[str]:
    async def handle(socket: ServerConnection) -> None:
        async for payload in socket:
            event = JSON_CODEC.decode_client(payload)
            if isinstance(event, m.TelemetrySubscribe):
                await answer(socket, event)

    async with serve(handle, "127.0.0.1", 0) as listening:
        host, port = next(iter(listening.sockets)).getsockname()[:2]
        yield f"ws://{host}:{port}"


async def _send(socket: ServerConnection, event: m.ServerEvent) -> None:
    await socket.send(JSON_CODEC.encode(event))


def _numbered(number: int, stream_id: str | None) -> m.TelemetrySample:
    sample = _sample(_session(number, lane=f"lane-{number}"))
    return m.TelemetrySample(
        scope="server",
        time=float(number),
        sessions=sample.sessions,
        server=sample.server,
        stream_id=stream_id or "",
    )


async def test_one_sample_is_printed() -> None:
    async def answer(socket: ServerConnection, event: m.TelemetrySubscribe) -> None:
        assert (event.scope, event.interval_ms) == ("server", 200)
        with contextlib.suppress(ConnectionClosed):
            while True:  # of samples that wait only the newest is kept
                await _send(socket, _numbered(7, event.stream_id))
                await anyio.sleep(0.01)

    console = Console(file=io.StringIO(), width=120)
    async with _telemetry_server(answer) as url:
        with console.capture() as capture:
            await top.show_once(console, url, None, 200)
    assert "/lane-7" in capture.get()


async def test_a_lost_connection_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top, "RETRY_S", 0.0)
    seen = anyio.Event()
    numbers = iter(range(1, 100))

    async def answer(socket: ServerConnection, event: m.TelemetrySubscribe) -> None:
        number = next(numbers)
        await _send(socket, _numbered(number, event.stream_id))
        if number == 1:
            await socket.close(1012, "restarting")

    drawn: list[str] = []
    console = Console(file=io.StringIO(), width=120, height=30, force_terminal=True)

    class Seen(History):
        def add(self, sample: m.TelemetrySample) -> None:
            super().add(sample)
            drawn.append(sample.sessions[0].lane or "")
            if len(drawn) == 2:
                seen.set()

    monkeypatch.setattr(top, "History", Seen)
    async with _telemetry_server(answer) as url, anyio.create_task_group() as tasks:
        tasks.start_soon(top.watch, console, url, None, 100)
        await seen.wait()
        tasks.cancel_scope.cancel()
    assert drawn == ["lane-1", "lane-2"]
    assert isinstance(console.file, io.StringIO)
    assert "/lane-1" in console.file.getvalue()


async def test_without_the_admin_key_it_says_what_helps() -> None:
    async def answer(socket: ServerConnection, event: m.TelemetrySubscribe) -> None:
        await _send(
            socket,
            m.ErrorEvent.of(
                ErrorCode.PERMISSION_DENIED,
                "scope `server` needs the admin key",
                param="scope",
                stream_id=event.stream_id,
            ),
        )

    async with _telemetry_server(answer) as url:
        with pytest.raises(RequestRefusedError) as caught:
            await top.show_once(Console(file=io.StringIO()), url, None, 500)
    assert "PACELINE_ADMIN_KEY" in top.in_words(caught.value)


def test_no_server_is_one_line_and_exit_code_1() -> None:
    result = CliRunner().invoke(top.app, ["--url", "ws://127.0.0.1:9", "--once"])
    assert result.exit_code == 1
    assert "no server answers at ws://127.0.0.1:9" in result.output


def test_a_wrong_address_is_exit_code_2() -> None:
    result = CliRunner().invoke(top.app, ["--url", "ftp://x", "--once"])
    assert result.exit_code == 2
    assert "url is 'ftp://x'" in result.output
