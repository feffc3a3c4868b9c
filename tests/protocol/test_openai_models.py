"""Every server event satisfies the official SDK's own models, taken strictly."""

from __future__ import annotations

import json
from typing import Any

import pytest

from paceline_protocol import JSON_CODEC
from paceline_protocol.messages import TelemetrySample
from paceline_protocol.vectors import SERVER_VECTORS, Vector

pydantic = pytest.importorskip("pydantic")
server_event = pytest.importorskip("openai.types.responses.responses_server_event")

OPENAI_VECTORS = [v for v in SERVER_VECTORS if not isinstance(v.message, TelemetrySample)]


@pytest.fixture(scope="module")
def models() -> Any:
    return pydantic.TypeAdapter(server_event.ResponsesServerEvent)


@pytest.mark.parametrize("vector", OPENAI_VECTORS, ids=lambda v: v.name)
def test_the_official_models_accept_it(vector: Vector, models: Any) -> None:
    sent = json.loads(JSON_CODEC.encode(vector.message))
    parsed = models.validate_python(sent)
    assert parsed.type == sent["type"]
    kept = parsed.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert _comparable(kept) == _comparable(sent)


@pytest.mark.parametrize("vector", OPENAI_VECTORS, ids=lambda v: v.name)
def test_the_official_models_would_miss_a_field(vector: Vector, models: Any) -> None:
    """The check above can fail: without its payload, no event is accepted."""
    sent = json.loads(JSON_CODEC.encode(vector.message))
    payload = next(
        name
        for name in ("response", "item", "part", "delta", "text", "arguments", "error")
        if name in sent
    )
    del sent[payload]
    with pytest.raises(pydantic.ValidationError):
        models.validate_python(sent)


def _comparable(value: Any) -> Any:
    """Numbers as floats, so that 1 and 1.0 compare alike after a trip through the models."""
    if isinstance(value, dict):
        return {key: _comparable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_comparable(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value
