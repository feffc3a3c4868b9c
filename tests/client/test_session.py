"""The async client against a scripted server on a real socket."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Literal

import anyio
import pytest

from paceline_client import (
    AuthenticationError,
    ConnectError,
    ConnectionLostError,
    Conversation,
    PreviousResponseNotFoundError,
    QueueFullError,
    RequestRefusedError,
    ResponseFailedError,
    SessionClosedError,
    connect,
)
from paceline_protocol import ProtocolError
from paceline_protocol import messages as m
from tests.client.scripted_server import ScriptedServer, scripted_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with scripted_server() as running:
        yield running


@pytest.mark.parametrize("codec", ["json", "msgpack"])
async def test_an_answer_streams(server: ScriptedServer, codec: Literal["json", "msgpack"]) -> None:
    async with connect(server.url, codec=codec) as session:
        events = [event async for event in session.respond("hello there")]
    assert [type(event) for event in events] == [
        m.ResponseCreated,
        m.OutputTextDelta,
        m.OutputTextDelta,
        m.ResponseCompleted,
    ]
    assert [event.delta for event in events if isinstance(event, m.OutputTextDelta)] == [
        "HELLO ",
        "THERE ",
    ]


async def test_ask_returns_the_finished_response(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        response = await session.ask("one two")
    assert (response.status, response.output_text) == ("completed", "ONE TWO ")


async def test_every_option_reaches_the_server(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.respond(
            [{"role": "user", "content": "a"}, m.MessageItem(role="user", content="b")],
            instructions="Be brief.",
            max_output_tokens=5,
            temperature=0.5,
            top_p=0.9,
            top_logprobs=2,
            metadata={"k": "v"},
            model="scripted",
            generate=False,
            paceline={"seed": 3, "speculation": "off", "logit_bias": {"11": 1}},
        )
        await stream.finish()
    assert server.requests() == [
        m.ResponseCreate(
            input=[
                m.MessageItem(role="user", content="a"),
                m.MessageItem(role="user", content="b"),
            ],
            instructions="Be brief.",
            max_output_tokens=5,
            temperature=0.5,
            top_p=0.9,
            top_logprobs=2,
            include=["message.output_text.logprobs"],
            metadata={"k": "v"},
            model="scripted",
            generate=False,
            stream_id="lane-1",
            paceline=m.PacelineOptions(seed=3, speculation="off", logit_bias={11: 1.0}),
        )
    ]


async def test_raw_completion(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.complete("def f", suffix="end", paceline={"stop": "\n"})
        assert (await stream.finish()).output_text == "DEF F "
    assert server.received[0][1] == m.CompletionCreate(
        prompt="def f", suffix="end", stream_id="lane-1", paceline=m.PacelineOptions(stop="\n")
    )


async def test_wrong_options_are_refused_before_anything_is_sent(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        with pytest.raises(ProtocolError, match="temperature is -1") as wrong_value:
            session.respond("x", temperature=-1)
        with pytest.raises(ProtocolError, match="did you mean `top_k`") as wrong_name:
            session.respond("x", paceline={"topk": 1})
        with pytest.raises(ProtocolError) as wrong_item:
            session.respond([{"role": "nobody", "content": "x"}])
        with pytest.raises(ProtocolError) as wrong_option:
            session.complete("x", paceline=m.PacelineOptions(min_p=2))
    assert wrong_value.value.param == "temperature"
    assert wrong_name.value.param == "paceline.topk"
    assert wrong_item.value.param == "input[0].role"
    assert wrong_option.value.param == "paceline.min_p"
    assert server.received == []


async def test_lanes_run_in_parallel_and_stay_apart(server: ScriptedServer) -> None:
    answers: dict[str, str] = {}

    async def ask(question: str) -> None:
        answers[question] = (await session.ask(question)).output_text

    async with connect(server.url) as session:
        held = session.respond("hold")
        async for event in held:
            if isinstance(event, m.OutputTextDelta):
                break
        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(ask, f"question {number}")
        assert answers == {f"question {n}": f"QUESTION {n} " for n in range(10)}
        held.cancel()
        assert (await held.finish()).status == "cancelled"
        assert session.lanes.num_open == 0
    assert server.num_connections == 1
    assert {request.stream_id for request in server.requests()} >= {"lane-1", "lane-2", "lane-3"}


async def test_more_responses_than_lanes_wait_their_turn(server: ScriptedServer) -> None:
    answers: list[str] = []

    async def ask(number: int) -> None:
        answers.append((await session.ask(f"{number}")).output_text)

    async with connect(server.url, max_lanes=2) as session, anyio.create_task_group() as tasks:
        for number in range(7):
            tasks.start_soon(ask, number)
    assert sorted(answers) == [f"{number} " for number in range(7)]
    assert {request.stream_id for request in server.requests()} == {"lane-1", "lane-2"}


async def test_one_question_after_another_stays_in_one_lane(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        for _ in range(3):
            await session.ask("again")
    assert [request.stream_id for request in server.requests()] == ["lane-1"] * 3


async def test_cancel_lets_the_rest_of_the_response_come(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.respond("hold")
        kinds = []
        async for event in stream:
            kinds.append(type(event))
            stream.cancel()
            stream.cancel()
        assert kinds == [m.ResponseCreated, m.OutputTextDelta, m.ResponseIncomplete]
        assert stream.response is not None
        assert (stream.response.status, stream.text) == ("cancelled", "WORD")
    assert server.cancellations() == [m.ResponseCancel(response_id="resp_1")]


async def test_cancel_while_the_request_waits_for_a_lane_is_kept_for_later(
    server: ScriptedServer,
) -> None:
    async with connect(server.url, max_lanes=1) as session, anyio.create_task_group() as tasks:
        first, second = session.respond("hold"), session.respond("hold too")
        await anext(first)
        tasks.start_soon(second.finish)
        await anyio.wait_all_tasks_blocked()
        second.cancel()
        first.cancel()
        await first.finish()
    assert second.response is not None
    assert second.response.status == "cancelled"
    ids = [m.ResponseCancel(response_id="resp_1"), m.ResponseCancel(stream_id="lane-1")]
    assert server.cancellations() == ids


async def test_a_cancellation_that_crosses_the_end_is_nothing_to_warn_of(
    server: ScriptedServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(server.url) as session:
        stream = session.respond("say this")
        await stream.finish()
        assert stream._open is not None
        stream._open.cancel()  # as if the end had still been on its way
        await session.respond("say more").finish()  # the error has come by now
    assert server.cancellations() == [m.ResponseCancel(response_id="resp_1")]
    assert not caplog.records


async def test_leaving_the_loop_early_cancels(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        async for event in session.respond("hold"):
            if isinstance(event, m.OutputTextDelta):
                break
        gc.collect()
        await server.until_idle()
        assert server.cancellations() == [m.ResponseCancel(response_id="resp_1")]
        # Its lane serves the next question, unharmed by what was still under way.
        assert (await session.ask("next")).output_text == "NEXT "


async def test_leaving_the_block_early_cancels_although_a_name_still_holds_the_stream(
    server: ScriptedServer,
) -> None:
    async with connect(server.url) as session:
        async with session.respond("hold") as stream:
            await anext(stream)
        await server.until_idle()
        assert [event async for event in stream] == []


async def test_cancelling_the_waiting_task_cancels_the_response(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.respond("hold")
        with anyio.CancelScope() as scope:
            async for event in stream:
                if isinstance(event, m.OutputTextDelta):
                    scope.cancel()
        await server.until_idle()
        assert len(server.cancellations()) == 1
        assert (await session.ask("next")).output_text == "NEXT "


async def test_a_cancellation_that_comes_too_late_disturbs_nobody(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.respond("quick")
        await anext(stream)
        await server.until_idle()  # its end is on the way, unread
        stream.close()
        assert (await session.ask("next")).output_text == "NEXT "
    assert len(server.cancellations()) <= 1


async def test_a_stream_that_never_began_sends_nothing(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.respond("hold")
        stream.cancel()
        assert [event async for event in stream] == []
        session.respond("hold").close()
        with pytest.raises(RuntimeError, match="closed before it began"):
            await stream.finish()
    assert server.received == []


async def test_a_refused_request_raises_with_code_and_lane_lives_on(
    server: ScriptedServer,
) -> None:
    async with connect(server.url) as session:
        with pytest.raises(QueueFullError, match="64 requests wait") as caught:
            await session.ask("refuse")
        assert (caught.value.code, caught.value.status) == ("queue_full", 429)
        assert (await session.ask("next")).output_text == "NEXT "


async def test_a_failed_response_raises_and_keeps_its_text(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.respond("fail")
        with pytest.raises(ResponseFailedError, match="the script says so") as caught:
            await stream.finish()
        assert caught.value.response.output_text == stream.text == "WORD"
        assert (await session.ask("next")).output_text == "NEXT "


async def test_a_slow_reader_gets_every_word_and_holds_up_nobody(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        slow = session.respond("flood 5000")
        await anext(slow)
        assert (await session.ask("quick")).output_text == "QUICK "
        await server.until_idle()
        num_events = len([event async for event in slow])
    assert slow.text == "".join(f"{number} " for number in range(5000))
    assert num_events < 5000, "what waited was merged"


async def test_an_idle_connection_that_died_is_replaced(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        first = await session.ask("first")
        await server.connections[0].socket.close(1012, "restart")
        second = await session.ask("second", previous=first)
        assert second.output_text == "SECOND "
    assert server.num_connections == 2
    request = server.requests()[-1]
    assert request.previous_response_id is None
    assert request.input == [
        m.MessageItem(role="user", content="first"),
        m.MessageItem(role="assistant", content=[m.OutputText(text="FIRST ")]),
        m.MessageItem(role="user", content="second"),
    ]


async def test_a_connection_that_dies_before_the_answer_begins_is_replaced(
    server: ScriptedServer,
) -> None:
    async with connect(server.url) as session:
        server.drop_next_request = True
        assert (await session.ask("again")).output_text == "AGAIN "
    assert [number for number, _ in server.received] == [1, 2]


async def test_a_connection_that_dies_amid_an_answer_is_an_error(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.respond("drop")
        with pytest.raises(ConnectionLostError) as caught:
            await stream.finish()
        assert caught.value.code == 1006
        assert stream.text == "WORD"
        assert (await session.ask("next")).output_text == "NEXT "
    assert server.num_connections == 2


async def test_turns_build_on_one_another(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        conversation = Conversation(session, instructions="Be brief.", temperature=0)
        await conversation.respond("one").finish()
        await conversation.respond("two").finish()
        with pytest.raises(ResponseFailedError):
            await conversation.respond("fail").finish()
        await conversation.respond("three").finish()
        conversation.forget()
        await conversation.respond("four").finish()
    requests = server.requests()
    assert [request.previous_response_id for request in requests] == [
        None,
        "resp_1",
        "resp_2",
        "resp_2",
        None,
    ]
    assert {request.instructions for request in requests} == {"Be brief."}


async def test_what_the_server_forgot_is_sent_again_as_items(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        conversation = Conversation(session)
        await conversation.respond("one").finish()
        await conversation.respond("two").finish()
        server.connections[0].held.clear()
        assert (await conversation.respond("three").finish()).output_text == "THREE "
        assert (await conversation.respond("four").finish()).output_text == "FOUR "
    third, fourth = server.requests()[-2:]
    assert third.previous_response_id is None
    assert third.input is not None
    assert [item.role for item in third.input if isinstance(item, m.MessageItem)] == [
        "user",
        "assistant",
    ] * 2 + ["user"]
    assert (fourth.previous_response_id, fourth.input) == ("resp_3", "four")


async def test_an_unknown_previous_response_is_the_servers_to_refuse(
    server: ScriptedServer,
) -> None:
    async with connect(server.url) as session:
        with pytest.raises(PreviousResponseNotFoundError) as caught:
            await session.ask("x", previous="resp_of_yesterday")
    assert caught.value.param == "previous_response_id"
    assert len(server.requests()) == 1


async def test_a_turn_whose_beginning_is_unknown_is_never_sent_again_in_part(
    server: ScriptedServer,
) -> None:
    async with connect(server.url) as session:
        server.connections[0].held.add("resp_of_yesterday")
        answer = await session.ask("x", previous="resp_of_yesterday")
        server.connections[0].held.clear()
        with pytest.raises(PreviousResponseNotFoundError):
            await session.ask("y", previous=answer)


async def test_telemetry_gives_the_latest_sample(server: ScriptedServer) -> None:
    async with connect(server.url) as session, session.telemetry(interval_ms=100) as samples:
        times = [(await anext(samples)).time]
        while times[-1] != 2.0:
            times.append((await anext(samples)).time)
    assert times == sorted(times)
    assert server.received[0][1] == m.TelemetrySubscribe(
        interval_ms=100, stream_id="telemetry-session"
    )


async def test_telemetry_that_is_not_ours_to_see_is_refused(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        with pytest.raises(RequestRefusedError, match="admin key"):
            await anext(session.telemetry("server"))


async def test_no_server_is_one_clear_error() -> None:
    async with scripted_server() as gone:
        url = gone.url
    with pytest.raises(ConnectError) as caught:
        async with connect(url):
            pass
    assert caught.value.url == f"{url}/v1/responses"
    assert "\n" not in str(caught.value)


async def test_the_key_is_sent_in_the_header() -> None:
    async with scripted_server(api_key="s3cret") as server:
        with pytest.raises(AuthenticationError, match="the API key is wrong"):
            async with connect(server.url, api_key="guess"):
                pass
        async with connect(server.url, api_key="s3cret") as session:
            assert (await session.ask("in")).output_text == "IN "


async def test_errors_of_the_callers_own_block_come_out_bare(server: ScriptedServer) -> None:
    with pytest.raises(KeyError, match="mine"):
        async with connect(server.url):
            raise KeyError("mine")


async def test_leaving_the_session_ends_its_streams(server: ScriptedServer) -> None:
    async with connect(server.url) as session:
        stream = session.respond("hold")
        await anext(stream)
        await anext(stream)
    with pytest.raises(SessionClosedError):
        await anext(stream)
    with pytest.raises(SessionClosedError):
        await session.ask("too late")
    await server.until_idle()
