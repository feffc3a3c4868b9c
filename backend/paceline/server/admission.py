"""What can be said about a request before its lane gets to it. Pure checks, no session state."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from paceline.core.errors import PacelineError
from paceline.core.request import SamplingParams
from paceline.server.formats import format_of
from paceline.server.prompts import messages_of
from paceline.server.refusals import refuse_unserved
from paceline.server.response_stream import ResponseStream
from paceline.server.tool_calls.style import AnswerStyle
from paceline.server.tool_calls.tools import tools_of
from paceline.server.translation import logprob_of, protocol_error, sampling_of
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.requests import CompletionCreate, PacelineOptions, ResponseCreate
from paceline_protocol.responses import Response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from paceline.core.limits import EngineLimits
    from paceline.model.chat import ChatMessage, EncodedChat
    from paceline.server.formats import Format
    from paceline.server.tool_calls.tools import Tools

COMPLETION_PREFIX: Final = "cmpl"
MAX_METADATA_PAIRS: Final = 16
MAX_METADATA_KEY: Final = 64
MAX_METADATA_VALUE: Final = 512
"""OpenAI's limits, in characters."""


def _no_bytes(token_id: int) -> bytes:
    return b""


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What all sessions of a server share.

    model: the id that `model` in a request must equal, when it is there. max_lanes: lanes with
    something in them. max_open: requests that wait or run. max_stored_tokens: bound of the turns
    kept for `previous_response_id`. allow_forced: whether `speculation: "on"` is let through.
    default_sampling: for what a request leaves open; the model's own recommendation.
    token_bytes: the bytes that a token stands for, for log-probabilities.
    style: how the model writes calls and thoughts.
    """

    model: str
    limits: EngineLimits
    eos_token_ids: frozenset[int]
    max_lanes: int = 16
    max_open: int = 64
    max_stored_tokens: int = 262_144
    allow_forced: bool = True
    default_sampling: SamplingParams = SamplingParams()
    token_bytes: Callable[[int], bytes] = _no_bytes
    style: AnswerStyle = AnswerStyle()


class RequestState(Enum):
    """WAITING in its lane, ENCODING its prompt, RUNNING in the engine, or RUNNING there with a
    cancel on its way (CANCELLING)."""

    WAITING = auto()
    ENCODING = auto()
    RUNNING = auto()
    CANCELLING = auto()


@dataclass(slots=True)
class OpenRequest:
    """A request that has had no finish yet.

    messages: its own at first, the whole conversation (without instructions) once it has started.
    form: what the answer must look like. tools: what it may call. encoded: the prompt, from RUNNING
    on. token_ids: committed so far. is_cut_off: the server cancels it, not its client.
    """

    response_id: str
    message: ResponseCreate | CompletionCreate
    sampling: SamplingParams
    messages: tuple[ChatMessage, ...]
    stream: ResponseStream
    form: Format | None = None
    tools: Tools | None = None
    state: RequestState = RequestState.WAITING
    encoded: EncodedChat | None = None
    token_ids: list[int] = field(default_factory=list)
    is_cut_off: bool = False

    @property
    def lane(self) -> str | None:
        """Name of its lane; None is a lane too."""
        return self.message.stream_id

    @property
    def is_warm_up(self) -> bool:
        """Whether only the prompt's state is wanted, and no output."""
        return isinstance(self.message, ResponseCreate) and self.message.generate is False


def admit(
    message: ResponseCreate | CompletionCreate,
    settings: SessionSettings,
    *,
    now: float,
    new_id: Callable[[str], str],
) -> OpenRequest:
    """The request, checked as far as that goes without its lane and its prompt's length.

    Raises ProtocolError naming the field and what would be right.
    """
    refuse_unserved(message)
    if isinstance(message, ResponseCreate):
        _check_model(message, settings)
        messages = _check_input(message)
        _check_metadata(message.metadata or {})
    else:
        _check_text(message)
        messages = ()
    _check_speculation(message, settings)
    try:
        sampling = sampling_of(message, settings.default_sampling)
    except PacelineError as error:
        raise protocol_error(error, message) from None
    options = message.paceline or PacelineOptions()
    form = format_of(message)
    tools = tools_of(message) if isinstance(message, ResponseCreate) else None
    parser = None
    if isinstance(message, ResponseCreate):
        style = settings.style.chosen_by(options.tool_format)
        parser = style.parser(tools, has_form=form is not None)
        form = style.form(tools, form)
    is_completion = isinstance(message, CompletionCreate)
    response_id = new_id(COMPLETION_PREFIX if is_completion else "resp")
    return OpenRequest(
        response_id,
        message,
        sampling,
        messages,
        ResponseStream(
            _response(response_id, message, sampling, settings.model, now),
            new_id=new_id,
            stream_id=message.stream_id,
            with_tokens="tokens" in (options.include or ()),
            logprob_of=None
            if sampling.top_logprobs is None
            else partial(
                logprob_of,
                token_bytes=settings.token_bytes,
                ends=settings.eos_token_ids | frozenset(options.stop_token_ids or ()),
            ),
            parser=parser,
        ),
        form,
        tools,
    )


def _check_model(message: ResponseCreate, settings: SessionSettings) -> None:
    if message.model not in (None, settings.model):
        raise ProtocolError(
            ErrorCode.MODEL_NOT_FOUND,
            f"model is {message.model!r}; this server serves {settings.model!r}",
            param="model",
        )


def _check_speculation(
    message: ResponseCreate | CompletionCreate, settings: SessionSettings
) -> None:
    options = message.paceline
    if options is not None and options.speculation == "on" and not settings.allow_forced:
        raise ProtocolError(
            ErrorCode.PERMISSION_DENIED,
            'paceline.speculation "on" is switched off on this server; use "auto" or "off"',
            param="paceline.speculation",
        )


def _check_text(message: CompletionCreate) -> None:
    if not message.prompt and not message.suffix:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            "prompt is empty; it must hold at least one character or token id",
            param="prompt",
        )
    if message.suffix is not None and not isinstance(message.prompt, str):
        raise ProtocolError(
            ErrorCode.INVALID_TYPE, "prompt must be a text where there is a suffix", param="prompt"
        )


def _check_input(message: ResponseCreate) -> tuple[ChatMessage, ...]:
    """Only a warm-up may come without input, if there is something else to prepare."""
    messages = messages_of(message.input)
    has_more = bool(message.instructions) or message.previous_response_id is not None
    if messages or (message.generate is False and has_more):
        return messages
    is_missing = message.input is None
    raise ProtocolError(
        ErrorCode.MISSING_REQUIRED_PARAMETER if is_missing else ErrorCode.INVALID_VALUE,
        f"input is {'missing' if is_missing else 'empty'}; it must be a text or a list of items "
        "with at least one message",
        param="input",
    )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    """It is kept and sent back, so it must be small."""
    if len(metadata) > MAX_METADATA_PAIRS:
        raise ProtocolError(
            ErrorCode.INVALID_VALUE,
            f"metadata has {len(metadata)} pairs; it must have at most {MAX_METADATA_PAIRS}",
            param="metadata",
        )
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE,
                f"a key of metadata has {len(key)} characters; it must have at most "
                f"{MAX_METADATA_KEY}",
                param="metadata",
            )
        if len(value) > MAX_METADATA_VALUE:
            raise ProtocolError(
                ErrorCode.INVALID_VALUE,
                f"metadata.{key} has {len(value)} characters; it must have at most "
                f"{MAX_METADATA_VALUE}",
                param=f"metadata.{key}",
            )


def _response(
    response_id: str,
    message: ResponseCreate | CompletionCreate,
    sampling: SamplingParams,
    model: str,
    now: float,
) -> Response:
    response = Response(
        id=response_id,
        created_at=now,
        model=model,
        status="in_progress",
        output=[],
        max_output_tokens=message.max_output_tokens,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_logprobs=sampling.top_logprobs,
    )
    if isinstance(message, CompletionCreate):
        return response
    return replace(
        response,
        instructions=message.instructions,
        metadata=message.metadata or {},
        parallel_tool_calls=message.parallel_tool_calls is not False,
        previous_response_id=message.previous_response_id,
        tool_choice=message.tool_choice or "auto",
        tools=message.tools or [],
    )
