"""`paceline lsp` as editors start it: a process, spoken to over its standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from lsprotocol import types
from pygls.lsp.client import LanguageClient

from tests.lsp.editor import URI
from tests.server.serving import serving

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.core.request import Request

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {
    "PYTHONPATH": ":".join(
        str(ROOT / each) for each in ("backend", "protocol", "clients/python", "clients/lsp")
    )
}
COMMAND = [sys.executable, "-c", "from paceline.cli import main; main()", "lsp", "--stdio"]


def _answer(request: Request) -> Sequence[str]:
    return [" ret", "urn 1"]


async def test_a_completion_over_standard_streams() -> None:
    async with serving(_answer) as server:
        client = LanguageClient("test", "1")
        await client.start_io(*COMMAND, "--url", server.http_url, env=ENVIRONMENT)
        result = await client.initialize_async(
            types.InitializeParams(capabilities=types.ClientCapabilities())
        )
        assert result.server_info is not None
        assert result.server_info.name == "paceline"
        client.initialized(types.InitializedParams())
        client.text_document_did_open(
            types.DidOpenTextDocumentParams(
                types.TextDocumentItem(URI, "python", 1, "def f():\n    \n")
            )
        )
        answer = await client.text_document_inline_completion_async(
            types.InlineCompletionParams(
                types.InlineCompletionContext(types.InlineCompletionTriggerKind.Automatic),
                types.TextDocumentIdentifier(URI),
                types.Position(1, 4),
            )
        )
        assert isinstance(answer, types.InlineCompletionList)
        assert [item.insert_text for item in answer.items] == ["return 1"]
        await client.shutdown_async(None)
        client.exit(None)
        await client.stop()  # type: ignore[no-untyped-call]
        assert client._server is not None
        assert client._server.returncode == 0


def test_it_ends_when_the_editor_is_gone() -> None:
    done = subprocess.run(COMMAND, env=ENVIRONMENT, input=b"", capture_output=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_wrong_option_is_named() -> None:
    done = subprocess.run(
        [*COMMAND, "--log-level", "loud"], env=ENVIRONMENT, capture_output=True, timeout=60
    )
    assert done.returncode == 2
    assert b"'loud' is none of debug" in done.stderr
