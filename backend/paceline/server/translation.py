"""Words of the wire from words of the engine, and back: pure functions, each mapping once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from paceline.core.errors import (
    ContextLengthError,
    EngineStoppedError,
    NonFiniteLogitsError,
    PacelineError,
    QueueFullError,
    RequestError,
)
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.server.refusals import OPTION_NAMES
from paceline_protocol.errors import ErrorCode, ProtocolError
from paceline_protocol.items import Logprob, TopLogprob
from paceline_protocol.requests import CompletionCreate, PacelineOptions, ResponseCreate
from paceline_protocol.responses import (
    InputTokensDetails,
    OutputTokensDetails,
    PacelineSummary,
    ResponseError,
    ResponseUsage,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.core.events import CommittedToken, FinishEvent, SpeculationSummary, Usage
    from paceline.core.request import Grammar

MAX_STOP_STRINGS: Final = 16
_CODES: Final[tuple[tuple[type[PacelineError], ErrorCode], ...]] = (
    (ContextLengthError, ErrorCode.CONTEXT_LENGTH_EXCEEDED),
    (QueueFullError, ErrorCode.QUEUE_FULL),
    (RequestError, ErrorCode.INVALID_VALUE),
    (EngineStoppedError, ErrorCode.SERVER_SHUTTING_DOWN),
    (NonFiniteLogitsError, ErrorCode.NON_FINITE_LOGITS),
    (PacelineError, ErrorCode.SERVER_ERROR),
)


def error_code(error: PacelineError) -> ErrorCode:
    """The wire's code of an error: that of the first class in the table that it belongs to."""
    return next(code for cls, code in _CODES if isinstance(error, cls))


def protocol_error(
    error: PacelineError, message: ResponseCreate | CompletionCreate
) -> ProtocolError:
    """The error with its field as a path in the message that asked."""
    field = error.field if isinstance(error, RequestError) else None
    param, words = field, str(error)
    if field in OPTION_NAMES:
        param = f"paceline.{field}"
    elif field == "input" and isinstance(message, CompletionCreate):
        param = "prompt"
    if param != field and words.startswith(f"{field} "):
        words = f"{param}{words.removeprefix(str(field))}"
    return ProtocolError(error_code(error), words, param=param, stream_id=message.stream_id)


def failure(code: ErrorCode, message: str) -> ResponseError:
    """The error of a failed response; `type` is our own, finer code."""
    return ResponseError(
        code="rate_limit_exceeded" if code is ErrorCode.QUEUE_FULL else "server_error",
        message=message,
        type=code.value,
    )


def failure_of(event: FinishEvent) -> ResponseError:
    """The error of a response that the engine ended; the event names the class of the error."""
    code = next(
        (code for cls, code in _CODES if cls.__name__ == event.error_code), ErrorCode.SERVER_ERROR
    )
    return failure(code, event.error or "the engine could not go on with this response")


def sampling_of(
    message: ResponseCreate | CompletionCreate, defaults: SamplingParams
) -> SamplingParams:
    """What the request says, and the defaults where it says nothing. Raises RequestError."""
    options = message.paceline or PacelineOptions()
    given = {
        "temperature": message.temperature,
        "top_p": message.top_p,
        "top_k": options.top_k,
        "min_p": options.min_p,
        "seed": options.seed,
        "repetition_penalty": options.repetition_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "logit_bias": None if options.logit_bias is None else tuple(options.logit_bias.items()),
        "min_tokens": options.min_tokens,
        "banned_token_ids": (
            None if options.banned_token_ids is None else tuple(options.banned_token_ids)
        ),
        "top_logprobs": top_logprobs_of(message),
    }
    said = {name: value for name, value in given.items() if value is not None}
    return replace(defaults, **said)  # type: ignore[arg-type]


def request_of(
    message: ResponseCreate | CompletionCreate,
    *,
    request_id: str,
    prompt_ids: tuple[int, ...],
    max_new_tokens: int,
    sampling: SamplingParams,
    eos_token_ids: frozenset[int],
    speculation_key: str,
    prompt_stop: tuple[str, ...] = (),
    grammar: Grammar | None = None,
) -> Request:
    """eos_token_ids, prompt_stop: ends that come from the model and from the prompt's form; of the
    latter as many are used as there is room for beside the request's own.

    Raises RequestError naming the field that is out of range.
    """
    options = message.paceline or PacelineOptions()
    stop = options.stop_strings
    stop += prompt_stop[: max(0, MAX_STOP_STRINGS - len(stop))]
    return Request(
        request_id=request_id,
        prompt_ids=prompt_ids,
        max_new_tokens=max_new_tokens,
        sampling=sampling,
        stop_token_ids=eos_token_ids | frozenset(options.stop_token_ids or ()),
        stop=stop,
        speculation=Speculation(options.speculation or "auto"),
        num_speculative_tokens=options.num_speculative_tokens,
        drafter=DrafterKind(options.drafter or "auto"),
        speculation_key=speculation_key,
        grammar=grammar,
    )


LOGPROBS_INCLUDE: Final = "message.output_text.logprobs"


def top_logprobs_of(message: ResponseCreate | CompletionCreate) -> int | None:
    """How many alternatives are asked for beside each token; None for no log-probabilities."""
    wanted = isinstance(message, ResponseCreate) and LOGPROBS_INCLUDE in (message.include or ())
    return 0 if wanted and message.top_logprobs is None else message.top_logprobs


def logprob_of(
    token: CommittedToken, token_bytes: Callable[[int], bytes], ends: frozenset[int]
) -> Logprob | None:
    """The log-probabilities of a committed token; None where it has none or ended the answer."""
    if token.logprob is None or token.token_id in ends:
        return None
    chosen = token_bytes(token.token_id)
    return Logprob(
        token=_readable(chosen),
        logprob=_finite(token.logprob.logprob),
        bytes=list(chosen),
        top_logprobs=[
            TopLogprob(
                token=_readable(alternative), logprob=_finite(logprob), bytes=list(alternative)
            )
            for alternative, logprob in (
                (token_bytes(token_id), logprob) for token_id, logprob in token.logprob.top
            )
        ],
    )


def _readable(token: bytes) -> str:
    """Bytes as text; parts of a character as OpenAI writes them (`bytes:\\xe2\\x9c`)."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _finite(logprob: float) -> float:
    """JSON has no minus infinity; clients know this number for it."""
    return max(logprob, -9999.0)


def usage_of(usage: Usage, *, num_output: int) -> ResponseUsage:
    """num_output: what the client was sent, which for a prepared prompt is nothing."""
    return ResponseUsage(
        input_tokens=usage.num_prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.num_cached),
        output_tokens=num_output,
        output_tokens_details=OutputTokensDetails(),
        total_tokens=usage.num_prompt + num_output,
    )


def summary_of(summary: SpeculationSummary, usage: Usage) -> PacelineSummary:
    """Raw counts and the ratios that clients want from them."""
    seconds = summary.generation_ms / 1000
    return PacelineSummary(
        num_drafted=summary.num_drafted,
        num_examined=summary.num_examined,
        num_accepted=summary.num_accepted,
        acceptance=summary.acceptance,
        tokens_per_step=usage.num_output / summary.num_steps if summary.num_steps else None,
        accepted_per_position=list(summary.accepted_per_position),
        examined_per_position=list(summary.examined_per_position),
        passed_per_position=list(summary.passed_per_position),
        drafter=summary.drafter,
        gate=summary.gate.value,
        reason=summary.reason,
        time_to_first_token_ms=summary.time_to_first_token_ms,
        tokens_per_second=usage.num_output / seconds if seconds > 0 else None,
        draft_ms=summary.draft_ms,
        verify_ms=summary.verify_ms,
        sample_ms=summary.sample_ms,
        other_ms=summary.other_ms,
        cached_tokens=usage.num_cached,
        expected_plain_ms=summary.expected_plain_ms,
    )
