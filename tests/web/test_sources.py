"""The browser's code: its types, and the tests of its logic, run by Node."""

from __future__ import annotations

import subprocess

import pytest

from tests.web.node import WEB, node, why_not

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "can run")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(node()), *arguments],
        cwd=WEB,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def test_the_types_agree() -> None:
    done = run("node_modules/typescript/bin/tsc")
    assert done.returncode == 0, done.stdout


def test_the_message_types_are_generated_from_the_protocol_as_it_is() -> None:
    done = run("scripts/generate-protocol.mjs", "--check")
    assert done.returncode == 0, done.stdout


def test_the_logic() -> None:
    done = run("node_modules/vitest/vitest.mjs", "run")
    assert done.returncode == 0, done.stdout
