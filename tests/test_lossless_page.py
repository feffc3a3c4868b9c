"""The page on losslessness names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "ops/docs/lossless.md").read_text(encoding="utf-8")
SOURCES = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(test_\w+)`", PAGE))))
def test_named_tests_exist(name: str) -> None:
    assert re.search(rf"def {name}\(", SOURCES)


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(tests/[\w/.]+)`", PAGE))))
def test_named_files_exist(path: str) -> None:
    assert (ROOT / path).is_file()


def test_every_row_of_the_table_names_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.count("|") == 8][2:]
    assert len(rows) == 14
    previous_has_test = False
    for row in rows:
        backing = row.rstrip("| ").rpartition("|")[2]
        assert "`" in backing or (backing.strip() == "the same" and previous_has_test)
        previous_has_test = True
