"""Token ids to text, one id at a time, with nothing lost at the end.

Knows tokenizers' `DecodeStream` and nothing about stop strings: holding back a possible stop string
is the engine's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers.decoders import DecodeStream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

# Ids of the prompt that the stream sees. Some decoders treat the first token otherwise (they strip
# its leading space), and a character may have begun in the prompt; no character needs more.
_NUM_CONTEXT = 8
# A character is at most four bytes and a token holds at least one, so a longer wait means bytes
# that are no UTF-8 and never will be.
_MAX_PENDING = 8


class Detokenizer:
    """Text of one growing sequence of token ids.

    `append` returns the text that became certain: an id in the middle of a character gives "" and
    the id that completes it gives the character. Special tokens give no text. What is left at the
    end of the sequence, an unfinished character, comes from `flush` as U+FFFD. The prompt's text
    is never returned. Joined, the pieces are what decoding all ids at once would give.

    Not thread-safe; one owner.
    """

    __slots__ = ("_context", "_pending", "_special_ids", "_stream", "_tokenizer")

    def __init__(
        self, tokenizer: Tokenizer, prompt_ids: Sequence[int], special_ids: frozenset[int]
    ) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        plain = [token_id for token_id in prompt_ids[-64:] if token_id not in special_ids]
        self._context: list[int] = plain[-_NUM_CONTEXT:]
        self._pending: list[int] = []
        self._stream = self._new_stream()

    def append(self, token_id: int) -> str:
        """Takes the next token id; returns the text that is certain now, often ""."""
        if token_id in self._special_ids:
            return ""
        self._pending.append(token_id)
        try:
            text = self._stream.step(self._tokenizer, token_id)
        except Exception:
            # DecodeStream raises a bare Exception when decoding changes what it gave before.
            return self.flush()
        if text is None:
            return self.flush() if len(self._pending) >= _MAX_PENDING else ""
        self._settle()
        return text

    def flush(self) -> str:
        """The text of the ids still waiting; ends the sequence's text, or restarts cleanly."""
        if not self._pending:
            return ""
        before = self._decode(self._context)
        whole = self._decode(self._context + self._pending)
        self._settle()
        self._stream = self._new_stream()
        shared = 0
        for left, right in zip(before, whole, strict=False):
            if left != right:
                break
            shared += 1
        return whole[shared:]

    def _settle(self) -> None:
        self._context = (self._context + self._pending)[-_NUM_CONTEXT:]
        self._pending = []

    def _new_stream(self) -> DecodeStream:
        # A context whose text ends in U+FFFD looks unfinished to the stream, which would give it
        # out again together with what follows.
        while self._context and self._decode(self._context).endswith("\ufffd"):
            self._context.pop()
        return DecodeStream(ids=self._context, skip_special_tokens=True)

    def _decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text
