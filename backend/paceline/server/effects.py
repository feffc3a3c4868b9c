"""What a session asks its shell to do. Values only; the shell carries them out in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.core.request import Grammar, Request
    from paceline.server.prompts import Prompt
    from paceline_protocol.events import ServerEvent
    from paceline_protocol.requests import TelemetryScope, TelemetrySubscribe


@dataclass(frozen=True, slots=True)
class EncodePrompt:
    """Turn a prompt into token ids and make the grammar ready, off the event loop, then call
    `Session.on_prompt_ready` or `Session.on_prompt_failed` with the same `response_id`."""

    response_id: str
    prompt: Prompt
    grammar: Grammar | None = None


@dataclass(frozen=True, slots=True)
class Submit:
    """Give the request to the engine. If that raises, call `Session.on_submit_failed`."""

    request: Request


@dataclass(frozen=True, slots=True)
class Cancel:
    """Tell the engine to end a request; its `FinishEvent` still comes."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Send:
    """Put an event into the outbox. `response_id` names the response whose sequence numbers it
    takes part in; None for events outside of any."""

    event: ServerEvent
    response_id: str | None = None


@dataclass(frozen=True, slots=True)
class Watch:
    """Send telemetry samples from now on, in place of what the same scope had before."""

    message: TelemetrySubscribe


@dataclass(frozen=True, slots=True)
class Unwatch:
    """Send no more samples of a scope."""

    scope: TelemetryScope


@dataclass(frozen=True, slots=True)
class Close:
    """Close the socket; nothing follows. flush: write out first what the outbox holds."""

    code: int
    reason: str
    flush: bool = True


Effect = EncodePrompt | Submit | Cancel | Send | Watch | Unwatch | Close
