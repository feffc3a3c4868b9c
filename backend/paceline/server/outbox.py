"""What waits to be written to one connection: bounded, merged, then numbered.

    Session --put--> [ lifecycle and delta events, in order ] --take--> writer --> socket
                     [ one latest sample per telemetry scope ]

* A delta is appended to the last waiting delta of its item, if nothing of that response came
  between and it stays small enough for one frame: many clients refuse one of more than 1 MiB.
  Responses in other lanes don't stand in the way, so what a slow reader costs grows with the
  number of its responses, not with the number of steps.
* Sequence numbers are given out by `take`, after merging: gapless per response, in writing order.
* Lifecycle events are never dropped. Telemetry is: only the latest sample of a scope waits.
* Over `max_bytes` the reader is hopeless and `is_over_limit` says so; the shell then cuts it off.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from paceline_protocol.events import (
    ContentPartDone,
    DeltaTokens,
    ErrorEvent,
    FunctionCallArgumentsDelta,
    FunctionCallArgumentsDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ResponseCompleted,
    ResponseFailed,
    ResponseIncomplete,
)

if TYPE_CHECKING:
    from paceline_protocol.events import ServerEvent, TelemetrySample

EVENT_OVERHEAD_BYTES = 400
_MAX_PARTS = 64
_MAX_DELTA_BYTES = 64 * 1024
"""Of one delta that waits, by `_weight`. As JSON with everything escaped it is at most six times as
long, well under what clients take by default."""
TERMINAL_EVENTS = (ResponseCompleted, ResponseIncomplete, ResponseFailed)
Delta = OutputTextDelta | FunctionCallArgumentsDelta | ReasoningTextDelta


@dataclass(slots=True)
class _Waiting:
    event: ServerEvent
    response_id: str | None
    num_bytes: int
    deltas: list[Delta] = field(default_factory=list)


class Outbox:
    """Used from the event loop only. `take` never waits; the shell is woken by its own means."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._waiting: deque[_Waiting] = deque()
        self._last: dict[str, _Waiting] = {}
        self._samples: dict[str, TelemetrySample] = {}
        self._next_numbers: dict[str, int] = {}
        self._next_sample_number = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._samples)

    @property
    def is_over_limit(self) -> bool:
        return self.num_bytes > self.max_bytes

    def put(self, event: ServerEvent, response_id: str | None = None) -> None:
        """Queue an event. `response_id` is None for events that belong to no response."""
        num_bytes = _weight(event)
        self.num_bytes += num_bytes
        if isinstance(event, Delta) and response_id is not None:
            last = self._last.get(response_id)
            if last is not None and last.deltas and last.deltas[0].item_id == event.item_id:
                if last.num_bytes + num_bytes <= _MAX_DELTA_BYTES:
                    last.deltas.append(event)
                    last.num_bytes += num_bytes
                    if len(last.deltas) == _MAX_PARTS:
                        self._compact(last)
                    return
                self._compact(last)
            waiting = _Waiting(event, response_id, num_bytes, [event])
        else:
            waiting = _Waiting(event, response_id, num_bytes)
        self._waiting.append(waiting)
        if response_id is not None:
            self._last[response_id] = waiting

    def put_sample(self, sample: TelemetrySample) -> None:
        """Queue a telemetry sample in place of an older one of the same scope."""
        self._samples[sample.scope] = sample

    def take(self) -> ServerEvent | None:
        """The next event with its final sequence number, or None when nothing waits.

        Samples come last: they tell the present, and lifecycle events are what a reader waits for.
        """
        if self._waiting:
            return self._number(self._waiting.popleft())
        if self._samples:
            scope = next(iter(self._samples))
            sample = self._samples.pop(scope)
            number = self._next_sample_number
            self._next_sample_number += 1
            return msgspec.structs.replace(sample, sequence_number=number)
        return None

    def clear(self) -> None:
        """Drop everything: the connection is gone."""
        self._waiting.clear()
        self._last.clear()
        self._samples.clear()
        self.num_bytes = 0

    def _compact(self, waiting: _Waiting) -> None:
        """Join the parts early: the text then costs its bytes and not an object a step."""
        merged = _merge(waiting.deltas)
        num_bytes = _weight(merged)
        self.num_bytes += num_bytes - waiting.num_bytes
        waiting.num_bytes = num_bytes
        waiting.event = merged
        waiting.deltas = [merged]

    def _number(self, waiting: _Waiting) -> ServerEvent:
        self.num_bytes -= waiting.num_bytes
        response_id = waiting.response_id
        if response_id is None or isinstance(waiting.event, ErrorEvent):
            return waiting.event
        if self._last.get(response_id) is waiting:
            del self._last[response_id]
        number = self._next_numbers.get(response_id, 0)
        if isinstance(waiting.event, TERMINAL_EVENTS):
            self._next_numbers.pop(response_id, None)
        else:
            self._next_numbers[response_id] = number + 1
        event = _merge(waiting.deltas) if len(waiting.deltas) > 1 else waiting.event
        return msgspec.structs.replace(event, sequence_number=number)


def _merge(deltas: list[Delta]) -> Delta:
    """One delta for several of the same item."""
    first = deltas[0]
    text = "".join(delta.delta for delta in deltas)
    if not isinstance(first, OutputTextDelta):
        return msgspec.structs.replace(first, delta=text)
    texts = [delta for delta in deltas if isinstance(delta, OutputTextDelta)]
    tokens = [
        token for delta in texts if delta.paceline is not UNSET for token in delta.paceline.tokens
    ]
    return msgspec.structs.replace(
        first,
        delta=text,
        logprobs=[logprob for delta in texts for logprob in delta.logprobs],
        paceline=DeltaTokens(tokens=tokens) if tokens else UNSET,
    )


def _weight(event: ServerEvent) -> int:
    """Roughly the memory that the event takes while it waits."""
    match event:
        case OutputTextDelta():
            num_tokens = 0 if event.paceline is UNSET else len(event.paceline.tokens)
            num_logprobs = sum(1 + len(each.top_logprobs) for each in event.logprobs)
            return len(event.delta) + 64 * (1 + num_tokens + num_logprobs)
        case FunctionCallArgumentsDelta() | ReasoningTextDelta():
            return len(event.delta) + 64
        case OutputTextDone() | ReasoningTextDone():
            return EVENT_OVERHEAD_BYTES + len(event.text)
        case FunctionCallArgumentsDone():
            return EVENT_OVERHEAD_BYTES + len(event.arguments)
        case ContentPartDone():
            return EVENT_OVERHEAD_BYTES + len(event.part.text)
        case ResponseCompleted() | ResponseIncomplete() | ResponseFailed():
            return 2 * EVENT_OVERHEAD_BYTES + len(event.response.output_text)
        case _:
            return EVENT_OVERHEAD_BYTES
