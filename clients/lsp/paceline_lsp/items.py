"""A completion in the two forms that editors take."""

from __future__ import annotations

import re

from lsprotocol import types

from paceline_lsp.documents import PositionEncoding, num_units

_WORD_END = re.compile(r"\w*\Z")
_MAX_LABEL = 60


def inline_item(text: str, span: types.Range, accept: types.Command) -> types.InlineCompletionItem:
    """span: within one line; the text takes its place. An explicit one, even when it is empty,
    because some editors take a missing range for the word under the cursor."""
    return types.InlineCompletionItem(insert_text=text, range=span, command=accept)


def completion_item(
    text: str,
    line_before: str,
    position: types.Position,
    encoding: PositionEncoding,
    *,
    language_id: str,
    accept: types.Command,
) -> types.CompletionItem:
    """An entry of the completion list. Editors match entries with the word before the cursor, so
    the entry starts with that word and replaces it."""
    match = _WORD_END.search(line_before)
    word = match.group() if match else ""
    whole = word + text
    start = position.character - num_units(word, encoding)
    first, newline, _ = whole.strip().partition("\n")
    label = first.strip()
    if newline or len(label) > _MAX_LABEL:
        label = f"{label[:_MAX_LABEL]} …"
    return types.CompletionItem(
        label=label,
        kind=types.CompletionItemKind.Snippet if newline else types.CompletionItemKind.Text,
        detail="Paceline",
        documentation=types.MarkupContent(
            types.MarkupKind.Markdown, f"```{language_id}\n{whole}\n```"
        ),
        sort_text="\x01",
        filter_text=whole,
        insert_text_format=types.InsertTextFormat.PlainText,
        insert_text_mode=types.InsertTextMode.AsIs,
        text_edit=types.TextEdit(
            types.Range(types.Position(position.line, start), position), whole
        ),
        command=accept,
    )
