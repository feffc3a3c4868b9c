"""Predictions that are still ahead of the user's typing.

Whoever types what was predicted needs no new request: the rest of the prediction stands.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline_lsp.surroundings import Surroundings

_MAX_DOCUMENTS = 32
_MAX_PREDICTIONS = 8


@dataclass(frozen=True, slots=True)
class _Prediction:
    surroundings: Surroundings
    text: str

    def rest(self, now: Surroundings) -> str | None:
        before = self.surroundings.before
        if now.after != self.surroundings.after or not now.before.startswith(before):
            return None
        typed = now.before[len(before) :]
        if len(typed) < len(self.text) and self.text.startswith(typed):
            return self.text[len(typed) :]
        return None


class TypeAhead:
    """The last predictions of the documents that were worked in last."""

    def __init__(self) -> None:
        self._by_uri: OrderedDict[str, deque[_Prediction]] = OrderedDict()

    def store(self, uri: str, surroundings: Surroundings, text: str) -> None:
        """text: what was offered at that place; not empty."""
        predictions = self._by_uri.setdefault(uri, deque(maxlen=_MAX_PREDICTIONS))
        predictions.appendleft(_Prediction(surroundings, text))
        self._by_uri.move_to_end(uri)
        while len(self._by_uri) > _MAX_DOCUMENTS:
            self._by_uri.popitem(last=False)

    def rest(self, uri: str, surroundings: Surroundings) -> str | None:
        """What the newest prediction that fits has left; None if none fits or nothing is left.
        Going back to where a prediction was made finds it again."""
        for prediction in self._by_uri.get(uri, ()):
            rest = prediction.rest(surroundings)
            if rest is not None:
                return rest
        return None

    def forget(self, uri: str) -> None:
        self._by_uri.pop(uri, None)
