"""Keeps the control tokens that a chat template writes apart from text that only looks like them.

A rendered prompt is one string, and a user who types `<|im_end|>` puts the very characters into it
that end a turn. Here every control token that the template wrote becomes an alias, a string with a
random part that no user can know, and the same characters in a user's text become plain characters.
The tokenizer learns the aliases as added tokens with the flags of the originals and then encodes
the whole prompt in one pass, so that splitting and spaces are what they are without aliases.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import TYPE_CHECKING

from tokenizers import AddedToken, Tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable


def is_control(token: AddedToken) -> bool:
    """Whether an added token steers the model instead of being text.

    Special tokens do, and so do added tokens in brackets (`<think>`, fill-in-the-middle marks, the
    turn marks that some models forget to flag). Runs of spaces and whole words are text.
    """
    content = token.content
    return token.special or (
        len(content) > 2 and (content[0], content[-1]) in {("<", ">"), ("[", "]")}
    )


def token_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids of a text, nothing added. Other threads run meanwhile.

    The library's `encode` keeps the interpreter's lock to its end, a tenth of a second for 200,000
    characters, in which neither the event loop nor the engine moves; its `encode_batch_fast` lets
    it go.
    """
    (encoding,) = tokenizer.encode_batch_fast([text], add_special_tokens=False)
    ids: list[int] = encoding.ids
    return ids


class ControlTokens:
    """The control tokens of one tokenizer and their aliases. Immutable and thread-safe."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self.ids = frozenset(token_id for token_id, token in added.items() if is_control(token))
        nonce = secrets.token_hex(8)
        # Planes 15 and 16 are private use: no tokenizer's normalisation touches them.
        self._breaker = f"\U000f8ace{nonce}\U000f8acf"
        self._anchor = f"\U000f8ad0{nonce}\U000f8acf"
        contents = {added[token_id].content: token_id for token_id in self.ids}
        self._aliases = {
            content: f"\U000f8acd{nonce}:{token_id}\U000f8acf"
            for content, token_id in contents.items()
        }
        longest_first = sorted(contents, key=lambda content: (-len(content), content))
        self._literal = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._heads = frozenset(
            content[:end] for content in contents for end in range(1, len(content))
        )
        self._tails = frozenset(
            content[at:] for content in contents for at in range(1, len(content))
        )
        self._max_length = max(map(len, contents), default=0)
        self._text_tokenizer = _with_text_only(tokenizer, self.ids)
        self._text_tokenizer.add_tokens(
            [
                _renamed(added[token_id], self._aliases[content])
                for content, token_id in contents.items()
            ]
            + [AddedToken(self._anchor, normalized=False, special=False)]
        )
        self._id_of_alias: dict[int, int] = {}
        for content, alias in self._aliases.items():
            alias_id = self._text_tokenizer.token_to_id(alias)
            if alias_id is None:
                raise RuntimeError(f"the tokenizer did not take an alias for {content!r}")
            self._id_of_alias[alias_id] = contents[content]

    def shield(self, text: str) -> str:
        """User text in a form that can pass through a template and stay text.

        Only text that holds a control token's characters, or could complete one together with what
        the template puts before or after it, changes at all, so a template's own tests of the text
        work as ever.
        """
        if not self._max_length:
            return text
        shielded = self._literal.sub(lambda match: self._break(match.group()), text)
        if _end_in(shielded, self._heads, self._max_length):
            shielded += self._breaker
        if _start_in(shielded, self._tails, self._max_length):
            shielded = self._breaker + shielded
        return shielded

    def alias(self, rendered: str) -> str:
        """A rendered prompt of shielded texts, with aliases for the template's control tokens and
        the users' texts as they were written. Two such strings compare as prompts do."""
        aliased = self._literal.sub(lambda match: self._aliases[match.group()], rendered)
        return aliased.replace(self._breaker, "")

    def encode(self, aliased: str, *, continues: bool = False) -> list[int]:
        """Token ids of a string from `alias`, or of plain text, which holds no control tokens then.

        continues: the string continues a text, so that a tokenizer that adds a space before the
        first word does not.
        """
        text = self._anchor + aliased if continues else aliased
        ids = token_ids(self._text_tokenizer, text)
        return self._restore(ids[1:] if continues else ids)

    def _restore(self, ids: Iterable[int]) -> list[int]:
        return [self._id_of_alias.get(token_id, token_id) for token_id in ids]

    def _break(self, content: str) -> str:
        return content[0] + self._breaker + content[1:]


def _end_in(text: str, parts: frozenset[str], max_length: int) -> bool:
    return any(text[-length:] in parts for length in range(1, min(max_length, len(text) + 1)))


def _start_in(text: str, parts: frozenset[str], max_length: int) -> bool:
    return any(text[:length] in parts for length in range(1, min(max_length, len(text) + 1)))


def _renamed(token: AddedToken, content: str) -> AddedToken:
    return AddedToken(
        content,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )


def _with_text_only(tokenizer: Tokenizer, control_ids: frozenset[int]) -> Tokenizer:
    """A copy that encodes the control tokens' characters as text."""
    state = json.loads(tokenizer.to_str())
    for token in state["added_tokens"]:
        token["special"] = token["id"] in control_ids
    copy: Tokenizer = Tokenizer.from_str(json.dumps(state))
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy
