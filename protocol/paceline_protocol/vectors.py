"""Golden messages: at least one of every kind, with every optional field somewhere.

Written to `protocol/vectors/` in both encodings, they let an implementation in any language check
itself, and they are the examples of the AsyncAPI document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from paceline_protocol import messages as m
from paceline_protocol.codecs import JSON_CODEC, MSGPACK_CODEC
from paceline_protocol.errors import ErrorCode

if TYPE_CHECKING:
    from msgspec import Struct


class Vector(NamedTuple):
    """One message with a name that says what it shows."""

    name: str
    message: Struct

    def written(self) -> dict[str, str]:
        """The message in both encodings, MessagePack as hexadecimal digits."""
        json_text = JSON_CODEC.encode(self.message)
        return {
            "name": self.name,
            "json": json_text,
            "msgpack": MSGPACK_CODEC.encode(self.message).hex(),
        }


_SUMMARY = m.PacelineSummary(
    num_drafted=12,
    num_examined=10,
    num_accepted=8,
    acceptance=0.8,
    tokens_per_step=3.0,
    accepted_per_position=[3, 3, 2, 0],
    examined_per_position=[3, 3, 3, 1],
    passed_per_position=[3, 3, 2, 0],
    drafter="model",
    gate="on",
    reason="on: acceptance 0.80 over 10 examined",
    time_to_first_token_ms=41.5,
    tokens_per_second=96.25,
    draft_ms=18.5,
    verify_ms=88.0,
    sample_ms=6.25,
    other_ms=2.5,
    cached_tokens=16,
    expected_plain_ms=250.0,
)
_USAGE = m.ResponseUsage(
    input_tokens=21,
    input_tokens_details=m.InputTokensDetails(cached_tokens=16),
    output_tokens=12,
    output_tokens_details=m.OutputTokensDetails(),
    total_tokens=33,
)
_LOGPROB = m.Logprob(
    token=" hé",
    logprob=-0.25,
    bytes=[32, 104, 195, 169],
    top_logprobs=[m.TopLogprob(token=" hi", logprob=-1.5, bytes=[32, 104, 105])],
)
_MESSAGE_ID = "msg_0123456789abcdef"


def _part(text: str, logprobs: list[m.Logprob] | None = None) -> m.OutputText:
    return m.OutputText(text=text, annotations=[], logprobs=logprobs)


def _running(status: m.ResponseStatus = "in_progress") -> m.Response:
    return m.Response(
        id="resp_0123456789abcdef",
        created_at=1_700_000_000.5,
        model="SmolLM2-135M-Instruct",
        status=status,
        output=[],
        instructions="Be brief.",
        max_output_tokens=64,
        metadata={"topic": "generators"},
        previous_response_id="resp_fedcba9876543210",
        temperature=0.7,
        top_p=0.95,
        top_logprobs=1,
    )


def _finished(
    status: m.ResponseStatus,
    text: str,
    *,
    incomplete_details: m.IncompleteDetails | None = None,
    error: m.ResponseError | None = None,
) -> m.Response:
    message = m.OutputMessage(
        id=_MESSAGE_ID,
        status="completed" if status == "completed" else "incomplete",
        content=[_part(text)],
    )
    return m.Response(
        id="resp_0123456789abcdef",
        created_at=1_700_000_000.5,
        model="SmolLM2-135M-Instruct",
        status=status,
        output=[message],
        completed_at=1_700_000_001.75,
        error=error,
        incomplete_details=incomplete_details,
        usage=_USAGE,
        paceline=_SUMMARY,
    )


CLIENT_VECTORS: tuple[Vector, ...] = (
    Vector("smallest response", m.ResponseCreate(input="Explain what a Python generator is.")),
    Vector(
        "response with items, lane and native options",
        m.ResponseCreate(
            model="SmolLM2-135M-Instruct",
            instructions="Be brief.",
            input=[
                m.MessageItem(role="user", content="Grüße 🚴"),
                m.MessageItem(
                    role="assistant",
                    id=_MESSAGE_ID,
                    status="completed",
                    content=[_part("Hello!", [_LOGPROB])],
                ),
                m.MessageItem(role="assistant", content=[m.Refusal(refusal="No.")]),
                m.FunctionCall(
                    call_id="call_1", name="add", arguments='{"a":1}', id="fc_1", status="completed"
                ),
                m.FunctionCallOutput(call_id="call_1", output="3", id="fo_1", status="completed"),
                m.Reasoning(
                    id="rs_1",
                    content=[m.ReasoningText(text="They greet me.")],
                    status="completed",
                ),
                m.MessageItem(role="user", content=[m.InputText(text="Go on.")]),
            ],
            previous_response_id="resp_fedcba9876543210",
            max_output_tokens=64,
            temperature=0.7,
            top_p=0.95,
            top_logprobs=1,
            include=["message.output_text.logprobs"],
            metadata={"topic": "generators"},
            store=False,
            parallel_tool_calls=True,
            stream_id="lane-1",
            paceline=m.PacelineOptions(
                seed=7,
                top_k=40,
                min_p=0.05,
                repetition_penalty=1.1,
                presence_penalty=0.5,
                frequency_penalty=-0.5,
                logit_bias={11: -100.0, 42: 1.5},
                min_tokens=4,
                banned_token_ids=[13],
                stop=["\n\n", "END"],
                stop_token_ids=[2],
                speculation="on",
                num_speculative_tokens=4,
                drafter="model",
                include=["tokens"],
                tool_format="hermes",
            ),
        ),
    ),
    Vector(
        "an answer that must match",
        m.ResponseCreate(
            input="Is water wet?",
            paceline=m.PacelineOptions(grammar=m.GrammarOptions(choice=["yes", "no"])),
        ),
    ),
    Vector(
        "an answer by a grammar",
        m.ResponseCreate(
            input="A date, please.",
            paceline=m.PacelineOptions(grammar=m.GrammarOptions(regex="[0-9]{4}-[0-9]{2}")),
        ),
    ),
    Vector(
        "a completion by a Lark grammar",
        m.CompletionCreate(
            prompt="2 + 2 =",
            paceline=m.PacelineOptions(
                grammar=m.GrammarOptions(lark='start: " " NUMBER\nNUMBER: /[0-9]+/')
            ),
        ),
    ),
    Vector(
        "a completion by a schema",
        m.CompletionCreate(
            prompt="A JSON number:",
            paceline=m.PacelineOptions(grammar=m.GrammarOptions(json_schema={"type": "number"})),
        ),
    ),
    Vector(
        "warm-up without output",
        m.ResponseCreate(instructions="You are a helpful assistant.", input=[], generate=False),
    ),
    Vector(
        "fields that a server may have to refuse",
        m.ResponseCreate(
            input="What is the weather?",
            tools=[{"type": "function", "name": "weather", "parameters": {"type": "object"}}],
            tool_choice="required",
            text={"format": {"type": "json_object"}},
            background=True,
            conversation="conv_1",
            prompt={"id": "pmpt_1"},
        ),
    ),
    Vector("completion", m.CompletionCreate(prompt="def fibonacci(n):\n")),
    Vector(
        "fill-in-the-middle",
        m.CompletionCreate(
            prompt="def add(a, b):\n    ",
            suffix="\n\nprint(add(1, 2))\n",
            max_output_tokens=32,
            temperature=0.0,
            top_p=1.0,
            stream_id="document-1",
            paceline=m.PacelineOptions(stop="\n\n", drafter="ngram", speculation="auto"),
        ),
    ),
    Vector(
        "completion of token ids with log-probabilities",
        m.CompletionCreate(prompt=[504, 3575, 282], top_logprobs=2, max_output_tokens=1),
    ),
    Vector("cancel by id", m.ResponseCancel(response_id="resp_0123456789abcdef")),
    Vector("cancel a lane", m.ResponseCancel(stream_id="lane-1")),
    Vector("watch this session", m.TelemetrySubscribe()),
    Vector(
        "watch the server",
        m.TelemetrySubscribe(scope="server", interval_ms=250, stream_id="dashboard"),
    ),
    Vector("stop watching", m.TelemetryUnsubscribe(scope="server")),
)

_SESSION = m.SessionTelemetry(
    session_id="sess_0123456789abcdef",
    lane="lane-1",
    active=True,
    gate="off",
    reason="off: acceptance 0.31 over 64 examined",
    drafter="model",
    acceptance=0.3125,
    accepted_per_position=[12, 6, 2],
    examined_per_position=[32, 20, 12],
    passed_per_position=[11, 6, 2],
    gamma_histogram=[10, 0, 2, 30],
    tokens_per_step=1.5,
    tokens_per_second=88.5,
    time_to_first_token_ms=35.0,
    draft_ms=4.5,
    verify_ms=11.0,
    sample_ms=1.25,
    other_ms=0.25,
)
_SERVER = m.ServerTelemetry(
    num_sessions=3,
    num_running=2,
    num_waiting=1,
    num_blocks=4096,
    num_free_blocks=3900,
    num_cached_blocks=150,
    num_rows=10,
    tokens_per_second=240.0,
    draft_ms=4.5,
    verify_ms=12.0,
    sample_ms=1.5,
    other_ms=0.5,
    measured_step_ms=18.5,
    predicted_step_ms=18.0,
    break_even_rows=22,
)

SERVER_VECTORS: tuple[Vector, ...] = (
    Vector("taken", m.ResponseCreated(sequence_number=0, response=_running("queued"))),
    Vector("running", m.ResponseInProgress(sequence_number=1, response=_running())),
    Vector(
        "message begins",
        m.OutputItemAdded(
            sequence_number=2,
            output_index=0,
            item=m.OutputMessage(id=_MESSAGE_ID, status="in_progress", content=[]),
        ),
    ),
    Vector(
        "part begins",
        m.ContentPartAdded(
            sequence_number=3,
            item_id=_MESSAGE_ID,
            output_index=0,
            content_index=0,
            part=_part(""),
        ),
    ),
    Vector(
        "text",
        m.OutputTextDelta(
            sequence_number=4,
            item_id=_MESSAGE_ID,
            output_index=0,
            content_index=0,
            delta="Grüße 🚴",
        ),
    ),
    Vector(
        "text with lane, log-probabilities and tokens",
        m.OutputTextDelta(
            sequence_number=5,
            stream_id="lane-1",
            item_id=_MESSAGE_ID,
            output_index=0,
            content_index=0,
            delta=" hé, a generator is",
            logprobs=[_LOGPROB],
            paceline=m.DeltaTokens(
                tokens=[
                    m.SourcedToken(id=310, text=" hé", source="accepted"),
                    m.SourcedToken(id=28, text=",", source="residual"),
                    m.SourcedToken(id=253, text=" a generator", source="bonus"),
                    m.SourcedToken(id=314, text=" is", source="plain"),
                ]
            ),
        ),
    ),
    Vector(
        "text ends",
        m.OutputTextDone(
            sequence_number=6,
            item_id=_MESSAGE_ID,
            output_index=0,
            content_index=0,
            text="Grüße 🚴",
            logprobs=[_LOGPROB],
        ),
    ),
    Vector(
        "part ends",
        m.ContentPartDone(
            sequence_number=7,
            item_id=_MESSAGE_ID,
            output_index=0,
            content_index=0,
            part=_part("Grüße 🚴", [_LOGPROB]),
        ),
    ),
    Vector(
        "message ends",
        m.OutputItemDone(
            sequence_number=8,
            output_index=0,
            item=m.OutputMessage(id=_MESSAGE_ID, status="completed", content=[_part("Grüße 🚴")]),
        ),
    ),
    Vector(
        "arguments",
        m.FunctionCallArgumentsDelta(
            sequence_number=9, item_id="fc_1", output_index=1, delta='{"a":'
        ),
    ),
    Vector(
        "arguments end",
        m.FunctionCallArgumentsDone(
            sequence_number=10, item_id="fc_1", output_index=1, name="add", arguments='{"a":1}'
        ),
    ),
    Vector(
        "thought",
        m.ReasoningTextDelta(
            sequence_number=3, item_id="rs_1", output_index=0, content_index=0, delta="They greet"
        ),
    ),
    Vector(
        "thought ends",
        m.ReasoningTextDone(
            sequence_number=4,
            item_id="rs_1",
            output_index=0,
            content_index=0,
            text="They greet me.",
        ),
    ),
    Vector(
        "function call ends",
        m.OutputItemDone(
            sequence_number=9,
            output_index=1,
            item=m.FunctionCall(
                id="fc_1", call_id="call_1", name="add", arguments="{}", status="completed"
            ),
        ),
    ),
    Vector(
        "completed",
        m.ResponseCompleted(sequence_number=10, response=_finished("completed", "Grüße 🚴")),
    ),
    Vector(
        "cut by a length limit",
        m.ResponseIncomplete(
            sequence_number=9,
            response=_finished(
                "incomplete",
                "A generator is",
                incomplete_details=m.IncompleteDetails(reason="max_output_tokens"),
            ),
        ),
    ),
    Vector(
        "cancelled",
        m.ResponseIncomplete(
            sequence_number=9, stream_id="lane-1", response=_finished("cancelled", "A gen")
        ),
    ),
    Vector(
        "failed",
        m.ResponseFailed(
            sequence_number=5,
            response=_finished(
                "failed",
                "A",
                error=m.ResponseError(
                    code="server_error",
                    message="the model's output was not a number",
                    type="non_finite_logits",
                ),
            ),
        ),
    ),
    Vector(
        "refused",
        m.ErrorEvent.of(
            ErrorCode.INVALID_VALUE,
            "top_p is 1.5; it must be a number above 0 and at most 1",
            param="top_p",
            stream_id="lane-1",
        ),
    ),
    Vector(
        "not a message",
        m.ErrorEvent.of(ErrorCode.INVALID_JSON, "the message is not valid JSON"),
    ),
    Vector(
        "this session's telemetry",
        m.TelemetrySample(
            sequence_number=0,
            scope="session",
            time=1_700_000_000.5,
            sessions=[_SESSION],
            ledger_level_ms=0.0,
        ),
    ),
    Vector(
        "the server's telemetry",
        m.TelemetrySample(
            sequence_number=1,
            stream_id="dashboard",
            scope="server",
            time=1_700_000_000.75,
            sessions=[],
            ledger_level_ms=2.5,
            ledger_capacity_ms=50.0,
            server=_SERVER,
        ),
    ),
)
