"""Bodies drawn from the OpenAPI document, right and wrong, never break a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread
import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.generation import GenerationMode

from paceline.server.http.openapi import openapi_document
from tests.server.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

POSTS = sorted(path for path, item in openapi_document()["paths"].items() if "post" in item)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A server in a thread of its own, as these tests are not asynchronous."""
    with (
        anyio.from_thread.start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving()) as server,
    ):
        yield server.http_url


def test_it_is_served(address: str) -> None:
    served = httpx.get(f"{address}/openapi.json")
    assert served.json() == openapi_document()
    assert served.json()["openapi"] == "3.1.0"


@pytest.mark.parametrize("mode", GenerationMode, ids=lambda mode: mode.value)
@pytest.mark.parametrize("path", POSTS)
def test_drawn_bodies(address: str, path: str, mode: GenerationMode) -> None:
    schema = schemathesis.openapi.from_dict(openapi_document())
    operation = schema[path]["POST"]
    client = httpx.Client(base_url=address, timeout=60)

    @settings(
        max_examples=25,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case: Any) -> None:
        body: Any = case.body
        if isinstance(body, (dict, list, str, int, float, bool)) or body is None:
            answered = client.post(path, json=body)
        else:
            answered = client.post(path, content=b"")
        assert answered.status_code in (200, 400, 404), (answered.status_code, answered.text, body)
        if answered.status_code != 200:
            error = answered.json()["error"]
            assert set(error) == {"message", "type", "code", "param"}
            assert error["message"]

    with client:
        check()
