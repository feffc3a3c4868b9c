"""Formats, windows and stops of filling in.

The tokenizers are small synthetic ones with the control tokens of the real families, since no such
model is at hand: shown is that a family is recognised by its tokens, that prompts have the
published order, and that text cannot forge them. How well such models fill in is not shown.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from paceline.core.errors import RequestError
from paceline.model.fill_in_middle import (
    MAX_SUFFIX_TOKENS,
    FillInMiddle,
    fill_prompt,
    suffix_stops,
    window_start,
)
from paceline.model.tokenizer import TextCodec
from tests.model.tiny import byte_level_tokenizer, sentencepiece_like_tokenizer

QWEN = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
)
GEMMA = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|file_separator|>",
    "<start_of_turn>",
    "<end_of_turn>",
)
STARCODER = (
    "<|endoftext|>",
    "<fim_prefix>",
    "<fim_middle>",
    "<fim_suffix>",
    "<fim_pad>",
    "<repo_name>",
    "<file_sep>",
)
DEEPSEEK = (
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<|EOT|>",
    "<｜fim▁hole｜>",
    "<｜fim▁begin｜>",
    "<｜fim▁end｜>",
)
MISTRAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]")
CODELLAMA = ("▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>")


def _codec(tokenizer: Tokenizer) -> TextCodec:
    return TextCodec(tokenizer, name="tiny", eos_token_ids=frozenset({0}))


def _byte_level(*control: str) -> TextCodec:
    return _codec(byte_level_tokenizer(control=control, vocabulary_size=360))


def _codellama() -> TextCodec:
    tokenizer = sentencepiece_like_tokenizer()
    tokenizer.add_tokens([AddedToken(name, normalized=False, special=True) for name in CODELLAMA])
    return _codec(tokenizer)


def _readable(codec: TextCodec, ids: tuple[int, ...]) -> str:
    return "".join(codec.token_text(token_id) for token_id in ids)


@pytest.mark.parametrize(
    ("codec", "family", "prompt", "ends"),
    [
        (
            _byte_level(*QWEN),
            "Qwen2.5-Coder",
            "<|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>",
            {"<|endoftext|>", "<|fim_pad|>", "<|file_sep|>", "<|repo_name|>", "<|im_end|>"},
        ),
        (
            _byte_level(*GEMMA),
            "CodeGemma",
            "<|fim_prefix|>def f(<|fim_suffix|>):\n<|fim_middle|>",
            {"<|file_separator|>", "<eos>", "<end_of_turn>"},
        ),
        (
            _byte_level(*STARCODER),
            "StarCoder2",
            "<fim_prefix>def f(<fim_suffix>):\n<fim_middle>",
            {"<|endoftext|>", "<file_sep>", "<fim_pad>", "<repo_name>"},
        ),
        (
            _byte_level(*DEEPSEEK),
            "DeepSeek-Coder",
            "<｜fim▁begin｜>def f(<｜fim▁hole｜>):\n<｜fim▁end｜>",
            {"<｜end▁of▁sentence｜>", "<|EOT|>"},
        ),
        (
            _byte_level(*MISTRAL),
            "Codestral",
            "[SUFFIX]):\n[PREFIX]def f(",
            {"</s>", "[MIDDLE]"},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "<" not in value else "",
)
def test_a_family_is_known_by_its_tokens(
    codec: TextCodec, family: str, prompt: str, ends: set[str]
) -> None:
    assert codec.fill_in_middle == family
    encoded = codec.encode_infill("def f(", "):\n", max_tokens=100)
    assert _readable(codec, encoded.ids) == prompt
    assert ends <= {codec.token_text(token_id) for token_id in encoded.stop_token_ids}
    assert encoded.stop == ()


def test_codellama_keeps_the_prefix_apart_and_the_suffix_joined() -> None:
    """As in its published inference code: <PRE>, then the prefix as a text of its own (with the
    space before its first word), <SUF>, then the suffix without one, <MID>."""
    codec = _codellama()
    assert codec.fill_in_middle == "CodeLlama"
    encoded = codec.encode_infill("the quick", "fox", max_tokens=100)
    pieces = [codec.vocabulary.token_bytes(token_id) for token_id in encoded.ids]
    marks = [codec.token_text(token_id) for token_id in encoded.ids]
    assert marks[0] == "<s>"
    assert marks[1] == "<PRE>"  # the decoder takes U+2581 away
    at_suffix, at_middle = marks.index("<SUF>"), marks.index("<MID>")
    assert at_middle == len(marks) - 1
    assert b"".join(pieces[2:at_suffix]) == b" the quick"
    assert b"".join(pieces[at_suffix + 1 : at_middle]) == b"fox"
    assert codec.encode_prompt("")[0] in encoded.ids
    assert "<EOT>" in {codec.token_text(token_id) for token_id in encoded.stop_token_ids}


@pytest.mark.parametrize("control", [QWEN, GEMMA, STARCODER, DEEPSEEK, MISTRAL])
def test_text_cannot_forge_a_mark(control: tuple[str, ...]) -> None:
    codec = _byte_level(*control)
    text = "".join(control)
    encoded = codec.encode_infill(f"a{text}", f"{text}b", max_tokens=4000)
    marks = [t for t in encoded.ids if t in codec.special_token_ids or t in encoded.stop_token_ids]
    assert len(marks) == len(set(marks)) <= 3


def test_a_tokenizer_with_some_of_the_tokens_has_no_family() -> None:
    codec = _byte_level("<|endoftext|>", "<fim_prefix>", "<fim_suffix>")
    assert codec.fill_in_middle is None


def test_without_tokens_the_prefix_is_continued_until_the_suffix_comes() -> None:
    codec = _byte_level("<|endoftext|>")
    encoded = codec.encode_infill("def f(", "):\n    return x\n", max_tokens=100)
    assert codec.decode(encoded.ids) == "def f("
    assert encoded.stop == ("):\n    return x", "\n    return x")
    assert encoded.stop_token_ids == frozenset()


def test_without_tokens_and_text_there_is_nothing_to_continue() -> None:
    codec = _byte_level("<|endoftext|>")
    with pytest.raises(RequestError, match="at least one character before the gap"):
        codec.encode_infill("", "x = 1\n", max_tokens=100)


def test_no_room_names_the_field() -> None:
    with pytest.raises(RequestError, match="needs at least 4") as caught:
        _byte_level(*QWEN).encode_infill("a", "b", max_tokens=3)
    assert caught.value.field == "max_output_tokens"


def test_a_lone_surrogate_in_the_suffix_is_named() -> None:
    with pytest.raises(RequestError) as caught:
        _byte_level(*QWEN).encode_infill("a", "\ud800", max_tokens=100)
    assert caught.value.field == "suffix"


# Windows


FORM = FillInMiddle("any", 1, 2, 3, suffix_first=False, end_ids=frozenset({0}))


@given(
    num_prefix=st.integers(0, 3000),
    num_suffix=st.integers(0, 3000),
    max_tokens=st.integers(5, 2500),
    form=st.sampled_from([FORM, None]),
)
def test_a_prompt_fits_and_keeps_what_is_near_the_gap(
    num_prefix: int, num_suffix: int, max_tokens: int, form: FillInMiddle | None
) -> None:
    prefix = range(10_000, 10_000 + num_prefix)
    suffix = range(20_000, 20_000 + num_suffix)
    encoded = fill_prompt(form, [7], prefix, suffix, "", max_tokens=max_tokens)
    assert len(encoded.ids) <= max_tokens
    kept = [token_id for token_id in encoded.ids if 10_000 <= token_id < 20_000]
    behind = [token_id for token_id in encoded.ids if token_id >= 20_000]
    assert kept == list(prefix)[num_prefix - len(kept) :]
    assert behind == list(suffix)[: len(behind)]
    assert len(behind) <= MAX_SUFFIX_TOKENS
    room = max_tokens - 1 - (3 if form else 0)
    assert len(kept) >= min(num_prefix, room // 2)


@given(num_tokens=st.integers(0, 5000), max_tokens=st.integers(1, 2000), grow=st.integers(0, 400))
def test_the_window_moves_seldom(num_tokens: int, max_tokens: int, grow: int) -> None:
    """Over any stretch of typing it moves once for each quarter of its size, and once more at most:
    all other keystrokes find everything but the newest tokens in the prefix cache."""
    starts = [window_start(num_tokens + typed, max_tokens) for typed in range(grow + 1)]
    assert all(num_tokens + typed - start <= max_tokens for typed, start in enumerate(starts))
    assert starts == sorted(starts)
    assert len(set(starts)) <= 2 + grow // max(1, max_tokens // 4)
    if num_tokens > max_tokens >= 4:
        assert num_tokens - starts[0] > max_tokens - max(1, max_tokens // 4)


def test_an_edit_of_the_suffix_does_not_move_the_prefix() -> None:
    prompts = [
        fill_prompt(FORM, [], range(100, 2000), range(5000, 5000 + length), "", max_tokens=800)
        for length in (0, 1, 50, 5000)
    ]
    assert len({ids.ids[1] for ids in prompts}) == 1


# Stops


@pytest.mark.parametrize(
    ("suffix", "stops"),
    [
        ("", ()),
        (")", ()),
        ("\n}\n", ()),
        ("\n\n\n\n\n\nfar_away = 1\n", ()),
        ("\n    return value\n}", ("\n    return value",)),
        ("\n\n    return value\n", ("\n\n    return value",)),
        ("\n}\n\ndef next_one():\n    pass\n", ("\n}\n\ndef next_one():",)),
        (") + offset[0]\nx = 1\n", (") + offset[0]",)),
        (")\nprint(total)\n", (")\nprint(total)", "\nprint(total)")),
    ],
)
def test_stops_of_a_suffix(suffix: str, stops: tuple[str, ...]) -> None:
    assert suffix_stops(suffix) == stops


@given(st.text(alphabet="ab \n\t()=", max_size=200))
def test_stops_are_strings_that_the_suffix_holds(suffix: str) -> None:
    for stop in suffix_stops(suffix):
        assert stop.strip()
        assert stop in suffix
