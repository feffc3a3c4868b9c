"""llguidance and xgrammar side by side: what speculation asks of a grammar engine.

    pip install xgrammar
    python ops/bench/grammar_engines.py

For a vocabulary of SmolLM2's size and one of 152k: reading the vocabulary, compiling a schema, one
mask, a round of speculation (a mask at each of five positions, then back), and the tokens forced.
Times are of the processor, means over the positions of one JSON text; only their ratios count.
"""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import xgrammar
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from ops.bench.provenance import write_result
from paceline.model.default_weights import ensure_default_target
from paceline.model.tokenizer import TextCodec

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE = 152_064
DEPTH = 4
PEOPLE = {
    "type": "array",
    "maxItems": 3,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "role": {"enum": ["rider", "driver", "cook"]},
        },
        "required": ["name", "age", "role"],
        "additionalProperties": False,
    },
}
TEXT = (
    '[{"name": "Anna Maria", "age": 42, "role": "rider"}, '
    '{"name": "Ben", "age": 7, "role": "cook"}]'
)


class _Vocabulary:
    """Tokens as bytes, made larger by joining pairs of them. The rest is what llguidance asks."""

    bos_token_id = None

    def __init__(self, codec: TextCodec, size: int) -> None:
        self.tokens = [codec.token_bytes(each) for each in range(codec.vocabulary_size)]
        self.eos_token_id = min(codec.eos_token_ids)
        self.special_token_ids = sorted(codec.special_token_ids)
        self._codec = codec
        words = [token for token in self.tokens if len(token) > 3]
        place = 0
        while len(self.tokens) < size:
            self.tokens.append(words[place % len(words)] + words[(place * 7 + 1) % len(words)])
            place += 1

    def __call__(self, text: bytes | str) -> list[int]:
        return self._codec.encode(text.decode() if isinstance(text, bytes) else text)


def _seconds(action: Callable[[], Any]) -> float:
    started = time.process_time()
    action()
    return time.process_time() - started


def measure_llguidance(vocabulary: _Vocabulary, ids: list[int]) -> dict[str, float]:
    size = len(vocabulary.tokens)
    tokenizers: list[LLTokenizer] = []
    read = _seconds(
        lambda: tokenizers.append(
            LLTokenizer(
                TokenizerWrapper(vocabulary), n_vocab=size, eos_token=[vocabulary.eos_token_id]
            )
        )
    )
    style: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    schema = LLMatcher.grammar_from_json_schema(json.dumps(PEOPLE), overrides=style)
    matchers: list[LLMatcher] = []
    compiled = _seconds(lambda: matchers.append(LLMatcher(tokenizers[0], schema, log_level=0)))
    matcher = matchers[0].deep_copy()
    bits = np.zeros((1, -(-size // 32)), dtype=np.int32)

    def mask() -> None:
        matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)

    masks, rounds, num_forced = [], [], 0
    for place, token in enumerate(ids):
        masks.append(_seconds(mask))
        num_forced += bool(matcher.compute_ff_tokens())
        drafted = ids[place : place + DEPTH]

        def speculate(drafted: list[int] = drafted) -> None:
            for each in drafted:
                mask()
                matcher.try_consume_tokens([each])
            mask()
            matcher.rollback(len(drafted))

        rounds.append(_seconds(speculate))
        assert matcher.consume_token(token), matcher.get_error()
    return _told(read, compiled, masks, rounds, num_forced, len(ids))


def measure_xgrammar(vocabulary: _Vocabulary, ids: list[int]) -> dict[str, float]:
    size = len(vocabulary.tokens)
    infos: list[Any] = []
    read = _seconds(
        lambda: infos.append(
            xgrammar.TokenizerInfo(
                vocabulary.tokens, vocab_size=size, stop_token_ids=[vocabulary.eos_token_id]
            )
        )
    )
    compiler = xgrammar.GrammarCompiler(infos[0], max_threads=1, cache_enabled=False)
    grammars: list[Any] = []
    compiled = _seconds(
        lambda: grammars.append(
            compiler.compile_json_schema(
                json.dumps(PEOPLE), any_whitespace=False, separators=(", ", ": ")
            )
        )
    )
    matcher = xgrammar.GrammarMatcher(grammars[0])
    bits = xgrammar.allocate_token_bitmask(1, size)

    def mask() -> None:
        matcher.fill_next_token_bitmask(bits)

    masks, rounds, num_forced = [], [], 0
    for place, token in enumerate(ids):
        masks.append(_seconds(mask))
        num_forced += bool(matcher.find_jump_forward_string())
        drafted = ids[place : place + DEPTH]

        def speculate(drafted: list[int] = drafted) -> None:
            for each in drafted:
                mask()
                matcher.accept_token(each)
            if not matcher.is_terminated():
                mask()
            matcher.rollback(len(drafted))

        rounds.append(_seconds(speculate))
        assert matcher.accept_token(token)
    return _told(read, compiled, masks, rounds, num_forced, len(ids))


def _told(
    read: float, compiled: float, masks: list[float], rounds: list[float], forced: int, count: int
) -> dict[str, float]:
    return {
        "vocabulary_ms": read * 1e3,
        "compile_ms": compiled * 1e3,
        "mask_us": statistics.mean(masks) * 1e6,
        "slowest_mask_us": max(masks) * 1e6,
        "round_us": statistics.mean(rounds) * 1e6,
        "positions_with_forced_text": forced / count,
    }


def main() -> None:
    torch.set_num_threads(1)
    codec = TextCodec.load(Path(ensure_default_target()))
    ids = codec.encode(TEXT)
    result: dict[str, Any] = {}
    for size in (codec.vocabulary_size, LARGE):
        vocabulary = _Vocabulary(codec, size)
        ours = measure_llguidance(vocabulary, ids)
        other = measure_xgrammar(vocabulary, ids)
        ratios = {name: other[name] / ours[name] for name in ours if ours[name]}
        result[str(size)] = {"llguidance": ours, "xgrammar": other, "xgrammar/llguidance": ratios}
        print(f"{size} tokens, xgrammar / llguidance:")
        for name, ratio in ratios.items():
            print(f"  {name}: {ratio:.2f}")
    print(write_result("grammar_engines", "python ops/bench/grammar_engines.py", result))


if __name__ == "__main__":
    main()
