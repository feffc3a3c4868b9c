"""The official JavaScript client, unchanged: chat as a stream, Responses over the WebSocket."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest

from tests.server.serving import serving

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PROGRAM = Path(__file__).parent / "node"
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program with its packages, as npm installs them."""
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("node")
    for path in PROGRAM.iterdir():
        if path.is_file():
            shutil.copy(path, folder)
    subprocess.run(
        ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund"], cwd=folder, check=True
    )
    return folder


async def test_chat_and_socket(installed: Path) -> None:
    parts = [CALL[at : at + 5] for at in range(0, len(CALL), 5)]
    async with serving(lambda _: parts) as server:
        process = await anyio.run_process(
            ["node", "chat_and_socket.mjs", server.http_url], cwd=installed, check=False
        )
        assert process.returncode == 0, process.stderr.decode()
        told = json.loads(process.stdout)
    assert told["call"] == ["add", '{"a": 1}']
    assert told["finish"] == "tool_calls"
    assert told["tokens"] == len(CALL) + 1
    assert told["events"][0] == "response.created"
    assert told["events"][-1] == "response.completed"
    assert told["output"] == ["message"]
