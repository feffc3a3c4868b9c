"""A vocabulary in which every byte is a token: its id is the byte, and 256 ends an output."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers


def byte_vocabulary() -> tuple[str, int]:
    """A tokenizer of single bytes with an end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    order = {byte: place for place, byte in enumerate(_bytes_in_order())}
    vocabulary = {character: order[character] for character in alphabet}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer.to_str(), 257


def _bytes_in_order() -> list[str]:
    """The byte-level alphabet's character of each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    characters = {byte: chr(byte) for byte in printable}
    shifted = 256
    for byte in range(256):
        if byte not in characters:
            characters[byte] = chr(shifted)
            shifted += 1
    return [characters[byte] for byte in range(256)]
