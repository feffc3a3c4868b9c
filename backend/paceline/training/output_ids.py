"""The trimmed output vocabulary of a draft.

The output layer is the largest part of a small draft, and most of its rows are for tokens that
hardly ever occur. Keeping the few thousand ids that the target writes most changes nothing about
exactness: other ids have draft probability zero and are left to the target.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.model.tokenizer import TextCodec


def always_kept(codec: TextCodec) -> frozenset[int]:
    """Special tokens, single bytes, digits and white space: cheap, and costly to miss."""
    kept = set(codec.special_token_ids) | set(codec.eos_token_ids)
    for token_id in range(codec.vocabulary_size):
        data = codec.token_bytes(token_id)
        text = data.strip()
        if len(data) == 1 or (data and (not text or (len(text) == 1 and text.isdigit()))):
            kept.add(token_id)
    return frozenset(kept)


def choose_output_ids(
    counts: Counter[int], kept: frozenset[int], num_output_ids: int
) -> tuple[int, ...]:
    """``num_output_ids`` ids in ascending order: `kept`, then the most frequent.

    Fewer when fewer were ever seen. Raises ``ValueError`` when ``kept`` alone is more.
    """
    if len(kept) > num_output_ids:
        raise ValueError(
            f"num_output_ids is {num_output_ids}; special tokens, bytes, digits and white space "
            f"alone are {len(kept)}"
        )
    chosen = set(kept)
    for token_id, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) >= num_output_ids:
            break
        chosen.add(token_id)
    return tuple(sorted(chosen))


def count_tokens(answers: Iterable[Iterable[int]]) -> Counter[int]:
    """How often each id occurs."""
    counts: Counter[int] = Counter()
    for answer in answers:
        counts.update(answer)
    return counts
