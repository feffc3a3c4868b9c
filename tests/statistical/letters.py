"""A vocabulary of seven letters and an end, for grammars over the tiny models."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.statistical.tiny_law import VOCABULARY_SIZE

# The order of the ids: one in which the model's likely tokens meet choices of the grammars.
LETTERS = "cfebadg"
END = len(LETTERS)


def letters() -> tuple[str, int]:
    """A tokenizer of single letters and an end, and how many ids there are."""
    tokenizer = Tokenizer(models.BPE({letter: place for place, letter in enumerate(LETTERS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return tokenizer.to_str(), VOCABULARY_SIZE
