"""What the README says is so."""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING

import msgspec
import pytest

from paceline_lsp.server import ACCEPT_COMMAND, DID_CHANGE_STATUS, DID_PARTIALLY_ACCEPT, DID_SHOW
from paceline_lsp.server import STATUS as STATUS_REQUEST
from paceline_lsp.settings import Settings
from tests.lsp.neovim import ROOT, Neovim

if TYPE_CHECKING:
    from pathlib import Path

README = (ROOT / "clients" / "lsp" / "README.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_every_setting_stands_in_the_table_with_its_default() -> None:
    table = README.partition("## Settings")[2].partition("## ")[0]
    named: dict[str, str] = {}
    for names, defaults in re.findall(
        r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", table, re.MULTILINE
    ):
        values = [value.strip(" `") for value in defaults.split(", ")]
        named.update(zip(re.findall(r"\w+", names), values, strict=True))
    real = msgspec.to_builtins(Settings())
    assert named.keys() == real.keys()
    for name, value in real.items():
        shown = "none" if value is None else value if isinstance(value, str) else json.dumps(value)
        assert named[name] in (shown, shown.removesuffix(".0"))


def test_events_have_the_names_they_have() -> None:
    for name in (ACCEPT_COMMAND, DID_CHANGE_STATUS, DID_PARTIALLY_ACCEPT, DID_SHOW, STATUS_REQUEST):
        assert f"`{name}`" in README


def test_configurations_are_well_formed() -> None:
    assert len(_blocks("toml")) == 2
    for block in _blocks("toml"):
        assert "paceline" in str(tomllib.loads(block))
    (package,) = _blocks("json")
    assert json.loads(package)["main"] == "extension.js"


@pytest.mark.editor
def test_the_lua_example_runs(tmp_path: Path) -> None:
    example = _blocks("lua")[0].replace("PATH-TO-PACELINE", str(ROOT))
    with Neovim(tmp_path) as editor:
        editor.lua(example.replace("settings = {", "cmd = { 'true' }, settings = {"))
        assert editor.lua("return vim.fn.maparg('<Tab>', 'i') ~= ''")
