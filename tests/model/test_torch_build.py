"""What torch can compute on, told without importing it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch

from paceline.model import torch_build

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("version", "has_driver", "words"),
    [
        ("__version__ = '2.9+cpu'\ncuda = None\nhip = None", True, "(2.9+cpu) is one for CPUs"),
        ("__version__ = '2.9'\ncuda = '12.8'\nhip = None", False, "no NVIDIA driver"),
        ("__version__ = '2.9'\ncuda = '12.8'\nhip = None", True, None),
        ("__version__ = '2.9'\ncuda = None\nhip = '6.4'", False, None),
        ("__version__ = 'of a layout that nobody knows'", True, None),
        ("this is no Python", True, None),
    ],
)
def test_why_there_is_no_cuda(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    has_driver: bool,
    words: str | None,
) -> None:
    (tmp_path / "version.py").write_text(version)
    found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(torch_build, "_has_driver", lambda: has_driver)
    monkeypatch.setattr(sys, "platform", "linux")
    reason = torch_build.why_no_cuda()
    assert (reason is None) == (words is None)
    assert (words or "") in (reason or "")


def test_without_torch_there_is_nothing_to_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert torch_build.why_no_cuda() is None


def test_it_agrees_with_torch() -> None:
    assert torch_build.why_no_cuda() is None or not torch.cuda.is_available()


def test_it_does_not_import_torch() -> None:
    program = (
        "import sys\n"
        "from paceline.model.torch_build import why_no_cuda\n"
        "why_no_cuda()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)}
    )
