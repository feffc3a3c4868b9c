"""The browser's message types and the document that they are generated from."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_types_are_generated_from_the_document_as_it_is() -> None:
    document = (ROOT / "protocol" / "asyncapi.json").read_bytes()
    types = (ROOT / "clients" / "web" / "src" / "protocol.generated.ts").read_text()
    found = re.search(r"sha256 of the document: (\w+)", types)
    assert found is not None
    assert found[1] == hashlib.sha256(document).hexdigest(), (
        "run `npm run protocol` in clients/web to write the types anew"
    )


def test_the_lock_file_names_no_registry() -> None:
    lock = (ROOT / "clients" / "web" / "package-lock.json").read_text()
    assert '"resolved"' not in lock
