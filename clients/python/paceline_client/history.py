"""What was said so far, so that a conversation outlives its connection.

A server keeps previous responses for one connection only. After a reconnect, or when it had to
forget one, the items themselves are sent again; the client therefore remembers them.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paceline_protocol.messages import (
    FunctionCall,
    InputItem,
    MessageItem,
    OutputMessage,
    OutputText,
    Response,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_TURNS = 256
_NO_CONNECTION = 0


@dataclass(frozen=True, slots=True)
class Turn:
    """One request and its response, and what came before. connection: number of the connection
    whose server side holds it, 0 for none."""

    parent: Turn | None
    items: tuple[InputItem, ...]
    connection: int

    def all_items(self) -> list[InputItem]:
        """The whole conversation up to this turn's answer, oldest first."""
        turns: list[Turn] = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.parent
        return [item for turn in reversed(turns) for item in turn.items]


class History:
    """Turns by response id; the least recently used ones are forgotten."""

    def __init__(self, max_turns: int = _MAX_TURNS) -> None:
        self._max_turns = max_turns
        self._turns: OrderedDict[str, Turn] = OrderedDict()

    def find(self, response_id: str) -> Turn | None:
        turn = self._turns.get(response_id)
        if turn is not None:
            self._turns.move_to_end(response_id)
        return turn

    def mark_forgotten(self, response_id: str) -> bool:
        """The server lost a response that its own connection had: from now on its items are sent
        instead. False if they are unknown here too."""
        turn = self._turns.get(response_id)
        if turn is None:
            return False
        self._turns[response_id] = replace(turn, connection=_NO_CONNECTION)
        return True

    def add(
        self,
        response: Response,
        items: Iterable[InputItem],
        *,
        parent: Turn | None,
        connection: int,
    ) -> None:
        """Remember a finished response, and the items that were its input."""
        self._turns[response.id] = Turn(
            parent=parent, items=(*items, *as_input(response)), connection=connection
        )
        while len(self._turns) > self._max_turns:
            self._turns.popitem(last=False)


def as_input(response: Response) -> list[InputItem]:
    """A response's output in the form in which a later request sends it."""
    items: list[InputItem] = []
    for item in response.output:
        match item:
            case OutputMessage(content=content):
                text = "".join(part.text for part in content)
                if text:
                    items.append(MessageItem(role="assistant", content=[OutputText(text=text)]))
            case FunctionCall():
                items.append(item)
    return items
