"""The golden vectors: complete, the same in both encodings, and read back exactly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from paceline_protocol import JSON_CODEC, MSGPACK_CODEC
from paceline_protocol import messages as m
from paceline_protocol.vectors import CLIENT_VECTORS, SERVER_VECTORS, Vector

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"


def _name(vector: Vector) -> str:
    return vector.name


def _stored(file_name: str) -> list[dict[str, str]]:
    stored: list[dict[str, str]] = json.loads((FOLDER / file_name).read_text(encoding="utf-8"))
    return stored


@pytest.mark.parametrize("vector", CLIENT_VECTORS, ids=_name)
def test_client_messages_survive_both_encodings(vector: Vector) -> None:
    assert JSON_CODEC.decode_client(JSON_CODEC.encode(vector.message)) == vector.message
    assert MSGPACK_CODEC.decode_client(MSGPACK_CODEC.encode(vector.message)) == vector.message


@pytest.mark.parametrize("vector", SERVER_VECTORS, ids=_name)
def test_server_messages_survive_both_encodings(vector: Vector) -> None:
    assert JSON_CODEC.decode_server(JSON_CODEC.encode(vector.message)) == vector.message
    assert MSGPACK_CODEC.decode_server(MSGPACK_CODEC.encode(vector.message)) == vector.message


@pytest.mark.parametrize("stored", _stored("client_events.json"), ids=lambda v: v["name"])
def test_stored_client_vectors_decode_alike(stored: dict[str, str]) -> None:
    from_json = JSON_CODEC.decode_client(stored["json"])
    assert MSGPACK_CODEC.decode_client(bytes.fromhex(stored["msgpack"])) == from_json
    assert JSON_CODEC.encode(from_json) == stored["json"]


@pytest.mark.parametrize("stored", _stored("server_events.json"), ids=lambda v: v["name"])
def test_stored_server_vectors_decode_alike(stored: dict[str, str]) -> None:
    from_json = JSON_CODEC.decode_server(stored["json"])
    assert MSGPACK_CODEC.decode_server(bytes.fromhex(stored["msgpack"])) == from_json
    assert MSGPACK_CODEC.encode(from_json).hex() == stored["msgpack"]


def test_every_message_has_a_vector() -> None:
    shown = {type(vector.message) for vector in (*CLIENT_VECTORS, *SERVER_VECTORS)}
    assert shown == {*m.CLIENT_EVENTS, *m.SERVER_EVENTS}


def test_every_field_of_every_part_is_shown_with_a_value() -> None:
    """A field that no vector uses could change its meaning unseen."""
    shown: dict[type[msgspec.Struct], set[str]] = {}
    for vector in (*CLIENT_VECTORS, *SERVER_VECTORS):
        _collect(vector.message, shown)
    missing = [
        f"{cls.__name__}.{name}"
        for cls, names in shown.items()
        for name in cls.__struct_fields__
        if name not in names
    ]
    constant = {"ErrorEvent.sequence_number", "OutputText.annotations", "Reasoning.summary"}
    lanes = {name for name in missing if name.endswith(".stream_id")} - {
        "OutputTextDelta.stream_id"
    }
    assert set(missing) - lanes <= constant | {"Response.tools"}


def test_names_are_unique() -> None:
    names = [vector.name for vector in (*CLIENT_VECTORS, *SERVER_VECTORS)]
    assert len(set(names)) == len(names)


def _collect(value: Any, shown: dict[type[msgspec.Struct], set[str]]) -> None:
    if isinstance(value, msgspec.Struct):
        names = shown.setdefault(type(value), set())
        for name in value.__struct_fields__:
            inner = getattr(value, name)
            if inner is not None and inner is not msgspec.UNSET and inner != []:
                names.add(name)
            _collect(inner, shown)
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, shown)
