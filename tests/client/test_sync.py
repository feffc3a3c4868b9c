"""The client without an event loop."""

from __future__ import annotations

import inspect
import signal
import threading
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal

from paceline_client import ConnectError, QueueFullError, Session
from paceline_client.requests import CompletionSettings, ResponseSettings
from paceline_client.sync import connect_sync
from paceline_protocol import messages as m
from tests.client.scripted_server import ScriptedServer, scripted_server

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(scripted_server()) as running,
    ):
        yield running


def test_settings_are_those_of_the_async_client() -> None:
    for method, settings, own in (
        (Session.respond, ResponseSettings, {"self", "input"}),
        (Session.complete, CompletionSettings, {"self", "prompt"}),
    ):
        parameters = inspect.signature(method).parameters.keys()
        assert parameters - own == settings.__annotations__.keys()


def test_an_answer_streams(server: ScriptedServer) -> None:
    with connect_sync(server.url) as session:
        stream = session.respond("hello there")
        deltas = [event.delta for event in stream if isinstance(event, m.OutputTextDelta)]
        assert deltas == ["HELLO ", "THERE "]
        assert stream.response is not None
        assert stream.response.status == "completed"
        assert session.ask("one", previous=stream.response).output_text == "ONE "
        assert session.complete("raw").finish().output_text == "RAW "


def test_cancel_and_read_to_the_end(server: ScriptedServer) -> None:
    with connect_sync(server.url, codec="msgpack") as session, session.respond("hold") as stream:
        assert isinstance(next(stream), m.ResponseCreated)
        stream.cancel()
        assert isinstance(list(stream)[-1], m.ResponseIncomplete)
        assert stream.text == "WORD"


def test_leaving_early_cancels(server: ScriptedServer) -> None:
    with connect_sync(server.url) as session:
        with session.respond("hold") as stream:
            next(stream)
        assert list(stream) == []
        assert session.ask("next").output_text == "NEXT "
    assert len(server.cancellations()) == 1


def test_errors_are_those_of_the_async_client(server: ScriptedServer) -> None:
    with connect_sync(server.url) as session:
        with pytest.raises(QueueFullError):
            session.ask("refuse")
        conversation = session.conversation(instructions="Be brief.")
        conversation.respond("one").finish()
        conversation.instructions = None
        conversation.respond("two").finish()
        conversation.forget()
        conversation.respond("three").finish()
    assert [
        (request.instructions, request.previous_response_id) for request in server.requests()[1:]
    ] == [("Be brief.", None), (None, "resp_1"), (None, None)]


def test_an_interrupt_at_any_moment_loses_no_event(server: ScriptedServer) -> None:
    """Signals arrive while the main thread iterates; every word still comes, once, in order."""
    expected = "".join(f"{number} " for number in range(2000))
    interrupts = 0
    done = threading.Event()

    def interrupt() -> None:
        while not done.wait(0.002):
            signal.raise_signal(signal.SIGUSR1)

    def raise_interrupt(*_: object) -> None:
        if is_iterating:
            raise KeyboardInterrupt

    is_iterating = False
    before = signal.signal(signal.SIGUSR1, raise_interrupt)
    thread = threading.Thread(target=interrupt)
    try:
        with connect_sync(server.url) as session, session.respond("flood 2000") as stream:
            thread.start()
            texts: list[str] = []
            while True:
                try:
                    is_iterating = True
                    for event in stream:
                        is_iterating = False
                        if isinstance(event, m.OutputTextDelta):
                            texts.append(event.delta)
                        is_iterating = True
                    is_iterating = False
                    break
                except KeyboardInterrupt:
                    is_iterating = False
                    interrupts += 1
            assert interrupts > 0
            assert "".join(texts) == stream.text == expected
    finally:
        done.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_no_server(server: ScriptedServer) -> None:
    del server
    with pytest.raises(ConnectError), connect_sync("ws://127.0.0.1:1"):
        pass
