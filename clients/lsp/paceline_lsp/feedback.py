"""What became of the completions that were offered. Counted, never sent anywhere by itself."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass

_MAX_KEPT = 256


@dataclass(slots=True)
class Counts:
    """offered, shown, accepted, partly_accepted: completions. *_characters: of their text, in
    UTF-16 code units, as editors count."""

    offered: int = 0
    shown: int = 0
    accepted: int = 0
    partly_accepted: int = 0
    offered_characters: int = 0
    accepted_characters: int = 0


class Feedback:
    """Item ids are given out here and come back in the editor's notifications. Every notification
    counts once for an item; unknown ids (of an earlier run) are ignored."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._number = 0
        self._items: OrderedDict[str, _Item] = OrderedDict()

    def offer(self, length: int) -> str:
        """The id of a new item. length: of its text, in UTF-16 code units."""
        self._number += 1
        item_id = f"completion-{self._number}"
        self._items[item_id] = _Item(length)
        if len(self._items) > _MAX_KEPT:
            self._items.popitem(last=False)
        self.counts.offered += 1
        self.counts.offered_characters += length
        return item_id

    def shown(self, item_id: str) -> None:
        item = self._items.get(item_id)
        if item is not None and not item.is_shown:
            item.is_shown = True
            self.counts.shown += 1

    def partly_accepted(self, item_id: str, accepted_length: int) -> None:
        """accepted_length: of all of it that has been accepted by now, not of the newest part."""
        item = self._items.get(item_id)
        if item is None or item.is_accepted:
            return
        length = min(accepted_length, item.length)
        if item.num_accepted == 0 < length:
            self.counts.partly_accepted += 1
        self.counts.accepted_characters += max(0, length - item.num_accepted)
        item.num_accepted = max(item.num_accepted, length)

    def accepted(self, item_id: str) -> None:
        item = self._items.get(item_id)
        if item is None or item.is_accepted:
            return
        item.is_accepted = True
        self.counts.accepted += 1
        self.counts.accepted_characters += item.length - item.num_accepted

    def as_dict(self) -> dict[str, int]:
        return asdict(self.counts)


@dataclass(slots=True)
class _Item:
    length: int
    is_shown: bool = False
    is_accepted: bool = False
    num_accepted: int = 0
