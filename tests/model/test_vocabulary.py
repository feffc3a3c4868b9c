"""What token ids mean, and which pairs of models are refused."""

from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer

from paceline.core.errors import VocabularyMismatchError
from paceline.model.tokenizer import TextCodec
from paceline.model.vocabulary import Vocabulary, require_same_vocabulary
from tests.model.tiny import byte_level_tokenizer, sentencepiece_like_tokenizer


def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    return TextCodec(tokenizer, name="tiny", eos_token_ids=frozenset()).vocabulary


def test_every_text_is_the_bytes_of_its_tokens() -> None:
    for tokenizer in (byte_level_tokenizer(), sentencepiece_like_tokenizer()):
        codec = TextCodec(tokenizer, name="tiny", eos_token_ids=frozenset())
        for text in ("the quick fox", "héllo 👍 你好", "a\n\tb"):
            spelled = b"".join(codec.token_bytes(token_id) for token_id in codec.encode(text))
            assert spelled.decode().lstrip(" ") == text


def test_equal_contents_are_equal_whatever_the_tokenizer_is_called() -> None:
    one, other = vocabulary(byte_level_tokenizer()), vocabulary(byte_level_tokenizer())
    assert one.fingerprint() == other.fingerprint()
    require_same_vocabulary(one, other)


def test_the_first_differing_id_is_named() -> None:
    target = vocabulary(byte_level_tokenizer())
    tokens = list(target.tokens)
    tokens[300], tokens[301] = tokens[301], tokens[300]
    draft = Vocabulary(tuple(tokens))
    assert draft.fingerprint() != target.fingerprint()
    with pytest.raises(VocabularyMismatchError, match=r"token 300 is b'.*' in the target and b'"):
        require_same_vocabulary(target, draft)


def test_a_control_token_is_not_the_text_that_it_looks_like() -> None:
    target = vocabulary(byte_level_tokenizer())
    content = target.token_bytes(2)
    tokens = list(target.tokens)
    tokens[2] = (content, False)
    with pytest.raises(VocabularyMismatchError, match=r"token 2 is the control token <\|im_end\|>"):
        require_same_vocabulary(target, Vocabulary(tuple(tokens)))


def test_a_token_that_the_draft_lacks_is_named_and_one_that_the_target_lacks_is_fine() -> None:
    short = vocabulary(byte_level_tokenizer())
    long = vocabulary(byte_level_tokenizer(added=[AddedToken("<think>", normalized=False)]))
    assert long.size == short.size + 1
    require_same_vocabulary(short, long)
    with pytest.raises(VocabularyMismatchError, match="token 320 is the control token <think>"):
        require_same_vocabulary(long, short)


def test_ids_without_a_meaning_are_no_tokens() -> None:
    tokens = ((b"a", False), None, (b"b", False))
    holes = Vocabulary(tokens)
    assert holes.token_bytes(1) == b""
    full = Vocabulary(((b"a", False), (b"", False), (b"b", False)))
    assert holes.fingerprint() != full.fingerprint()
    with pytest.raises(VocabularyMismatchError, match="token 1 is without a meaning"):
        require_same_vocabulary(holes, full)
