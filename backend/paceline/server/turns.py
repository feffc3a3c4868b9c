"""The finished responses of one connection, for `previous_response_id`. Bounded in tokens."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.model.chat import ChatMessage, EncodedChat


@dataclass(frozen=True, slots=True)
class Turn:
    """What a later response may continue.

    messages: the conversation so far, the answer included, instructions not (they are not
    inherited). encoded: prompt and answer as the engine had them; None when the ids hold more than
    the text that was shown (a stop string cut it), so that only rendering anew is right.
    num_tokens: what it counts against the bound.
    """

    messages: tuple[ChatMessage, ...]
    encoded: EncodedChat | None
    num_tokens: int


class TurnStore:
    """Least recently used first out, by tokens. Any stored turn can be continued, more than once.

    The newest turn stays even when it alone is over the bound: the context length bounds it
    already, and a conversation whose last turn is lost could not go on at all.
    """

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.num_tokens = 0
        self._turns: OrderedDict[str, Turn] = OrderedDict()

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, response_id: str) -> bool:
        return response_id in self._turns

    def get(self, response_id: str) -> Turn | None:
        """The turn, which thereby counts as used; None if it was never stored or has gone."""
        turn = self._turns.get(response_id)
        if turn is not None:
            self._turns.move_to_end(response_id)
        return turn

    def put(self, response_id: str, turn: Turn) -> None:
        """Store a finished response under its own (new) id."""
        self._turns[response_id] = turn
        self.num_tokens += turn.num_tokens
        while self.num_tokens > self.max_tokens and len(self._turns) > 1:
            _, evicted = self._turns.popitem(last=False)
            self.num_tokens -= evicted.num_tokens
