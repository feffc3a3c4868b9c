"""What stands around the cursor, and how much of it is sent."""

from __future__ import annotations

from dataclasses import dataclass

_STEP_SHARE = 4


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The text before and behind the cursor, all of it, with line ends as LF."""

    before: str
    after: str

    @classmethod
    def of(cls, text: str, offset: int) -> Surroundings:
        return cls(_with_lf(text[:offset]), _with_lf(text[offset:]))

    @property
    def line_before(self) -> str:
        """The cursor's line up to the cursor."""
        return self.before[self.before.rfind("\n") + 1 :]

    @property
    def line_after(self) -> str:
        """The cursor's line from the cursor on."""
        return self.after.partition("\n")[0]

    @property
    def lines_below(self) -> str:
        """What follows the cursor's line."""
        return self.after.partition("\n")[2]

    def prefix(self, max_characters: int) -> str:
        """The end of what stands before, from the start of a line where there is one.

        Where it begins moves by a quarter of its size at a time, so that it stays the same while
        somebody types and the server's prefix cache serves all but the newest tokens. (The server
        cuts by tokens in the same way; this only keeps messages of huge documents small.)
        """
        excess = len(self.before) - max_characters
        if excess <= 0:
            return self.before
        step = max(1, max_characters // _STEP_SHARE)
        start = -(-excess // step) * step
        line_end = self.before.find("\n", start, start + step)
        return self.before[start if line_end < 0 else line_end + 1 :]

    def suffix(self, max_characters: int) -> str:
        """The beginning of what stands behind, in whole lines where there are any."""
        if len(self.after) <= max_characters:
            return self.after
        line_end = self.after.rfind("\n", 0, max_characters)
        return self.after[: max_characters if line_end < 0 else line_end + 1]


def _with_lf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")
