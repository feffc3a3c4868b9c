"""What is remembered of a conversation."""

from __future__ import annotations

from paceline_client.history import History, as_input
from paceline_protocol import messages as m


def _response(number: int, *texts: str) -> m.Response:
    return m.Response(
        id=f"resp_{number}",
        created_at=0.0,
        model="x",
        status="completed",
        output=[
            m.OutputMessage(id="msg", status="completed", content=[m.OutputText(text=text)])
            for text in texts
        ],
    )


def _said(text: str) -> m.MessageItem:
    return m.MessageItem(role="user", content=text)


def _answered(text: str) -> m.MessageItem:
    return m.MessageItem(role="assistant", content=[m.OutputText(text=text)])


def test_a_turn_knows_all_that_came_before() -> None:
    history = History()
    history.add(_response(1, "A"), [_said("a")], parent=None, connection=1)
    history.add(_response(2, "B"), [_said("b")], parent=history.find("resp_1"), connection=1)
    history.add(_response(3, "C"), [_said("c")], parent=history.find("resp_1"), connection=1)
    turn = history.find("resp_2")
    assert turn is not None
    assert turn.all_items() == [_said("a"), _answered("A"), _said("b"), _answered("B")]
    fork = history.find("resp_3")
    assert fork is not None
    assert fork.all_items() == [_said("a"), _answered("A"), _said("c"), _answered("C")]


def test_old_turns_are_forgotten_but_not_by_their_successors() -> None:
    history = History(max_turns=2)
    parent = None
    for number in range(1, 6):
        history.add(_response(number, "A"), [_said(str(number))], parent=parent, connection=1)
        parent = history.find(f"resp_{number}")
    assert [history.find(f"resp_{number}") is None for number in range(1, 6)] == [True] * 3 + [
        False
    ] * 2
    assert parent is not None
    assert len(parent.all_items()) == 10


def test_use_keeps_a_turn() -> None:
    history = History(max_turns=2)
    history.add(_response(1), [], parent=None, connection=1)
    history.add(_response(2), [], parent=None, connection=1)
    history.find("resp_1")
    history.add(_response(3), [], parent=None, connection=1)
    assert history.find("resp_2") is None
    assert history.find("resp_1") is not None


def test_what_the_server_lost_is_marked() -> None:
    history = History()
    history.add(_response(1), [], parent=None, connection=3)
    assert history.mark_forgotten("resp_1")
    turn = history.find("resp_1")
    assert turn is not None
    assert turn.connection == 0
    assert not history.mark_forgotten("resp_2")


def test_output_becomes_input() -> None:
    call = m.FunctionCall(call_id="c", name="f", arguments="{}")
    response = m.Response(
        id="r",
        created_at=0.0,
        model="x",
        status="completed",
        output=[
            m.OutputMessage(
                id="msg",
                status="completed",
                content=[m.OutputText(text="one "), m.OutputText(text="two")],
            ),
            call,
            m.OutputMessage(id="empty", status="incomplete", content=[m.OutputText(text="")]),
        ],
    )
    assert as_input(response) == [_answered("one two"), call]
