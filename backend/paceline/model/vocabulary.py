"""What token ids mean, and whether two models mean the same by them.

Two models can be paired when the same id stands for the same bytes in both. Names, sizes and
tokenizer classes say nothing about that, so the contents are compared.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paceline.core.errors import VocabularyMismatchError

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The meaning of every id: its bytes and whether it is a control token.

    tokens: by id; None for an id without a meaning.
    """

    tokens: tuple[tuple[bytes, bool] | None, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, control_ids: frozenset[int]) -> Vocabulary:
        """Reads a tokenizer. control_ids: ids that steer the model instead of being text."""
        by_id = {token_id: token for token, token_id in tokenizer.get_vocab(True).items()}
        added = tokenizer.get_added_tokens_decoder()
        to_bytes = _BytesOfToken(json.loads(tokenizer.to_str()).get("decoder"))
        tokens: list[tuple[bytes, bool] | None] = [None] * (max(by_id, default=-1) + 1)
        for token_id, token in by_id.items():
            content = token.encode() if token_id in added else to_bytes(token)
            tokens[token_id] = (content, token_id in control_ids)
        return cls(tuple(tokens))

    @property
    def size(self) -> int:
        return len(self.tokens)

    def token_bytes(self, token_id: int) -> bytes:
        token = self.tokens[token_id] if 0 <= token_id < len(self.tokens) else None
        return b"" if token is None else token[0]

    def fingerprint(self) -> str:
        """A short name for the contents: equal vocabularies have equal fingerprints."""
        digest = hashlib.sha256()
        for token in self.tokens:
            content, is_control = (b"", False) if token is None else token
            kind = 0 if token is None else 2 if is_control else 1
            digest.update(len(content).to_bytes(4, "little") + bytes([kind]) + content)
        return digest.hexdigest()[:32]


def require_same_vocabulary(target: Vocabulary, draft: Vocabulary) -> None:
    """Checks that target and draft can be paired: every id of the target means the same bytes in
    the draft, as text or as a control token.

    Rows of either model beyond its vocabulary (a padded tail), and ids that only the draft has, are
    no mismatch: whoever samples masks them from `target.size` on.

    Raises VocabularyMismatchError naming the first id that differs.
    """
    if target == draft:
        return
    for token_id, ours in enumerate(target.tokens):
        theirs = draft.tokens[token_id] if token_id < draft.size else None
        if ours != theirs:
            raise VocabularyMismatchError(
                f"target and draft have different vocabularies: token {token_id} is "
                f"{_show(ours)} in the target and {_show(theirs)} in the draft",
                field="draft",
            )


def _show(token: tuple[bytes, bool] | None) -> str:
    if token is None:
        return "without a meaning"
    content, is_control = token
    return f"the control token {content.decode()}" if is_control else repr(content)


class _BytesOfToken:
    """How a tokenizer writes bytes in its vocabulary, read from its decoder."""

    def __init__(self, decoder: dict[str, Any] | None) -> None:
        kinds = _kinds(decoder)
        self._is_byte_level = "ByteLevel" in kinds
        self._has_byte_fallback = "ByteFallback" in kinds
        self._has_metaspace = "Metaspace" in kinds or any(
            pattern == "\u2581" for pattern in _replaced(decoder)
        )

    def __call__(self, token: str) -> bytes:
        if self._is_byte_level:
            try:
                return bytes(_BYTE_OF_CHARACTER[character] for character in token)
            except KeyError:
                return token.encode()
        if self._has_byte_fallback and len(token) == 6 and token.startswith("<0x"):
            try:
                return bytes([int(token[3:5], 16)])
            except ValueError:
                return token.encode()
        return (token.replace("\u2581", " ") if self._has_metaspace else token).encode()


def _parts(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    if decoder.get("type") == "Sequence":
        return [part for inner in decoder.get("decoders", []) for part in _parts(inner)]
    return [decoder]


def _kinds(decoder: dict[str, Any] | None) -> set[str]:
    return {str(part.get("type")) for part in _parts(decoder)}


def _replaced(decoder: dict[str, Any] | None) -> list[str]:
    return [
        str(part.get("pattern", {}).get("String"))
        for part in _parts(decoder)
        if part.get("type") == "Replace"
    ]


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes each byte as one visible character: itself where it is visible in
    Latin-1, else the next unused character from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in visible}
    hidden = [byte for byte in range(0x100) if chr(byte) not in table]
    for shift, byte in enumerate(hidden):
        table[chr(0x100 + shift)] = byte
    return table


_BYTE_OF_CHARACTER = _byte_of_character()
