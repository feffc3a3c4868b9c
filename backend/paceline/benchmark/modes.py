"""How requests ask for speculation, and how much load there is: what a benchmark compares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.core.errors import ConfigError

if TYPE_CHECKING:
    from paceline_protocol.requests import DrafterChoice, SpeculationChoice

_DEEPEST = 16


@dataclass(frozen=True, slots=True)
class Mode:
    """name: as written on the command line."""

    name: str
    speculation: SpeculationChoice
    drafter: DrafterChoice | None = None
    depth: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The `paceline` object of a request."""
        values = {
            "speculation": self.speculation,
            "drafter": self.drafter,
            "num_speculative_tokens": self.depth,
        }
        return {name: value for name, value in values.items() if value is not None}


PLAIN = Mode("off", "off")
ADAPTIVE = Mode("auto", "auto")


def parse_mode(text: str) -> Mode:
    """`off`, `auto`, `fixed:N` (the server's draft model, N tokens in every step) or `ngram:N`.

    Raises ConfigError for anything else.
    """
    if text in ("off", "auto"):
        return PLAIN if text == "off" else ADAPTIVE
    kind, _, number = text.partition(":")
    if kind in ("fixed", "ngram") and number.isdigit() and 1 <= int(number) <= _DEEPEST:
        return Mode(text, "on", "model" if kind == "fixed" else "ngram", int(number))
    raise ConfigError(
        f"mode is {text!r}; it must be off, auto, fixed:N or ngram:N, N from 1 to {_DEEPEST}",
        field="mode",
    )


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many sessions, each of which asks again as soon as it is answered, so many times or more:
    as long as the slowest one needs."""

    sessions: int
    requests: int

    @property
    def name(self) -> str:
        return f"{self.sessions} session{'s' if self.sessions > 1 else ''}"

    @property
    def size(self) -> float:
        """Where it stands on an axis."""
        return self.sessions


@dataclass(frozen=True, slots=True)
class Poisson:
    """Requests that come at random and don't wait for one another. rate: of them per second."""

    rate: float
    seconds: float
    seed: int = 0

    @property
    def name(self) -> str:
        return f"{self.rate:g}/s"

    @property
    def size(self) -> float:
        """Where it stands on an axis."""
        return self.rate


Load = ClosedLoop | Poisson
