"""The README's examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from anyio.from_thread import start_blocking_portal

import paceline_client
from paceline_client import endpoint
from tests.client.scripted_server import ScriptedServer, scripted_server

if TYPE_CHECKING:
    from collections.abc import Iterator

_README = Path(paceline_client.__file__).parent.parent / "README.md"
_EXAMPLES = re.findall(
    r"^## (.+?)\n+```python\n(.+?)^```",
    _README.read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(scripted_server()) as running,
    ):
        yield running


@pytest.mark.parametrize(("title", "source"), _EXAMPLES, ids=[title for title, _ in _EXAMPLES])
def test_an_example_runs(
    title: str,
    source: str,
    server: ScriptedServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened = endpoint.Endpoint.of

    def of_this_server(url: str, **options: object) -> endpoint.Endpoint:
        assert url == endpoint.DEFAULT_URL
        return opened(server.url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(endpoint.Endpoint, "of", of_this_server)
    exec(compile(source, title, "exec"), {"__name__": "__main__"})
    assert any(word.isupper() for word in capsys.readouterr().out.split())
    assert server.received


def test_all_examples_are_found() -> None:
    assert len(_EXAMPLES) == _README.read_text(encoding="utf-8").count("```python") == 6
