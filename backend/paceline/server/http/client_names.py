"""What a client's body calls what our own message calls otherwise.

Errors come up where our own message is checked. The client sent another body and has never seen
that message, so both the path of what is wrong and the sentence about it are put into its words.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline_protocol.errors import ProtocolError
    from paceline_protocol.events import ErrorDetails


class ClientNames:
    """paths: from where a path in our own message begins to where it begins in the client's body.
    The longest one that fits counts."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = dict(paths)
        longest_first = sorted(paths, key=lambda path: (-len(path), path))
        # A path that is an English word too is one only where the sentence is about it.
        subjects = [re.escape(path) for path in longest_first if path.isalpha()]
        others = [re.escape(path) for path in longest_first if not path.isalpha()]
        never = r"(?!)"
        self._mentions = re.compile(
            rf"(?:^(?:{'|'.join(subjects) or never})|(?<![\w.])(?:{'|'.join(others) or never}))"
            r"(?![\w])"
        )

    def path(self, ours: str) -> str:
        """The client's own path for one in our message."""
        for begin in sorted(self._paths, key=len, reverse=True):
            if ours == begin or ours.startswith((f"{begin}.", f"{begin}[")):
                return self._paths[begin] + ours[len(begin) :]
        return ours

    def sentence(self, ours: str) -> str:
        """The same sentence with the client's paths in it."""
        return self._mentions.sub(lambda found: self._paths[found.group()], ours)

    def details(self, ours: ErrorDetails) -> ErrorDetails:
        """The same error in the client's words."""
        return msgspec.structs.replace(
            ours,
            param=None if ours.param is None else self.path(ours.param),
            message=self.sentence(ours.message),
        )

    def put_into(self, error: ProtocolError) -> None:
        """Change an error to the client's words."""
        error.param = None if error.param is None else self.path(error.param)
        error.message = self.sentence(error.message)
