"""Where a completion ends: by indentation, and where the document goes on by itself.

Pure functions over text. A completion is whatever the model wrote after the cursor; a block is the
part of it that belongs to what the cursor stands in.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline_lsp.surroundings import Surroundings

_TAB_WIDTH = 4
_CLOSER = re.compile(r"[)\]}>]|end\b|fi\b|done\b|esac\b")
_CONTINUATION = re.compile(r"(else|elif|elsif|except|finally|catch|rescue|ensure|case|default)\b")
_OPENER = ("{", "(", "[", ":", "do", "then")
# Enough of a line to tell what it begins with: a whole word, or a character that is none.
_DECIDED = re.compile(r"\s*(\w+\W|[^\w\s)\]}>])")


def is_single_line(surroundings: Surroundings) -> bool:
    """Whether only the rest of the cursor's line makes sense: something stands behind the cursor in
    its line."""
    return bool(surroundings.line_after.strip())


def block_end(text: str, line_before: str, *, max_lines: int) -> int | None:
    """Index into the completion at which the cursor's block ends; None while it may go on.

    line_before: the cursor's line up to the cursor. Once it gives an index, it gives the same for
    every longer completion, so a stream can be stopped there.

    The block ends before a line that is indented less than the cursor's line, and after max_lines
    lines. Where the completion continues a statement, or starts one at the outermost level, it also
    ends before the next line at its level once there were deeper ones (a closing bracket or `else`
    still belongs to it); at the outermost level at the first blank line outside of any block. Where
    it starts a statement of a body, the whole body may follow.
    """
    lines = text.split("\n")
    is_in_statement = bool(line_before.strip())
    base: int | None = None
    is_deeper = False
    at = 0
    for number, line in enumerate(lines):
        is_whole = number < len(lines) - 1
        start, at = at, at + len(line) + 1
        if number >= max_lines:
            return start - 1
        whole_line = line_before + line if number == 0 else line
        content = whole_line.strip()
        if not content:
            if not is_whole or number == 0:
                continue
            if base == 0 and not is_deeper:
                return start - 1
            continue
        if base is None:
            base = _indentation(whole_line)
            continue
        if not is_whole and not _DECIDED.match(line):
            continue
        indentation = _indentation(line)
        if indentation > base:
            is_deeper = True
        elif indentation < base:
            return start - 1
        elif is_deeper and (is_in_statement or base == 0):
            if _CLOSER.match(content):
                if not is_whole:
                    continue
                if not content.endswith(_OPENER):
                    return at - 1
            elif not _CONTINUATION.match(content):
                return start - 1
    return None


def shape(text: str, surroundings: Surroundings, *, single_line: bool, max_lines: int) -> str:
    """The part of a completion that is offered; "" when nothing of it is worth it."""
    if single_line:
        text = text.partition("\n")[0]
    else:
        end = block_end(text, surroundings.line_before, max_lines=max_lines)
        text = text if end is None else text[:end]
    text = without_repeated(text, surroundings)
    return text.rstrip() if text.strip() else ""


def without_repeated(text: str, surroundings: Surroundings) -> str:
    """A completion without what stands behind the cursor already.

    The end of it that the rest of the cursor's line begins with goes, and everything from a line on
    that is the next line of the document.
    """
    rest = surroundings.line_after.rstrip()
    if rest:
        text = text[: len(text) - _overlap(text, rest)]
    next_line = next((line for line in surroundings.lines_below.split("\n") if line.strip()), "")
    if not next_line:
        return text
    lines = text.split("\n")
    for number, line in enumerate(lines):
        whole = surroundings.line_before + line if number == 0 else line
        if whole.rstrip() != next_line.rstrip():
            continue
        is_last = not any(later.strip() for later in lines[number + 1 :])
        if is_last or _is_telling(next_line):
            return "\n".join(lines[:number])
    return text


def _overlap(text: str, rest: str) -> int:
    """Length of the longest end of the text that is a beginning of the rest."""
    for length in range(min(len(text), len(rest)), 0, -1):
        if text.endswith(rest[:length]):
            return length
    return 0


def _is_telling(line: str) -> bool:
    """Whether a line is unlikely to come twice by chance: more than brackets and a word."""
    return sum(character.isalnum() for character in line) >= 5


def _indentation(line: str) -> int:
    """Columns before the first character that is no space."""
    expanded = line.expandtabs(_TAB_WIDTH)
    return len(expanded) - len(expanded.lstrip())
