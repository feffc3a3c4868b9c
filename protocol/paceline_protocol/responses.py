"""The response object, as it stands in lifecycle events."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from paceline_protocol.items import OutputItem

ResponseStatus = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
GateState = Literal["on", "off", "probing"]


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """cached_tokens: prompt tokens whose K/V was found. cache_write_tokens: always 0, we charge
    nothing for writing; official clients want it there."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. Output tokens are the committed ones; drafts that were rejected don't count."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens", "content_filter"]


class ResponseError(msgspec.Struct, frozen=True, kw_only=True):
    """Why a response failed. code: one of those that official clients know. type: our own finer
    code (an `ErrorCode`)."""

    code: Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]
    message: str
    type: str | None = None


class PacelineSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What speculation did for one response.

    num_examined: drafted positions tested up to the first failure of each round. acceptance: the
    share of them that passed, by the token rule whatever rule was used; None when nothing was
    examined. accepted_per_position[i]: how often the draft's position i became output.
    examined_per_position[i], passed_per_position[i]: how often it was tested, and passed, by the
    token rule. tokens_per_step: committed tokens per target pass, 1 for plain decoding.
    tokens_per_second: of the time from the prompt's first step to the end. The *_ms fields are this
    response's share of wall time; expected_plain_ms is what plain decoding would have taken by the
    server's cost table, None while there is none.
    """

    num_drafted: int
    num_examined: int
    num_accepted: int
    acceptance: float | None
    tokens_per_step: float | None
    accepted_per_position: list[int]
    examined_per_position: list[int]
    passed_per_position: list[int]
    drafter: str
    gate: GateState
    reason: str
    time_to_first_token_ms: float | None
    tokens_per_second: float | None
    draft_ms: float
    verify_ms: float
    sample_ms: float
    other_ms: float
    cached_tokens: int
    expected_plain_ms: float | None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """One response. created_at, completed_at: seconds since 1970. Fields that a finished response
    holds and a running one doesn't yet are null."""

    id: str
    created_at: float
    model: str
    status: ResponseStatus
    output: list[OutputItem]
    object: Literal["response"] = "response"
    background: bool = False
    completed_at: float | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    store: bool = False
    temperature: float | None = None
    tool_choice: Any = "auto"
    tools: list[Any] = msgspec.field(default_factory=list)
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["disabled"] = "disabled"
    usage: ResponseUsage | None = None
    paceline: PacelineSummary | None = None

    @property
    def output_text(self) -> str:
        """The text of all messages, joined."""
        return "".join(part.text for item in self.output for part in getattr(item, "content", ()))
