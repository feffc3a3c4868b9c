"""Small C++ libraries, built once for this machine and kept in the user's cache.

Needs a C++ compiler with OpenMP, as `torch.compile` does. Whoever uses this has another way where
there is none.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.cache_folder import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Functions = Mapping[str, Sequence[type[ctypes._SimpleCData[Any]]]]

POINTER, LONG, INT, FLOAT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", "-std=c++17")
FLOAT_FLAGS = ("-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros")
_BUILD_SECONDS = 120
_log = logging.getLogger(__name__)


def _tell_log(what: str) -> None:
    _log.info("%s", what)


_tell: ContextVar[Callable[[str], None]] = ContextVar("_tell", default=_tell_log)


@contextmanager
def telling_builds(tell: Callable[[str], None]) -> Iterator[None]:
    """While the block runs, `tell` hears of each library that its thread is about to build; else
    the log does."""
    token = _tell.set(tell)
    try:
        yield
    finally:
        _tell.reset(token)


def open_library(
    source: Path,
    functions: Functions,
    *,
    headers: Sequence[Path] = (),
    flags: Sequence[str] = FLOAT_FLAGS,
) -> ctypes.CDLL | None:
    """The library of one source file, as of `build_library`, open; None, with a line in the log,
    where it cannot be built or loaded.

    functions: what is called of it, by name, with the types of the arguments. They return nothing.
    """
    path = build_library(source, headers=headers, flags=flags)
    if path is None:
        return None
    library = _opened(path)
    if library is None:  # damaged on the disk, or of another machine
        path.unlink(missing_ok=True)
        path = build_library(source, headers=headers, flags=flags)
        library = None if path is None else _opened(path)
    if library is not None:
        declare(library, functions)
    return library


def _opened(path: Path) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        _log.warning("%s cannot be loaded: %s", path, error)
        return None


def declare(library: ctypes.CDLL, functions: Functions) -> None:
    """Says what these functions of an open library take, and that they return nothing."""
    for name, types in functions.items():
        function = getattr(library, name)
        function.argtypes, function.restype = tuple(types), None


def build_library(
    source: Path, *, headers: Sequence[Path] = (), flags: Sequence[str] = FLOAT_FLAGS
) -> Path | None:
    """The shared library of one source file, built now if it is not in the cache (some seconds,
    once); None, with a line in the log, where it cannot be built.

    headers: what it includes, beside the system's. flags: beside those that all libraries have.
    """
    names = (os.environ.get("CXX"), "g++", "clang++", "c++")
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None:
        _log.info("no C++ compiler found: %s runs on torch's own operations, slower", source.stem)
        return None
    try:
        return _built(source, compiler, headers, flags)
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None) or str(error)
        _log.warning("%s cannot be built, torch's operations are used: %s", source.name, detail)
        return None


def _built(source: Path, compiler: str, headers: Sequence[Path], flags: Sequence[str]) -> Path:
    flags = (*_FLAGS, *flags)
    version = _run(compiler, "--version")
    texts = [path.read_text(encoding="utf-8") for path in (source, *headers)]
    identity = (texts, compiler, version, flags, _processor())
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()[:24]
    folder = cache_folder() / "kernels"
    target = folder / f"{source.stem}-{digest}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _tell.get()(f"Compiling {source.name} for this machine, once; some seconds")
        # Two processes may build at once; each moves a whole file into place.
        handle, name = tempfile.mkstemp(suffix=".so", dir=folder)
        os.close(handle)
        try:
            _run(compiler, *flags, str(source), "-o", name)
            Path(name).replace(target)
        finally:
            Path(name).unlink(missing_ok=True)
    return target


def _run(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=_BUILD_SECONDS
    ).stdout


def _processor() -> str:
    """What `-march=native` depends on: a cache may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
