"""How families of models write tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Dialect:
    """begins: any of them announces calls; end: what closes one, if anything does.

    is_bare: an answer that begins with `{` may be a call without any announcement.
    has_arrays: several calls stand in one array behind one announcement. names_first: a call may be
    written `name[ARGS]{...}` or `name{...}`. arguments_key: what the arguments are called.
    """

    name: str
    begins: tuple[str, ...]
    end: str | None = None
    is_bare: bool = False
    has_arrays: bool = False
    names_first: bool = False
    arguments_key: str = "arguments"


HERMES: Final = Dialect("hermes", ("<tool_call>",), "</tool_call>")
LLAMA: Final = Dialect("llama", ("<|python_tag|>",), is_bare=True, arguments_key="parameters")
MISTRAL: Final = Dialect("mistral", ("[TOOL_CALLS]",), has_arrays=True, names_first=True)
GRANITE: Final = Dialect("granite", ("<|tool_call|>", "<tool_call>"), has_arrays=True)
GENERIC: Final = Dialect("generic", ("<tool_call>",), "</tool_call>", is_bare=True)

DIALECTS: Final = {each.name: each for each in (HERMES, LLAMA, MISTRAL, GRANITE, GENERIC)}
MARKERS: Final = frozenset(
    {marker for each in DIALECTS.values() for marker in each.begins}
    | {"</tool_call>", "[ARGS]", "<think>", "</think>"}
)
"""Everything that parsers look for; where a tokenizer has one as a special token, which has no text
of its own, the server puts its text back."""


def dialect_of(template: str | None) -> Dialect:
    """The dialect that a chat template teaches its model; GENERIC where it knows no tools."""
    if template is None:
        return GENERIC
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<|tool_call|>" in template:
        return GRANITE
    if "<tool_call>" in template:
        return HERMES
    if "<|python_tag|>" in template or "ipython" in template:
        return LLAMA
    return GENERIC
