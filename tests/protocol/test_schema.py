"""The AsyncAPI document: up to date, consistent in itself, and true to what the codecs do."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from paceline_protocol import JSON_CODEC
from paceline_protocol import messages as m
from paceline_protocol.schema import asyncapi_document, generated_files, main, outdated
from paceline_protocol.vectors import CLIENT_VECTORS, SERVER_VECTORS, Vector

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENT = asyncapi_document()


def test_generated_files_are_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"]) == 0, capsys.readouterr().err


def test_drift_is_found_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--directory", str(tmp_path)]
    assert main([*arguments, "--check"]) == 1
    assert main(arguments) == 0
    assert main([*arguments, "--check"]) == 0
    capsys.readouterr()
    vectors = tmp_path / "vectors" / "server_events.json"
    vectors.write_text(vectors.read_text().replace("residual", "recovered"))
    assert outdated(tmp_path) == ["vectors/server_events.json"]
    assert main([*arguments, "--check"]) == 1
    assert "server_events.json is out of date" in capsys.readouterr().err


def test_every_reference_leads_somewhere() -> None:
    references = list(_references(DOCUMENT))
    assert len(references) > 50
    for reference in references:
        here: Any = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            here = here[step]


def test_every_message_is_in_exactly_one_operation() -> None:
    operations = DOCUMENT["operations"]
    listed = [
        reference["$ref"].rsplit("/", 1)[1]
        for name in ("receiveClientEvents", "sendServerEvents")
        for reference in operations[name]["messages"]
    ]
    tags = [str(cls.__struct_config__.tag) for cls in (*m.CLIENT_EVENTS, *m.SERVER_EVENTS)]
    assert sorted(listed) == sorted(tags)


@pytest.mark.parametrize("vector", [*CLIENT_VECTORS, *SERVER_VECTORS], ids=lambda v: v.name)
def test_vectors_are_valid_by_the_schema(vector: Vector) -> None:
    _validator(type(vector.message).__name__).validate(json.loads(_json(vector)))


@pytest.mark.parametrize("vector", SERVER_VECTORS, ids=lambda v: v.name)
def test_a_server_event_may_leave_out_only_what_can_be_unset(vector: Vector) -> None:
    """What a program generated from the schema relies on."""
    validator = _validator(type(vector.message).__name__)
    value = json.loads(_json(vector))
    for name in value:
        without = {key: inner for key, inner in value.items() if key != name}
        if name in {"stream_id", "paceline"}:
            validator.validate(without)
        else:
            with pytest.raises(jsonschema.ValidationError, match="required"):
                validator.validate(without)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ResponseCreate", {"type": "response.create", "temperature": -1}),
        ("ResponseCreate", {"type": "response.create", "top_p": 0}),
        ("ResponseCreate", {"type": "response.create", "paceline": {"topk": 1}}),
        ("ResponseCreate", {"type": "response.create", "input": [{"role": "tool"}]}),
        ("CompletionCreate", {"type": "completion.create"}),
        ("TelemetrySubscribe", {"type": "telemetry.subscribe", "scope": "all"}),
    ],
)
def test_the_schema_refuses_what_the_codec_refuses(name: str, value: object) -> None:
    with pytest.raises(jsonschema.ValidationError):
        _validator(name).validate(value)
    with pytest.raises(ValueError):
        JSON_CODEC.decode_client(json.dumps(value))


@pytest.mark.parametrize(
    "value",
    [
        {"type": "response.create", "input": [{"role": "user", "content": "x"}]},
        {"type": "response.create", "service_tier": "auto"},
    ],
)
def test_the_schema_allows_what_the_codec_allows(value: object) -> None:
    _validator("ResponseCreate").validate(value)
    JSON_CODEC.decode_client(json.dumps(value))


@pytest.mark.slow
def test_the_document_is_valid_asyncapi(tmp_path: Path) -> None:
    """By the meta-schema that the AsyncAPI project publishes on npm."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm, which brings the meta-schema, is not installed")
    packed = subprocess.run(
        [npm, "pack", "--silent", "@asyncapi/specs@6.11.1"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    with tarfile.open(tmp_path / packed) as archive:
        member = archive.extractfile("package/schemas/3.1.0-without-$id.json")
        assert member is not None
        validator = jsonschema.Draft7Validator(json.load(member))
    document = json.loads(generated_files()["asyncapi.json"])
    validator.validate(document)
    document["operations"]["sendServerEvents"]["action"] = "shout"
    assert not validator.is_valid(document)


def _validator(name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema.Draft202012Validator(schema)


def _json(vector: Vector) -> str | bytes:
    return JSON_CODEC.encode(vector.message)


def _references(value: Any) -> Any:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for inner in value.values():
            yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)
