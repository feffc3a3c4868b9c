"""From a place in a document to a completion: debounce, type-ahead, one request at a time."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from paceline_client import PacelineClientError
from paceline_lsp.block import block_end, is_single_line, shape
from paceline_lsp.type_ahead import TypeAhead
from paceline_protocol.messages import OutputTextDelta, PacelineOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline_lsp.link import ServerLink
    from paceline_lsp.settings import Settings
    from paceline_lsp.surroundings import Surroundings


@dataclass(frozen=True, slots=True)
class Status:
    """kind: `normal`, or `error` with a message. busy: a request runs."""

    kind: str = "normal"
    busy: bool = False
    message: str = ""


class Completer:
    """At most one request to the server runs for a document: asking again ends the one before,
    and the new one is sent after the cancellation of the old.

    on_status: called when the status changes.
    """

    def __init__(
        self, link: ServerLink, settings: Settings, on_status: Callable[[Status], None]
    ) -> None:
        self.settings = settings
        self.status = Status()
        self._link = link
        self._on_status = on_status
        self._ahead = TypeAhead()
        self._turns: dict[str, _Turn] = {}
        self._num_running = 0

    async def complete(
        self, uri: str, surroundings: Surroundings, *, is_automatic: bool
    ) -> str | None:
        """The text to insert at the cursor; None if there is nothing, or a later call for the same
        document took over. Cancelling the caller cancels the request in the engine.

        is_automatic: asked for by typing, not by a key; waits for a pause.
        """
        turn = self._turns.setdefault(uri, _Turn())
        # Editors that show both kinds of completions ask for both at every key.
        shares = is_automatic and turn.is_taken and turn.surroundings == surroundings
        if not shares:
            turn.end()
        ahead = self._ahead.rest(uri, surroundings)
        if ahead is not None:
            return ahead
        with anyio.CancelScope() as scope, turn.taken(scope, surroundings):
            async with turn.lock:
                if shares and turn.was_answered:
                    return self._ahead.rest(uri, surroundings)
                if is_automatic and self.settings.debounce_ms:
                    await anyio.sleep(self.settings.debounce_ms / 1000)
                offered = await self._ask(uri, surroundings)
                turn.was_answered = turn.surroundings == surroundings
                return offered
        return None

    def forget(self, uri: str) -> None:
        """The document was closed."""
        self._ahead.forget(uri)
        turn = self._turns.pop(uri, None)
        if turn is not None:
            turn.end()

    async def _ask(self, uri: str, surroundings: Surroundings) -> str | None:
        settings = self.settings
        single_line = settings.multiline == "never" or is_single_line(surroundings)
        self._count(1)
        try:
            text = await self._generate(surroundings, settings, single_line=single_line)
        except PacelineClientError as error:
            self._set_status(Status("error", self._num_running > 1, str(error)))
            return None
        else:
            self._set_status(Status("normal", self._num_running > 1))
        finally:
            self._count(-1)
        offered = shape(text, surroundings, single_line=single_line, max_lines=settings.max_lines)
        if not offered:
            return None
        self._ahead.store(uri, surroundings, offered)
        return offered

    async def _generate(
        self, surroundings: Surroundings, settings: Settings, *, single_line: bool
    ) -> str:
        """What the model writes, up to where it is of no more use. Raises PacelineClientError."""
        session = await self._link.session()
        prefix = surroundings.prefix(settings.prefix_characters)
        # Tokens begin with the space before a word, so a prompt that ends with one is a prompt that
        # the model has hardly ever seen. It writes the space itself; what does not begin with one
        # does not belong at the cursor.
        held = " " if len(prefix) > 1 and prefix.endswith(" ") else ""
        stream = session.complete(
            prefix.removesuffix(held),
            suffix=surroundings.suffix(settings.suffix_characters),
            max_output_tokens=settings.max_output_tokens,
            temperature=settings.temperature,
            paceline=PacelineOptions(
                stop=["\n"] if single_line else None,
                speculation=settings.speculation,
                drafter=settings.drafter,
            ),
        )
        line_before = surroundings.line_before
        async with stream:  # leaving it early cancels the rest
            async for event in stream:
                if not isinstance(event, OutputTextDelta):
                    continue
                if not stream.text.startswith(held):
                    return ""
                text = stream.text[len(held) :]
                if single_line:
                    continue
                if block_end(text, line_before, max_lines=settings.max_lines) is not None:
                    break
        return stream.text[len(held) :]

    def _count(self, change: int) -> None:
        self._num_running += change
        is_busy = self._num_running > 0
        if is_busy != self.status.busy:
            self._set_status(Status(self.status.kind, is_busy, self.status.message))

    def _set_status(self, status: Status) -> None:
        if status != self.status:
            self.status = status
            self._on_status(status)


class _Turn:
    """Whose turn it is in one document: the calls for one place, the first of which asks the server
    while the others wait for what it gets. was_answered: it got an answer, be it nothing."""

    def __init__(self) -> None:
        self.lock = anyio.Lock()
        self.surroundings: Surroundings | None = None
        self.was_answered = False
        self._scopes: set[anyio.CancelScope] = set()

    @property
    def is_taken(self) -> bool:
        return bool(self._scopes)

    @contextmanager
    def taken(self, scope: anyio.CancelScope, surroundings: Surroundings) -> Iterator[None]:
        if not self._scopes:
            self.surroundings, self.was_answered = surroundings, False
        self._scopes.add(scope)
        try:
            yield
        finally:
            self._scopes.discard(scope)

    def end(self) -> None:
        """Whoever's turn it is, it is no more."""
        for scope in self._scopes:
            scope.cancel()
        self._scopes.clear()
