"""Client events: everything that a client may send.

Messages of the OpenAI vocabulary (`response.create`) are lenient: fields that are not listed are
ignored. Messages and objects of our own are strict: a field that is not listed is an error, so
that a misspelt parameter is never silently dropped.

Every client event may carry a `stream_id`, the name of a lane. Responses of one lane run one after
the other, lanes run in parallel, and every event that answers it carries the same `stream_id`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from paceline_protocol.items import AtLeastOne, InputItem, NonNegativeInt

SpeculationChoice = Literal["auto", "on", "off"]
DrafterChoice = Literal["auto", "model", "ngram", "none"]
TelemetryScope = Literal["session", "server"]
ToolFormat = Literal["hermes", "llama", "mistral", "granite", "generic"]
PacelineInclude = Literal["tokens"]

Temperature = Annotated[
    float, Meta(ge=0, description="0 is greedy; else the logits are divided by it.")
]
TopP = Annotated[
    float, Meta(gt=0, le=1, description="Smallest set of tokens whose mass reaches this.")
]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
StreamId = Annotated[str, Meta(min_length=1, max_length=128)]


class GrammarOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the whole answer must look like; exactly one field is set.

    regex: a regular expression (Rust's syntax, matched as a whole). choice: one of these texts.
    lark: a grammar in Lark's EBNF, from its rule `start`. json_schema: JSON that fits this schema.
    """

    regex: str | None = None
    choice: list[str] | None = None
    lark: str | None = None
    json_schema: dict[str, Any] | bool | None = None


class PacelineOptions(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """What the OpenAI schema has no place for. null means the server's default.

    top_k: 0 keeps all tokens. logit_bias: from token id to what is added to its logit.
    speculation: `auto` lets the server's gates decide, with `num_speculative_tokens` as an upper
    bound; `on` drafts that many, or as many as the drafter can; `off` is plain decoding. include:
    `tokens` adds to each text delta the tokens behind it and where each came from. grammar: bounds
    the answer's text; `text.format` does the same for JSON in the OpenAI vocabulary. tool_format:
    how the model writes tool calls, where the server's reading of the chat template is wrong.
    """

    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    top_k: NonNegativeInt | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    min_tokens: NonNegativeInt | None = None
    banned_token_ids: list[NonNegativeInt] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[NonNegativeInt] | None = None
    speculation: SpeculationChoice | None = None
    num_speculative_tokens: Annotated[int, Meta(ge=0, le=16)] | None = None
    drafter: DrafterChoice | None = None
    include: list[PacelineInclude] | None = None
    grammar: GrammarOptions | None = None
    tool_format: ToolFormat | None = None

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """`stop` in its one-or-many form made plain."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class ResponseCreate(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="response.create",
    omit_defaults=True,
):
    """Ask for a response.

    generate: false prepares the prompt's state and returns a response without output.
    previous_response_id: continue after that response of this connection; instructions are not
    inherited.

    tools, tool_choice, text, background, conversation and prompt are kept as they came: they would
    change the answer, and a server that does not serve them refuses them by name.
    """

    input: str | list[InputItem] | None = None
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    generate: bool | None = None
    store: bool | None = None
    parallel_tool_calls: bool | None = None
    stream_id: StreamId | None = None
    paceline: PacelineOptions | None = None
    tools: Any = None
    tool_choice: Any = None
    text: Any = None
    background: Any = None
    conversation: Any = None
    prompt: Any = None


class CompletionCreate(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="completion.create",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Continue raw text, or fill in between `prompt` and `suffix`. The events are those of a
    response; no chat template is applied and nothing is kept for a next turn.

    suffix: even an empty one makes the two the surroundings of a gap: the model's own tokens for
    filling in are used if it has any, what does not fit is left out at the far ends, and the
    default length is short. Without it `prompt` must fit as it is.

    prompt: a text, or its token ids exactly as the model shall see them.
    top_logprobs: each text delta carries the log-probabilities of its tokens and of so many
    alternatives; 0 asks for those of the tokens alone.
    """

    prompt: str | list[NonNegativeInt]
    suffix: str | None = None
    max_output_tokens: AtLeastOne | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    stream_id: StreamId | None = None
    paceline: PacelineOptions | None = None


class ResponseCancel(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="response.cancel",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Stop a response: by its id, or whatever runs and waits in a lane. It ends with
    `response.incomplete`, status `cancelled`."""

    response_id: str | None = None
    stream_id: StreamId | None = None


class TelemetrySubscribe(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="telemetry.subscribe",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """Ask for `telemetry.sample` events: of this connection's lanes, or of the whole server (for
    admins). A second subscription to the same scope replaces the first."""

    scope: TelemetryScope = "session"
    interval_ms: Annotated[int, Meta(ge=50, le=60_000)] = 500
    stream_id: StreamId | None = None


class TelemetryUnsubscribe(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag_field="type",
    tag="telemetry.unsubscribe",
    forbid_unknown_fields=True,
    omit_defaults=True,
):
    """End the subscription to a scope; nothing happens if there is none."""

    scope: TelemetryScope = "session"
    stream_id: StreamId | None = None


ClientEvent = (
    ResponseCreate | CompletionCreate | ResponseCancel | TelemetrySubscribe | TelemetryUnsubscribe
)
CLIENT_EVENTS: tuple[type[ClientEvent], ...] = (
    ResponseCreate,
    CompletionCreate,
    ResponseCancel,
    TelemetrySubscribe,
    TelemetryUnsubscribe,
)
