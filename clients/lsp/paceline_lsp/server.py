"""The language server: what editors send, brought to the completer, and what they get back.

Beside the standard protocol it takes the notifications that editors know from other completion
servers (`textDocument/didShowCompletion`, `textDocument/didPartiallyAcceptCompletion`), sends
`paceline/didChangeStatus`, and answers `paceline/status`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import threading
from typing import TYPE_CHECKING, Any

import anyio
from lsprotocol import types
from pygls.io_ import StdinAsyncReader, StdoutWriter, run_async
from pygls.lsp.server import LanguageServer

from paceline_lsp.completer import Completer, Status
from paceline_lsp.documents import Document, Documents, Span, num_units, offset_at
from paceline_lsp.feedback import Feedback
from paceline_lsp.items import completion_item, inline_item
from paceline_lsp.link import ServerLink
from paceline_lsp.settings import Settings, SettingsError
from paceline_lsp.surroundings import Surroundings

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

logger = logging.getLogger("paceline_lsp")

ACCEPT_COMMAND = "paceline.didAcceptCompletionItem"
DID_SHOW = "textDocument/didShowCompletion"
DID_PARTIALLY_ACCEPT = "textDocument/didPartiallyAcceptCompletion"
DID_CHANGE_STATUS = "paceline/didChangeStatus"
STATUS = "paceline/status"

# Where a completion is often wanted though no word is being typed.
_TRIGGER_CHARACTERS = [".", "(", "[", "{", "=", ",", ":", " "]


class CompletionServer:
    """One editor's language server. `run` serves it; `link` is the way to the Paceline server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.link = ServerLink(settings.url, settings.api_key)
        self.completer = Completer(self.link, settings, self._tell_status)
        self.feedback = Feedback()
        self.documents = Documents()
        self.lsp = LanguageServer("paceline", importlib.metadata.version("paceline"))
        self._problem: str | None = None
        self._register()

    async def run(self, stdin: BinaryIO, stdout: BinaryIO) -> int:
        """Serve until the editor says `exit` or closes the pipe; returns the exit code."""
        protocol = self.lsp.protocol
        protocol.set_writer(StdoutWriter(stdout))
        code = 0
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.link.run)
            try:
                await run_async(
                    threading.Event(), StdinAsyncReader(stdin, self.lsp.thread_pool), protocol
                )
            except SystemExit as leave:
                code = int(leave.code or 0)
            tasks.cancel_scope.cancel()
        return code

    # The protocol

    def _register(self) -> None:
        inline = types.InlineCompletionOptions()
        self._feature(types.INITIALIZE, self._initialize)
        self._feature(types.INITIALIZED, self._initialized)
        self._feature(types.WORKSPACE_DID_CHANGE_CONFIGURATION, self._configuration_changed)
        self._feature(types.TEXT_DOCUMENT_DID_OPEN, self._opened)
        self._feature(types.TEXT_DOCUMENT_DID_CHANGE, self._changed)
        self._feature(types.TEXT_DOCUMENT_DID_CLOSE, self._closed)
        self._feature(types.TEXT_DOCUMENT_INLINE_COMPLETION, self._inline_completion, inline)
        self._feature(DID_SHOW, self._shown)
        self._feature(DID_PARTIALLY_ACCEPT, self._partly_accepted)
        self._feature(STATUS, self._status)
        self.lsp.command(ACCEPT_COMMAND)(functools.partial(self._accepted))

    def _feature(self, name: str, handler: Callable[[Any], Any], options: Any = None) -> None:
        # pygls puts attributes on handlers, which methods do not take.
        self.lsp.feature(name, options)(functools.partial(handler))

    def _initialize(self, params: types.InitializeParams) -> None:
        # A mistake in the settings must not end the server: it is told once the editor listens.
        self._change_settings(params.initialization_options)
        chosen = self.lsp.workspace.position_encoding
        for encoding in ("utf-8", "utf-16", "utf-32"):
            if encoding == chosen:
                self.documents = Documents(encoding)
        inline = params.capabilities.text_document is not None and (
            params.capabilities.text_document.inline_completion is not None
        )
        wanted = self.settings.completion_items
        if wanted == "always" or (wanted == "auto" and not inline):
            options = types.CompletionOptions(trigger_characters=_TRIGGER_CHARACTERS)
            self._feature(types.TEXT_DOCUMENT_COMPLETION, self._completion, options)

    def _initialized(self, params: types.InitializedParams) -> None:
        if self._problem is not None:
            self._complain(self._problem)

    def _configuration_changed(self, params: types.DidChangeConfigurationParams) -> None:
        given = params.settings
        section = given.get("paceline") if isinstance(given, dict) else None
        self._change_settings(section)
        if self._problem is not None:
            self._complain(self._problem)

    def _change_settings(self, given: Any) -> None:
        try:
            self.settings = self.settings.changed(given)
        except SettingsError as error:
            self._problem = str(error)
            return
        self._problem = None
        self.completer.settings = self.settings
        self.link.change(self.settings.url, self.settings.api_key)

    def _opened(self, params: types.DidOpenTextDocumentParams) -> None:
        document = params.text_document
        self.documents.open(
            Document(document.uri, document.language_id, document.version, document.text)
        )

    def _changed(self, params: types.DidChangeTextDocumentParams) -> None:
        edits = [
            (
                _span(change.range)
                if isinstance(change, types.TextDocumentContentChangePartial)
                else None,
                change.text,
            )
            for change in params.content_changes
        ]
        self.documents.change(params.text_document.uri, params.text_document.version, edits)

    def _closed(self, params: types.DidCloseTextDocumentParams) -> None:
        self.documents.close(params.text_document.uri)
        self.completer.forget(params.text_document.uri)

    async def _inline_completion(
        self, params: types.InlineCompletionParams
    ) -> types.InlineCompletionList:
        nothing = types.InlineCompletionList(items=[])
        document = self.documents.get(params.text_document.uri)
        if document is None or not self.settings.serves(document.language_id):
            return nothing
        surroundings = self._surroundings(document, params.position)
        span = types.Range(params.position, params.position)
        selected = params.context.selected_completion_info
        chosen = ""
        if selected is not None:
            # The completion goes on from the entry that the editor's list has selected.
            start = self._offset(document, selected.range.start)
            chosen, span = selected.text, selected.range
            surroundings = Surroundings(
                Surroundings.of(document.text, start).before + chosen, surroundings.after
            )
        text = await self.completer.complete(
            document.uri,
            surroundings,
            is_automatic=params.context.trigger_kind is types.InlineCompletionTriggerKind.Automatic,
        )
        if text is None:
            return nothing
        text = chosen + text
        item_id = self.feedback.offer(num_units(text, "utf-16"))
        return types.InlineCompletionList(items=[inline_item(text, span, _accept(item_id))])

    async def _completion(self, params: types.CompletionParams) -> types.CompletionList:
        nothing = types.CompletionList(is_incomplete=True, items=[])
        document = self.documents.get(params.text_document.uri)
        if document is None or not self.settings.serves(document.language_id):
            return nothing
        surroundings = self._surroundings(document, params.position)
        # Editors ask with one kind for typing and for keys, so all of it waits for a pause.
        text = await self.completer.complete(document.uri, surroundings, is_automatic=True)
        if text is None:
            return nothing
        item_id = self.feedback.offer(num_units(text, "utf-16"))
        item = completion_item(
            text,
            surroundings.line_before,
            params.position,
            self.documents.encoding,
            language_id=document.language_id,
            accept=_accept(item_id),
        )
        return types.CompletionList(is_incomplete=True, items=[item])

    def _shown(self, params: Any) -> None:
        if item_id := _item_id(params):
            self.feedback.shown(item_id)

    def _partly_accepted(self, params: Any) -> None:
        length = getattr(params, "acceptedLength", None)
        if (item_id := _item_id(params)) and isinstance(length, int):
            self.feedback.partly_accepted(item_id, length)

    def _accepted(self, item_id: str) -> None:
        self.feedback.accepted(item_id)

    def _status(self, params: Any) -> dict[str, Any]:
        return _as_json(self.completer.status) | {"counts": self.feedback.as_dict()}

    # Beside the protocol

    def _surroundings(self, document: Document, position: types.Position) -> Surroundings:
        return Surroundings.of(document.text, self._offset(document, position))

    def _offset(self, document: Document, position: types.Position) -> int:
        return offset_at(document.text, position.line, position.character, self.documents.encoding)

    def _tell_status(self, status: Status) -> None:
        if status.kind == "error":
            logger.warning("%s", status.message)
        self.lsp.protocol.notify(DID_CHANGE_STATUS, _as_json(status))

    def _complain(self, problem: str) -> None:
        self.lsp.window_show_message(
            types.ShowMessageParams(types.MessageType.Error, f"Paceline settings: {problem}")
        )


def _span(given: types.Range) -> Span:
    return Span((given.start.line, given.start.character), (given.end.line, given.end.character))


def _accept(item_id: str) -> types.Command:
    return types.Command("Completion accepted", ACCEPT_COMMAND, arguments=[item_id])


def _item_id(params: Any) -> str | None:
    """The id in an item that came back: the argument of its command."""
    arguments = getattr(getattr(getattr(params, "item", None), "command", None), "arguments", None)
    if isinstance(arguments, (list, tuple)) and arguments and isinstance(arguments[0], str):
        return arguments[0]
    return None


def _as_json(status: Status) -> dict[str, Any]:
    return {"kind": status.kind, "busy": status.busy, "message": status.message}
