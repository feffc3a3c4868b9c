"""A chat in the terminal: `paceline chat`.

Ctrl-C while an answer streams stops the answer; at the prompt it clears the line, and Ctrl-D
leaves. Written to a pipe, an answer is its bare text.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from rich.console import Console
from rich.text import Text

from paceline_client.answer_view import AnswerView
from paceline_client.endpoint import DEFAULT_URL, CodecName
from paceline_client.errors import AuthenticationError, ConnectError, PacelineClientError
from paceline_client.sync import SyncConversation, SyncStream, connect_sync
from paceline_protocol import ProtocolError
from paceline_protocol.messages import OutputTextDelta, PacelineOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline_protocol.messages import DrafterChoice, Response, SpeculationChoice

DEFAULT_MAX_TOKENS = 1024
"""Of an answer: a small model that begins to repeat itself would fill its whole context."""

_PROMPT = "> "
_HELP = """\
/new             forget the conversation
/system TEXT     instructions for the answers to come; without text, none
/quit, Ctrl-D    leave
Ctrl-C           stop the answer"""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an answer ended."""

    response: Response | None
    was_interrupted: bool


def run(
    question: str | None = None,
    *,
    url: str = DEFAULT_URL,
    api_key: str | None = None,
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    speculation: SpeculationChoice | None = None,
    drafter: DrafterChoice | None = None,
    codec: CodecName = "json",
    read_line: Callable[[str], str] = input,
    stdin: TextIO | None = None,
    stdout: TextIO | None = None,
    stderr: TextIO | None = None,
) -> int:
    """Chat until the user leaves, or answer one question; returns the exit code.

    question: None starts a conversation, unless standard input is no terminal: then all of it is
    the question. max_tokens: of an answer; 0 lets it fill the context. Codes: 0, 1 when there is no
    server or it could not answer, 2 for a wrong option, 130 for an interrupted single answer.
    """
    stdin, stdout, stderr = stdin or sys.stdin, stdout or sys.stdout, stderr or sys.stderr
    console = Console(file=stdout, highlight=False)
    errors = Console(file=stderr, highlight=False)
    if question is None and not stdin.isatty():
        question = stdin.read().strip()
        if not question:
            _complain(errors, "there is no question on standard input")
            return EXIT_USAGE
    try:
        with connect_sync(url, api_key=api_key, codec=codec) as session:
            conversation = session.conversation(
                instructions=system,
                temperature=temperature,
                max_output_tokens=max_tokens or None,
                paceline=PacelineOptions(
                    speculation=speculation,
                    drafter=drafter,
                    include=["tokens"] if console.is_terminal else None,
                ),
            )
            if question is not None:
                return _answer_once(conversation, question, console, errors)
            return _converse(conversation, read_line, console, errors)
    except AuthenticationError as error:
        _complain(errors, f"{error.url} refuses the connection: {error.reason}")
    except ConnectError as error:
        _complain(
            errors,
            f"no server answers at {error.url} ({error.reason}); "
            "`paceline serve` starts one, --url names another",
        )
    except (ValueError, ProtocolError) as error:
        _complain(errors, str(error))
        return EXIT_USAGE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    return EXIT_FAILED


def status_line(response: Response) -> str:
    """What a finished response says about itself, in one line."""
    parts = []
    if response.status == "cancelled":
        parts.append("stopped")
    if response.incomplete_details is not None:
        parts.append("cut at the token limit")
    if response.usage is not None:
        parts.append(f"{response.usage.output_tokens} tokens")
    summary = response.paceline
    if summary is not None:
        if summary.tokens_per_second is not None:
            parts.append(f"{summary.tokens_per_second:.1f} tokens/s")
        if summary.time_to_first_token_ms is not None:
            parts.append(f"first after {summary.time_to_first_token_ms:.0f} ms")
        if summary.acceptance is not None:
            parts.append(f"acceptance {summary.acceptance:.2f}")
        if summary.tokens_per_step is not None:
            parts.append(f"{summary.tokens_per_step:.2f} tokens/step")
        # Without what the gate measured over the conversation: that is not this answer's number.
        cause = summary.reason.partition("; ")[0]
        parts.append(cause or f"speculation {summary.gate}")
    return " · ".join(parts)


def cut_note(response: Response) -> str | None:
    """What to do about an answer that was cut; None for one that was not."""
    if response.incomplete_details is None or response.status == "cancelled":
        return None
    limit = response.max_output_tokens
    written = None if response.usage is None else response.usage.output_tokens
    if limit is None or (written is not None and written < limit):
        return "the answer was cut: the model's context is full; a new conversation has room"
    return (
        f"the answer was cut at {limit:,} tokens; paceline chat --max-tokens N allows another "
        "number, 0 as many as fit"
    )


def _answer_once(
    conversation: SyncConversation, question: str, console: Console, errors: Console
) -> int:
    try:
        outcome = _show(conversation.respond(question), console, errors)
    except ConnectError:
        raise
    except PacelineClientError as error:
        _complain(errors, str(error))
        return EXIT_FAILED
    return EXIT_INTERRUPTED if outcome.was_interrupted else EXIT_OK


def _converse(
    conversation: SyncConversation,
    read_line: Callable[[str], str],
    console: Console,
    errors: Console,
) -> int:
    with suppress(ImportError):
        import readline  # noqa: F401  (importing it gives input() editing and history)
    console.print("/help shows what can be typed here", style="dim")
    while True:
        try:
            line = read_line(_PROMPT).strip()
        except EOFError:
            console.print()
            return EXIT_OK
        except KeyboardInterrupt:
            console.print()
            continue
        command, _, rest = line.partition(" ")
        match command:
            case "":
                continue
            case "/quit" | "/exit":
                return EXIT_OK
            case "/help":
                console.print(_HELP, markup=False)
            case "/new":
                conversation.forget()
                console.print("a new conversation", style="dim")
            case "/system":
                conversation.instructions = rest.strip() or None
            case _ if command.startswith("/"):
                _complain(errors, f"{command} is not known; /help shows what is")
            case _:
                try:
                    _show(conversation.respond(line), console, errors)
                except PacelineClientError as error:
                    _complain(errors, str(error))


def _show(stream: SyncStream, console: Console, errors: Console) -> Outcome:
    """Stream one answer to the terminal or the pipe. Raises PacelineClientError."""
    was_interrupted = (
        _show_markdown(stream, console) if console.is_terminal else _show_plain(stream, console)
    )
    response = stream.response
    if response is not None:
        line = status_line(response)
        if console.is_terminal:
            console.print(Text(line, style="dim"))
        elif errors.is_terminal:
            errors.print(Text(line, style="dim"))
        note = cut_note(response)
        if note is not None:
            (console if console.is_terminal else errors).print(Text(note), soft_wrap=True)
    return Outcome(response, was_interrupted)


def _show_markdown(stream: SyncStream, console: Console) -> bool:
    """Whether it was interrupted."""
    num_tokens = 0
    was_interrupted = False
    first_at: float | None = None
    with AnswerView(console) as view:
        while True:
            try:
                for event in stream:
                    if not isinstance(event, OutputTextDelta):
                        continue
                    now = time.monotonic()
                    first_at = now if first_at is None else first_at
                    num_tokens += len(event.paceline.tokens) if event.paceline else 0
                    view.status = _progress(num_tokens, now - first_at)
                    view.add(event.delta)
                return was_interrupted
            except KeyboardInterrupt:
                if was_interrupted:  # the second one means it: don't wait for the server
                    stream.close()
                    return True
                was_interrupted = True
                stream.cancel()


def _show_plain(stream: SyncStream, console: Console) -> bool:
    """Whether it was interrupted."""
    was_interrupted = False
    is_line_open = True
    try:
        for event in stream:
            if isinstance(event, OutputTextDelta):
                console.file.write(event.delta)
                console.file.flush()
                is_line_open = not event.delta.endswith("\n")
    except KeyboardInterrupt:
        was_interrupted = True
        stream.close()
    except PacelineClientError:
        _end_line(console, bool(stream.text) and is_line_open)  # what it says has its own line
        raise
    _end_line(console, True)
    return was_interrupted


def _end_line(console: Console, is_open: bool) -> None:
    if is_open:
        console.file.write("\n")
        console.file.flush()


def _progress(num_tokens: int, elapsed_s: float) -> str:
    if num_tokens < 2 or elapsed_s <= 0:
        return "..."
    return f"{num_tokens} tokens · {(num_tokens - 1) / elapsed_s:.1f} tokens/s"


def _complain(errors: Console, message: str) -> None:
    errors.print(Text(f"error: {message}"), soft_wrap=True)
