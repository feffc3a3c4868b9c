"""What a telemetry sample says about sessions and about the server."""

from __future__ import annotations

import msgspec

from paceline_protocol.responses import GateState


class SessionTelemetry(msgspec.Struct, frozen=True, kw_only=True):
    """One lane of one connection, as of its last step.

    session_id: the connection. lane: its `stream_id`, None for the lane without a name. active: a
    response is running. reason: why the gate is where it is: the gate, a colon, the cause, and
    behind a semicolon what was measured of the session lately, if anything. acceptance: over the
    last examined positions, 64 at most; None before any. accepted_per_position[i]: how often a
    draft's position i became output. examined_per_position[i], passed_per_position[i]: how often it
    was tested, and passed, by the token rule whatever rule was used; passed / examined is the
    acceptance at that depth. gamma_histogram[g]: steps that drafted g tokens. tokens_per_step:
    committed tokens per target pass. tokens_per_second: over the last two seconds. The *_ms fields
    are this lane's share of the server's step that is told with it, 0 if it took no part in that.
    """

    session_id: str
    lane: str | None
    active: bool
    gate: GateState
    reason: str
    drafter: str
    acceptance: float | None
    accepted_per_position: list[int]
    examined_per_position: list[int]
    passed_per_position: list[int]
    gamma_histogram: list[int]
    tokens_per_step: float | None
    tokens_per_second: float | None
    time_to_first_token_ms: float | None
    draft_ms: float
    verify_ms: float
    sample_ms: float
    other_ms: float


class ServerTelemetry(msgspec.Struct, frozen=True, kw_only=True):
    """The engine as a whole. The step is the one that the sessions' times are shares of.

    tokens_per_second: over the last two seconds. num_rows: token rows in the step's target pass.
    predicted_step_ms: by the cost table, None
    while there is none. break_even_rows: above it a step is compute-bound and drafting cannot pay.
    """

    num_sessions: int
    num_running: int
    num_waiting: int
    num_blocks: int
    num_free_blocks: int
    num_cached_blocks: int
    num_rows: int
    tokens_per_second: float | None
    draft_ms: float
    verify_ms: float
    sample_ms: float
    other_ms: float
    measured_step_ms: float | None
    predicted_step_ms: float | None = None
    break_even_rows: int | None = None
