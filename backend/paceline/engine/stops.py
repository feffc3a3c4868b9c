"""Stop strings over streamed text: what may be shown already, and where the output ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopScanner:
    """Holds back the shortest tail of the text that might still grow into a stop string.

    `push` text as it becomes certain. After a match nothing more may be pushed.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.match: str | None = None

    def push(self, text: str) -> str:
        """Text that may be shown now. Sets `match` at the earliest stop string; on a tie of their
        starts the longest one counts, and nothing from its start on is ever shown."""
        if not self._stops:
            return text
        held = self._held + text
        places = [(held.find(stop), -len(stop), stop) for stop in self._stops]
        found = [place for place in places if place[0] >= 0]
        if found:
            start, _, self.match = min(found)
            self._held = ""
            return held[:start]
        keep = max(_overlap(held, stop) for stop in self._stops)
        split = len(held) - keep
        self._held = held[split:]
        return held[:split]

    def flush(self) -> str:
        """What was held back, once it is known that nothing follows."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    for size in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
