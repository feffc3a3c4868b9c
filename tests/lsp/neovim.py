"""A headless Neovim with our Lua client, driven over its RPC channel on standard streams."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
_PYTHON_PATH = ":".join(
    str(ROOT / each) for each in ("backend", "protocol", "clients/python", "clients/lsp")
)
LANGUAGE_SERVER = [sys.executable, "-c", "from paceline.cli import main; main()", "lsp", "--stdio"]


class Neovim:
    """Use as a context manager. command: starts the language server. settings: those of it."""

    def __init__(
        self, folder: Path, *, command: Sequence[str] = LANGUAGE_SERVER, **settings: Any
    ) -> None:
        self._folder = folder
        self._command = list(command)
        self._settings = settings
        self._number = 0

    def __enter__(self) -> Self:
        # --clean: no configuration of the person who runs the tests
        self._process = subprocess.Popen(
            ["nvim", "--clean", "--embed", "--headless", "-n", "-i", "NONE"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=self._folder,
            env=os.environ
            | {
                "PYTHONPATH": _PYTHON_PATH,
                "XDG_STATE_HOME": str(self._folder),
                "XDG_CACHE_HOME": str(self._folder),
            },
        )
        self.lua(
            "vim.opt.runtimepath:prepend(...)",
            str(ROOT / "clients" / "lsp" / "nvim"),
        )
        self.lua(
            "require('paceline').setup({ cmd = ..., settings = select(2, ...) })",
            self._command,
            self._settings,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._send("nvim_command", ["qall!"])
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.communicate()

    def lua(self, code: str, *arguments: Any) -> Any:
        return self._call("nvim_exec_lua", [code, list(arguments)])

    def input(self, keys: str) -> None:
        """Type keys, as a person would; they are handled when Neovim next waits for one."""
        self._call("nvim_input", [keys])

    def edit(self, name: str, text: str) -> None:
        """A new file in the editor, never saved, with the cursor where it says `|`."""
        before, _, after = text.partition("|")
        self.lua("vim.cmd('edit ' .. ...)", name)
        lines = (before + after).split("\n")
        row, column = before.count("\n"), len(before.rpartition("\n")[2].encode())
        self.lua("vim.api.nvim_buf_set_lines(0, 0, -1, false, ...)", lines)
        # One column further than normal mode allows comes with `a`.
        line = lines[row].encode()
        if column == len(line):
            self.lua("vim.api.nvim_win_set_cursor(0, ...)", [row + 1, max(0, column - 1)])
            self.input("A")
        else:
            self.lua("vim.api.nvim_win_set_cursor(0, ...)", [row + 1, column])
            self.input("i")
        self.until(lambda: self.lua("return vim.api.nvim_get_mode().mode") == "i", "insert mode")

    @property
    def text(self) -> str:
        lines: list[str] = self.lua("return vim.api.nvim_buf_get_lines(0, 0, -1, false)")
        return "\n".join(lines)

    @property
    def ghost(self) -> str | None:
        """The ghost text on the screen; None if there is none."""
        marks = self.lua(
            "return vim.api.nvim_buf_get_extmarks(0, vim.api.nvim_get_namespaces().paceline,"
            " 0, -1, { details = true })"
        )
        if not marks:
            return None
        details = marks[0][3]
        lines = [
            "".join(part for part, highlight in line if highlight == "PacelineGhost")
            for line in [details.get("virt_text", []), *details.get("virt_lines", [])]
        ]
        return "\n".join(lines)

    @property
    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = self.lua("return require('paceline').status")
        return status

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        """Looks until the condition has a true value, and returns that."""
        deadline = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            if time.monotonic() > deadline:
                messages = self.lua("return vim.fn.execute('messages')")
                raise AssertionError(
                    f"{what} did not come; status {self.status}, ghost {self.ghost!r}, "
                    f"text {self.text!r}, messages {messages}"
                )
            time.sleep(0.02)
        return value

    def _send(self, method: str, arguments: list[Any]) -> int:
        self._number += 1
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.msgpack.encode([0, self._number, method, arguments]))
        self._process.stdin.flush()
        return self._number

    def _call(self, method: str, arguments: list[Any]) -> Any:
        number = self._send(method, arguments)
        assert self._process.stdout is not None
        received = b""
        while True:
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                raise AssertionError("Neovim has ended")
            received += more
            try:
                kind, answered, error, result = msgspec.msgpack.decode(received)
            except msgspec.DecodeError:
                continue  # not all of it yet: only one answer is ever on its way
            assert (kind, answered) == (1, number)
            if error is not None:
                raise AssertionError(f"Neovim says: {error}")
            return result
