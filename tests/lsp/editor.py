"""An editor without a screen: pygls' own client, joined in this process to our language server,
with one document and a cursor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from paceline_lsp.server import CompletionServer
from paceline_lsp.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from concurrent.futures import Future

    from anyio.abc import TaskGroup
    from pygls.protocol import JsonRPCProtocol

URI = "file:///project/example.py"


class _Pipe:
    """A writer of one side that is the reader of the other. Messages are handled one at a time with
    turns of the loop between them, as when they come from a pipe."""

    def __init__(self, reader: JsonRPCProtocol) -> None:
        self._reader = reader
        self._send, self._receive = anyio.create_memory_object_stream[bytes](1000)

    def write(self, data: bytes) -> None:
        with contextlib.suppress(anyio.BrokenResourceError):  # the other side has gone
            self._send.send_nowait(data.partition(b"\r\n\r\n")[2])

    def close(self) -> None:
        self._send.close()

    async def pump(self) -> None:
        async with self._receive:
            async for body in self._receive:
                message = json.loads(body, object_hook=self._reader.structure_message)
                self._reader.handle_message(message)
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()


class Editor:
    """text, offset: the document and where the cursor is in it. notifications: what the server
    sent, by method."""

    def __init__(self, server: CompletionServer) -> None:
        self.server = server
        self.client = LanguageClient("test-editor", "1")
        self.text = ""
        self.offset = 0
        self.version = 0
        self.notifications: list[tuple[str, Any]] = []
        self._changed = anyio.Event()
        for method in ("paceline/didChangeStatus", "window/showMessage"):
            self.client.feature(method)(self._note(method))

    async def start(
        self, tasks: TaskGroup, *, inline: bool, options: dict[str, Any] | None
    ) -> types.InitializeResult:
        to_server, to_client = _Pipe(self.server.lsp.protocol), _Pipe(self.client.protocol)
        self.client.protocol.set_writer(to_server)
        self.server.lsp.protocol.set_writer(to_client)
        for run in (to_server.pump, to_client.pump, self.server.link.run):
            tasks.start_soon(run)
        text_document = types.TextDocumentClientCapabilities(
            inline_completion=types.InlineCompletionClientCapabilities() if inline else None
        )
        result = await self.client.initialize_async(
            types.InitializeParams(
                capabilities=types.ClientCapabilities(text_document=text_document),
                initialization_options=options,
            )
        )
        self.client.initialized(types.InitializedParams())
        return result

    def open(self, marked: str, *, language_id: str = "python") -> None:
        """A document with the cursor where it says `|`."""
        self.offset = marked.index("|")
        self.text = marked.replace("|", "", 1)
        self.client.text_document_did_open(
            types.DidOpenTextDocumentParams(
                types.TextDocumentItem(URI, language_id, self.version, self.text)
            )
        )

    def type(self, text: str) -> None:
        """Insert at the cursor and move behind."""
        at = self.position()
        self.text = self.text[: self.offset] + text + self.text[self.offset :]
        self.offset += len(text)
        self.version += 1
        change = types.TextDocumentContentChangePartial(range=types.Range(at, at), text=text)
        self.client.text_document_did_change(
            types.DidChangeTextDocumentParams(
                types.VersionedTextDocumentIdentifier(self.version, URI), [change]
            )
        )

    def position(self, offset: int | None = None) -> types.Position:
        """In UTF-16, counted without the code under test."""
        lines = re.split("\r\n|\n|\r", self.text[: self.offset if offset is None else offset])
        return types.Position(len(lines) - 1, len(lines[-1].encode("utf-16-le")) // 2)

    def ask(
        self, *, automatic: bool = False, selected: types.SelectedCompletionInfo | None = None
    ) -> Future[Any]:
        """A request for an inline completion; cancel it with `cancel`."""
        kind = types.InlineCompletionTriggerKind
        return self.client.protocol.send_request(
            types.TEXT_DOCUMENT_INLINE_COMPLETION,
            types.InlineCompletionParams(
                types.InlineCompletionContext(
                    kind.Automatic if automatic else kind.Invoked, selected
                ),
                types.TextDocumentIdentifier(URI),
                self.position(),
            ),
        )

    async def items(self, **how: Any) -> list[types.InlineCompletionItem]:
        return await self.answer(self.ask(**how))

    async def text_at_cursor(self, **how: Any) -> str | None:
        items = await self.items(**how)
        if not items:
            return None
        text = items[0].insert_text
        assert isinstance(text, str)
        return text

    async def answer(self, future: Future[Any]) -> list[Any]:
        result = await asyncio.wrap_future(future)
        return list(result.items)

    def cancel(self, future: Future[Any]) -> None:
        """`$/cancelRequest` for a request that still runs."""
        pending = self.client.protocol._request_futures
        (request_id,) = [each for each, known in pending.items() if known is future]
        self.client.cancel_request(types.CancelParams(request_id))

    def accept(self, item: types.InlineCompletionItem) -> None:
        """Insert it as an editor does: in place of its range."""
        assert item.range is not None
        assert isinstance(item.insert_text, str)
        assert item.range.end == self.position()
        while self.position() != item.range.start:
            self.offset -= 1
        self.type(item.insert_text)

    async def status(self) -> dict[str, Any]:
        result = await asyncio.wrap_future(self.client.protocol.send_request("paceline/status", {}))
        return {
            name: value._asdict() if hasattr(value, "_asdict") else value
            for name, value in result._asdict().items()
        }

    async def notified(self, method: str) -> Any:
        """The next notification of a kind that has not been looked at."""
        while True:
            for at, (name, params) in enumerate(self.notifications):
                if name == method:
                    del self.notifications[at]
                    return params
            await self._changed.wait()

    def _note(self, method: str) -> Any:
        def note(params: Any) -> None:
            self.notifications.append((method, params))
            self._changed.set()
            self._changed = anyio.Event()

        return note


@contextlib.asynccontextmanager
async def editing(
    url: str, marked: str | None = None, *, inline: bool = True, **options: Any
) -> AsyncIterator[Editor]:
    """An editor before the language server before the Paceline server at `url`."""
    editor = Editor(CompletionServer(Settings(url=url)))
    async with anyio.create_task_group() as tasks:
        await editor.start(tasks, inline=inline, options=options or None)
        if marked is not None:
            editor.open(marked)
        yield editor
        tasks.cancel_scope.cancel()
