"""Prompts for filling in between a prefix and a suffix.

Models that were trained to fill in mark prefix, suffix and middle with control tokens of their own;
which ones a model has is read from its tokenizer. A model without any continues the prefix, and the
beginning of the suffix stops it.

Windows: what does not fit is left out at the far ends, the start of the prefix and the end of the
suffix. The prefix's window moves in coarse steps, so that while somebody types it begins at the
same token for many keystrokes and the prefix cache holds all but the newest tokens.

Pure functions over token ids; knows no tokenizer library, no model and no request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from paceline.core.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

MAX_SUFFIX_TOKENS: Final = 256
"""In most formats the suffix stands behind the growing prefix, so it is computed anew with every
keystroke: it has to be short."""

_SUFFIX_SHARE: Final = 8  # the suffix gets at most this fraction of the room
_STEP_SHARE: Final = 4  # the prefix window moves by this fraction of itself
_MIN_ANCHOR: Final = 6  # characters, not counting space, that make a stop string safe
_MAX_ANCHOR_LINES: Final = 4
_MAX_ANCHOR_LENGTH: Final = 240


@dataclass(frozen=True, slots=True)
class Format:
    """How one family of models marks a gap.

    prefix, suffix, middle: the tokens before each part; middle is None where the model begins right
    after the prefix. suffix_first: the suffix comes first, the prefix last. marker: one more token
    that tells the family from others with the same three, or None. ends: further tokens that end
    a filling, as far as the tokenizer has them.
    """

    family: str
    prefix: str
    suffix: str
    middle: str | None
    suffix_first: bool = False
    marker: str | None = None
    ends: tuple[str, ...] = ()


FORMATS: Final = (
    Format(
        "Qwen2.5-Coder",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        marker="<|fim_pad|>",
        ends=("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>", "<|im_end|>"),
    ),
    Format(
        "CodeGemma",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ends=("<|file_separator|>", "<eos>", "<end_of_turn>", "<|endoftext|>"),
    ),
    Format(
        "StarCoder2",
        "<fim_prefix>",
        "<fim_suffix>",
        "<fim_middle>",
        ends=("<fim_pad>", "<file_sep>", "<repo_name>", "<|endoftext|>"),
    ),
    Format(
        "DeepSeek-Coder",
        "<｜fim▁begin｜>",
        "<｜fim▁hole｜>",
        "<｜fim▁end｜>",
        ends=("<｜end▁of▁sentence｜>", "<|EOT|>"),
    ),
    Format("CodeLlama", "▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>", "</s>")),
    Format("Codestral", "[PREFIX]", "[SUFFIX]", None, suffix_first=True, ends=("[MIDDLE]", "</s>")),
)
"""Families whose tokens are looked for, in this order."""


@dataclass(frozen=True, slots=True)
class FillInMiddle:
    """A `Format` in one tokenizer's ids. end_ids: any of them ends a filling."""

    family: str
    prefix_id: int
    suffix_id: int
    middle_id: int | None
    suffix_first: bool
    end_ids: frozenset[int]

    @classmethod
    def of(cls, token_to_id: Callable[[str], int | None]) -> Self | None:
        """The first family all of whose tokens the tokenizer has; None if it has no family's."""
        for form in FORMATS:
            names = (form.prefix, form.suffix, form.middle, form.marker)
            ids = {name: token_to_id(name) for name in names if name is not None}
            if any(token_id is None for token_id in ids.values()):
                continue
            present = {token_to_id(name) for name in (*ids, *form.ends)} - {None}
            return cls(
                form.family,
                prefix_id=_known(ids[form.prefix]),
                suffix_id=_known(ids[form.suffix]),
                middle_id=None if form.middle is None else _known(ids[form.middle]),
                suffix_first=form.suffix_first,
                end_ids=frozenset(_known(token_id) for token_id in present),
            )
        return None

    @property
    def num_marks(self) -> int:
        """Tokens that the format adds."""
        return 2 + (self.middle_id is not None)

    def arrange(self, prefix_ids: Sequence[int], suffix_ids: Sequence[int]) -> list[int]:
        """The prompt, without what the model expects before any text."""
        before = [self.prefix_id, *prefix_ids]
        behind = [self.suffix_id, *suffix_ids]
        middle = [] if self.middle_id is None else [self.middle_id]
        parts = behind + before if self.suffix_first else before + behind
        return parts + middle


@dataclass(frozen=True, slots=True)
class EncodedInfill:
    """A prompt for a gap.

    ids: what is fed to the model. stop_token_ids, stop: what ends the filling beside the model's
    usual end tokens and the request's own stop strings.
    """

    ids: tuple[int, ...]
    stop_token_ids: frozenset[int] = frozenset()
    stop: tuple[str, ...] = ()


def fill_prompt(
    form: FillInMiddle | None,
    begin_ids: Sequence[int],
    prefix_ids: Sequence[int],
    suffix_ids: Sequence[int],
    suffix: str,
    *,
    max_tokens: int,
) -> EncodedInfill:
    """The prompt for what stands between prefix and suffix.

    form: None for a model without such tokens. begin_ids: what the model expects before any text.
    suffix: the text of suffix_ids. max_tokens: room for the whole prompt.

    Raises RequestError when there is no room, or nothing to begin with.
    """
    num_fixed = len(begin_ids) + (form.num_marks if form is not None else 0)
    room = max_tokens - num_fixed
    if room < 1:
        raise RequestError(
            f"max_output_tokens leaves {max_tokens} tokens for the prompt, which needs at least "
            f"{num_fixed + 1}",
            field="max_output_tokens",
        )
    if form is None:
        start = window_start(len(prefix_ids), room)
        ids = (*begin_ids, *prefix_ids[start:])
        if not ids:
            raise RequestError(
                "prompt is empty, and this model has no tokens for filling in, so it needs at "
                "least one character before the gap",
                field="input",
            )
        return EncodedInfill(ids, stop=suffix_stops(suffix))
    # Shares of the room alone, whatever there is of either: else an edit of the suffix would move
    # the prefix's window.
    suffix_room = min(MAX_SUFFIX_TOKENS, room // _SUFFIX_SHARE)
    start = window_start(len(prefix_ids), room - suffix_room)
    ids = (*begin_ids, *form.arrange(prefix_ids[start:], suffix_ids[:suffix_room]))
    return EncodedInfill(ids, stop_token_ids=form.end_ids)


def window_start(num_tokens: int, max_tokens: int) -> int:
    """How many leading tokens to leave out so that at most `max_tokens` (1 or more) stay.

    A multiple of a quarter of the window: it stays the same while that many tokens are added, and
    more than three quarters of the window are always used.
    """
    if num_tokens <= max_tokens:
        return 0
    step = max(1, max_tokens // _STEP_SHARE)
    return -(-(num_tokens - max_tokens) // step) * step


def suffix_stops(suffix: str) -> tuple[str, ...]:
    """Strings whose appearance means that a model has run into the suffix.

    The beginning of the suffix, and, when the cursor stands within a line, the next line with its
    line break, for a model that ended the line in its own way. Each is as many lines as it takes to
    be unlikely by chance; a suffix that is too short for that gives none.
    """
    rest, newline, below = suffix.partition("\n")
    anchors = [_anchor(suffix)]
    if rest.strip():
        anchors.append(_anchor(newline + below))
    return tuple(dict.fromkeys(anchor for anchor in anchors if anchor))


def _anchor(text: str) -> str:
    taken = ""
    for line in text.splitlines(keepends=True)[:_MAX_ANCHOR_LINES]:
        taken += line
        if len("".join(taken.split())) >= _MIN_ANCHOR:
            return taken[:_MAX_ANCHOR_LENGTH].rstrip()
    return ""


def _known(token_id: int | None) -> int:
    if token_id is None:
        raise RuntimeError("a token of the format is missing")
    return token_id
