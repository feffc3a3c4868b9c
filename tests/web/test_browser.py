"""The pages in Chromium: each file of `clients/web/test/browser`, run by Node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from tests.web.node import WEB, node, why_not

SPECS = sorted(path.name for path in (WEB / "test" / "browser").glob("*.spec.ts"))
BUILT = WEB.parents[1] / "backend" / "paceline" / "server" / "web" / "index.html"

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.timeout(1200)]


def missing() -> str:
    if chromium() is None:
        return "Chromium is not here"
    if not BUILT.is_file():
        return "the pages are not built: `npm run build` in clients/web"
    return why_not()


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.parametrize("spec", SPECS)
def test_in_chromium(spec: str) -> None:
    assert not missing(), missing()
    done = subprocess.run(
        [
            str(node()),
            "node_modules/vitest/vitest.mjs",
            "run",
            "--config=vitest.browser.config.ts",
            f"test/browser/{spec}",
        ],
        cwd=WEB,
        env=os.environ | {"PACELINE_PYTHON": sys.executable, "PACELINE_CHROMIUM": str(chromium())},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_there_is_something_to_run() -> None:
    assert len(SPECS) >= 5
