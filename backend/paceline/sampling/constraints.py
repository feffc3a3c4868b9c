"""What makes a row of logits depend on the tokens before it by more than the model.

A `RowConstraint` belongs to one sequence. At every verified position it must see the prefix that
the position assumes: the committed tokens and the drafted ones before it. So it is asked for all
rows of a round at once (`fork`, which changes nothing), and told what was committed afterwards
(`advance`), which is often less than what was drafted. Penalties, biases, bans and minimum length
are one today; a grammar would be another.

Works on the host: edits are a few entries per row. `edits` applies them to logits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from paceline.core.request import SamplingParams

    Int64s = npt.NDArray[np.int64]
    Float32s = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Entries:
    """Single logits: entry n is token token_ids[n] of row rows[n], with a value where one counts.
    Rows count from 0 within a constraint's fork."""

    rows: Int64s
    token_ids: Int64s
    values: Float32s

    @classmethod
    def join(cls, parts: Sequence[tuple[int, Entries]]) -> Entries:
        """All entries of several forks; each comes with the row that its first row has."""
        return cls(
            np.concatenate([entries.rows + first for first, entries in parts]),
            np.concatenate([entries.token_ids for _, entries in parts]),
            np.concatenate([entries.values for _, entries in parts]),
        )


_NOTHING = Entries(
    np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
)


@dataclass(frozen=True, slots=True)
class AllowedTokens:
    """Rows of which only some tokens are possible. bits: int32 [N, ceil(V / 32)]; bit t % 32 of
    word t // 32 is set where token t is allowed in row rows[n] (int64 [N], each at most once)."""

    rows: Int64s
    bits: npt.NDArray[np.int32]

    @classmethod
    def join(cls, parts: Sequence[tuple[int, AllowedTokens]]) -> AllowedTokens:
        """Those of several forks; each comes with the row that its first row has."""
        some = [(first, allowed) for first, allowed in parts if len(allowed.rows)]
        if not some:
            return _EVERYTHING
        return cls(
            np.concatenate([allowed.rows + first for first, allowed in some]),
            np.concatenate([allowed.bits for _, allowed in some]),
        )


_EVERYTHING = AllowedTokens(np.empty(0, dtype=np.int64), np.empty((0, 0), dtype=np.int32))


@dataclass(frozen=True, slots=True)
class RowEdits:
    """Changes to the logits of some rows, made in this order.

    repeated: divide a positive logit by the value, multiply another; each entry at most once.
    added: add the value; entries may come more than once.
    forbidden: probability zero (the value does not count).
    allowed: probability zero for every other token of its rows.
    """

    repeated: Entries = _NOTHING
    added: Entries = _NOTHING
    forbidden: Entries = _NOTHING
    allowed: AllowedTokens = _EVERYTHING

    @classmethod
    def join(cls, parts: Sequence[tuple[int, RowEdits]]) -> RowEdits:
        """The edits of a whole batch; each part comes with the row that its first row has."""
        return cls(
            Entries.join([(first, edits.repeated) for first, edits in parts]),
            Entries.join([(first, edits.added) for first, edits in parts]),
            Entries.join([(first, edits.forbidden) for first, edits in parts]),
            AllowedTokens.join([(first, edits.allowed) for first, edits in parts]),
        )


class RowConstraint(Protocol):
    """State of one sequence that edits its rows."""

    def fork(self, drafted: Sequence[int], first: int = 0) -> RowEdits:
        """Edits of the rows after the first `first`, ..., len(drafted) of these drafted tokens,
        which follow the committed ones. Changes nothing."""
        ...

    def advance(self, committed: Sequence[int]) -> None:
        """These tokens were committed."""
        ...

    def forced(self, limit: int) -> tuple[int, ...]:
        """Up to `limit` tokens of which each is the only one possible after those before it."""
        ...


class JoinedConstraint:
    """Several constraints of one sequence at once; at most one of them says what is allowed."""

    def __init__(self, parts: Sequence[RowConstraint]) -> None:
        self._parts = parts

    def fork(self, drafted: Sequence[int], first: int = 0) -> RowEdits:
        return RowEdits.join([(0, part.fork(drafted, first)) for part in self._parts])

    def advance(self, committed: Sequence[int]) -> None:
        for part in self._parts:
            part.advance(committed)

    def forced(self, limit: int) -> tuple[int, ...]:
        return max((part.forced(limit) for part in self._parts), key=len)


class SamplingConstraint:
    """Penalties, biases, bans and minimum length of one request.

    Repetition penalty counts prompt and output, presence and frequency penalties the output alone.
    Until `min_tokens` output tokens exist, no token of `stop_token_ids` can be drawn.
    """

    def __init__(
        self, params: SamplingParams, prompt_ids: Iterable[int], stop_token_ids: Iterable[int]
    ) -> None:
        self._repetition = params.repetition_penalty
        self._presence = params.presence_penalty
        self._frequency = params.frequency_penalty
        self._min_tokens = params.min_tokens
        self._num_output = 0
        biases = dict(params.logit_bias)
        self._bias_ids = np.array(list(biases), dtype=np.int64)
        self._biases = np.array(list(biases.values()), dtype=np.float32)
        self._banned = np.array(sorted(set(params.banned_token_ids)), dtype=np.int64)
        self._stops = np.array(sorted(set(stop_token_ids)), dtype=np.int64)
        # Tokens seen so far, in order of appearance, and how often each is in the output.
        self._slots: dict[int, int] = {}
        self._ids = np.empty(256, dtype=np.int64)
        self._counts = np.empty(256, dtype=np.int64)
        self._has_penalties = params.has_penalties
        if self._has_penalties:
            for token_id in dict.fromkeys(prompt_ids):
                self._slot(token_id)

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        """Whether a request with these parameters has any edits at all."""
        return bool(
            params.has_penalties
            or params.logit_bias
            or params.banned_token_ids
            or params.min_tokens > 0
        )

    def fork(self, drafted: Sequence[int], first: int = 0) -> RowEdits:
        """See `RowConstraint.fork`."""
        num_rows = len(drafted) + 1 - first
        added = [_spread(num_rows, self._bias_ids, self._biases)]
        forbidden = [_spread(num_rows, self._banned)]
        num_short = min(num_rows, self._min_tokens - self._num_output - first)
        if num_short > 0:
            forbidden.append(_spread(num_short, self._stops))
        repeated = _NOTHING
        if self._has_penalties:
            repeated, penalties = self._penalties(drafted, first)
            added.append(penalties)
        return RowEdits(
            repeated,
            Entries.join([(0, entries) for entries in added]),
            Entries.join([(0, entries) for entries in forbidden]),
        )

    def advance(self, committed: Sequence[int]) -> None:
        """See `RowConstraint.advance`."""
        self._num_output += len(committed)
        if self._has_penalties:
            for token_id in committed:
                slot = self._slot(token_id)  # may put a larger table in place of this one
                self._counts[slot] += 1

    def forced(self, limit: int) -> tuple[int, ...]:
        """See `RowConstraint.forced`: weights force nothing."""
        return ()

    def _penalties(self, drafted: Sequence[int], first: int) -> tuple[Entries, Entries]:
        known = len(self._slots)
        fresh = [token for token in dict.fromkeys(drafted) if token not in self._slots]
        ids = np.concatenate((self._ids[:known], np.array(fresh, dtype=np.int64)))
        base = np.concatenate((self._counts[:known], np.zeros(len(fresh), dtype=np.int64)))
        # How often each id is among the drafted tokens before each row: [rows, ids].
        is_drafted = np.array(drafted, dtype=np.int64)[:, None] == ids
        before = np.zeros((len(drafted) + 1, len(ids)), dtype=np.int64)
        np.cumsum(is_drafted, axis=0, out=before[1:])
        before = before[first:]
        counts = base + before
        repeated = _NOTHING
        if self._repetition != 1.0:
            rows, columns = np.nonzero((np.arange(len(ids)) < known) | (before > 0))
            repeated = Entries(
                rows, ids[columns], np.full(len(rows), self._repetition, dtype=np.float32)
            )
        if self._presence == 0.0 and self._frequency == 0.0:
            return repeated, _NOTHING
        rows, columns = np.nonzero(counts)
        values = -(self._presence + self._frequency * counts[rows, columns])
        return repeated, Entries(rows, ids[columns], values.astype(np.float32))

    def _slot(self, token_id: int) -> int:
        slot = self._slots.get(token_id)
        if slot is None:
            slot = self._slots[token_id] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.concatenate((self._ids, np.empty_like(self._ids)))
                self._counts = np.concatenate((self._counts, np.empty_like(self._counts)))
            self._ids[slot], self._counts[slot] = token_id, 0
        return slot


def _spread(num_rows: int, ids: Int64s, values: Float32s | None = None) -> Entries:
    """The same entries on each of the first num_rows rows."""
    if len(ids) == 0:
        return _NOTHING
    if values is None:
        values = np.zeros(len(ids), dtype=np.float32)
    rows = np.repeat(np.arange(num_rows), len(ids))
    return Entries(rows, np.tile(ids, num_rows), np.tile(values, num_rows))
