"""Sampling parameters as HTTP clients name them, on the body's top level.

OpenAI's own, and beside them those that clients of vLLM and llama.cpp send. They become the
`paceline` object of our own messages; that object may be sent as well, and a parameter that stands
in both places is taken from the top level.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.items import NonNegativeInt
from paceline_protocol.requests import (
    GrammarOptions,
    PacelineOptions,
    Penalty,
    Temperature,
    TopP,
)


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """vLLM's name for `paceline.grammar`. json: a schema or its text. grammar: Lark."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all generating endpoints take.

    top_k: -1 and 0 keep all tokens. prompt_cache_key, user: any name that stays the same for a
    client, so that what speculation learns about its texts outlives one request.
    """

    model: str | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: dict[int, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0)] | None = None
    min_tokens: NonNegativeInt | None = None
    stop_token_ids: list[NonNegativeInt] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    paceline: PacelineOptions | None = None
    prompt_cache_key: str | None = None
    user: str | None = None

    @property
    def client_key(self) -> str | None:
        return self.prompt_cache_key or self.user


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """include_usage: one more chunk, the last, with the token counts."""

    include_usage: bool | None = None


def options_of(body: SamplingFields, **more: Any) -> PacelineOptions:
    """The `paceline` object for a body. more: further fields that win over its own."""
    given = {
        "seed": body.seed,
        "stop": body.stop if body.stop != [] else None,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "logit_bias": body.logit_bias,
        "top_k": None if body.top_k is None else max(0, body.top_k),
        "min_p": body.min_p,
        "repetition_penalty": body.repetition_penalty,
        "min_tokens": body.min_tokens,
        "stop_token_ids": body.stop_token_ids,
        "grammar": _grammar(body)[0],
    } | more
    said = {name: value for name, value in given.items() if value is not None}
    return msgspec.structs.replace(body.paceline or PacelineOptions(), **said)


def names_of(body: SamplingFields) -> dict[str, str]:
    """Paths of our own message that stand on the top level of this body."""
    fields = (field.name for field in msgspec.structs.fields(SamplingFields))
    names = {
        f"paceline.{name}": name
        for name in fields
        if hasattr(PacelineOptions, name) and getattr(body, name) is not None
    }
    return names | _grammar(body)[1]


def _grammar(body: SamplingFields) -> tuple[GrammarOptions | None, dict[str, str]]:
    """The grammar under its other names, and where its parts stand in the body. Raises
    ProtocolError."""
    outputs = body.structured_outputs or StructuredOutputs()
    given = {
        "json_schema": (outputs.json, "structured_outputs.json"),
        "regex": (outputs.regex, "structured_outputs.regex"),
        "choice": (outputs.choice, "structured_outputs.choice"),
        "lark": (outputs.grammar, "structured_outputs.grammar"),
    }
    guided = {
        "json_schema": (body.guided_json, "guided_json"),
        "regex": (body.guided_regex, "guided_regex"),
        "choice": (body.guided_choice, "guided_choice"),
        "lark": (body.guided_grammar, "guided_grammar"),
    }
    said = {name: each for name, each in given.items() if each[0] is not None}
    said |= {name: each for name, each in guided.items() if each[0] is not None}
    if not said:
        return None, {}
    names = {f"paceline.grammar.{name}": path for name, (_, path) in said.items()}
    names["paceline.grammar"] = next(iter(names.values())).partition(".")[0]
    values: dict[str, Any] = {name: value for name, (value, _) in said.items()}
    schema = values.get("json_schema")
    if isinstance(schema, str):
        try:
            values["json_schema"] = msgspec.json.decode(schema, type=dict[str, Any] | bool)
        except (msgspec.DecodeError, RecursionError) as error:
            path = said["json_schema"][1]
            raise ProtocolError(
                ErrorCode.INVALID_VALUE, f"{path} is no JSON schema: {error}", param=path
            ) from None
    return GrammarOptions(**values), names


def seeded(options: PacelineOptions, choice: int) -> PacelineOptions:
    """The options of one of several choices; their seeds differ, all made from the one given."""
    if options.seed is None or choice == 0:
        return options
    return msgspec.structs.replace(options, seed=(options.seed + choice) % 2**63)


def check_model(model: str | None, served: str) -> None:
    """Raises ProtocolError for a model that is not the served one; the SDKs demand a name, so an
    empty one is let through."""
    if model and model != served:
        raise ProtocolError(
            ErrorCode.MODEL_NOT_FOUND,
            f"model is {model[:200]!r}; this server serves {served!r}",
            param="model",
        )
