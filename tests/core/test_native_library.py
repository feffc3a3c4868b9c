"""Libraries built for this machine: kept, rebuilt on change, done without where they cannot be."""

from __future__ import annotations

import ctypes
import shutil
from typing import TYPE_CHECKING

import pytest

from paceline.core.native_library import build_library, open_library, telling_builds

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "answer.cpp"
    path.write_text('extern "C" int answer() { return 42; }\n', encoding="utf-8")
    return path


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_library_is_built_once_and_again_when_its_source_changes(source: Path) -> None:
    path = build_library(source)
    assert path is not None
    assert ctypes.CDLL(str(path)).answer() == 42
    built = path.stat().st_mtime_ns
    assert build_library(source) == path
    assert path.stat().st_mtime_ns == built
    source.write_text('extern "C" int answer() { return 43; }\n', encoding="utf-8")
    other = build_library(source)
    assert other is not None
    assert other != path
    assert ctypes.CDLL(str(other)).answer() == 43
    assert not list(path.parent.glob("tmp*")), "half-built files are left behind"


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_build_is_told_before_it_begins_and_only_then(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []
    with telling_builds(told.append):
        for _ in range(2):
            assert build_library(source) is not None
    assert told == ["Compiling answer.cpp for this machine, once; some seconds"]
    source.write_text('extern "C" int answer() { return 43; }\n', encoding="utf-8")
    with caplog.at_level("INFO"):
        assert build_library(source) is not None
    assert len(told) == 1
    assert "Compiling answer.cpp" in caplog.text


def test_without_a_compiler_there_is_none(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert build_library(source) is None


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_source_that_does_not_compile_is_reported(
    source: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source.write_text("this is no C++\n", encoding="utf-8")
    assert build_library(source) is None
    assert "answer.cpp cannot be built" in caplog.text


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_a_damaged_library_is_built_again(source: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = build_library(source)
    assert path is not None
    path.write_bytes(b"damaged")
    library = open_library(source, {"answer": ()})
    assert library is not None
    library.answer.restype = ctypes.c_int
    assert library.answer() == 42
    assert "cannot be loaded" in caplog.text
