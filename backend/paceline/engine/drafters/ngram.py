"""Looks a continuation up in the sequence itself: free, and right wherever text repeats.

The longest suffix of the sequence that occurred before, up to a limit, is found, and what followed
its most recent occurrence is proposed. The draft is deterministic, so it counts as a one-hot
distribution in verification.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.core.request import DrafterKind, Speculation
from paceline.engine.drafters.interface import Proposal

if TYPE_CHECKING:
    from collections.abc import Sequence as Many

    from torch import Tensor

    from paceline.engine.plan import Outcome, PlanEntry
    from paceline.engine.sequence import Sequence

MAX_TOKENS = 16
_SHORTEST = 2
_LONGEST = 5
_LONG = 16
_MAX_TRIED = 32


class NgramIndex:
    """Where each pair of a growing token list ended, the latest first.

    Incremental: every token is entered once, as the end of one pair, and points to the end of the
    same pair before it; longer matches are found by walking back along these. The pair at the very
    end of the list is not entered yet, so that a look-up finds an earlier occurrence, never itself.
    """

    def __init__(self) -> None:
        self._latest: dict[tuple[int, int], int] = {}
        self._earlier = [0, 0]
        self._num_indexed = 0
        self._last_match = (0, 0, (0, 0))

    def extend(self, token_ids: Many[int]) -> None:
        """Enter all pairs that end before the last token of the grown list."""
        for end in range(self._num_indexed + 1, len(token_ids)):
            self._enter(token_ids, end)

    def match(self, token_ids: Many[int], total: int) -> tuple[int, int]:
        """The longest suffix of the first `total` tokens that is indexed: where its most recent
        occurrence ended, and its length (up to 16). From 5 tokens on the most recent occurrence
        counts and not the longest; of a pair that is everywhere only the latest ones are tried.
        (0, 0) without one."""
        last_total, last_indexed, last_found = self._last_match
        if total == last_total and self._num_indexed == last_indexed:
            return last_found  # offered, then proposed, then scored: one walk for the three
        if total < _SHORTEST:
            return 0, 0
        end = self._latest.get((token_ids[total - 2], token_ids[total - 1]), 0)
        found = longest = 0
        for _ in range(_MAX_TRIED):
            if not end:
                break
            size, limit = _SHORTEST, min(_LONG, end)
            while size < limit and token_ids[end - size - 1] == token_ids[total - size - 1]:
                size += 1
            if size > longest:
                found, longest = end, size
                if size >= _LONGEST:
                    break
            end = self._earlier[end]
        self._last_match = (total, self._num_indexed, (found, longest))
        return found, longest

    def continuation(self, token_ids: Many[int], count: int) -> tuple[int, ...]:
        """Up to `count` tokens that followed the longest indexed suffix; () without a match.

        A match that runs into the end of the list goes on with what it has just proposed, so a
        repeated pattern is continued however short its period is.
        """
        total = len(token_ids)
        start, size = self.match(token_ids, total)
        if not size:
            return ()
        period = total - start
        return tuple(token_ids[start + offset % period] for offset in range(count))

    def score(self, token_ids: Many[int]) -> list[tuple[int, bool]]:
        """Enter the tokens that were appended since the last call, and say for each one before
        which a match existed how long that was and whether it foretold the token."""
        scored = []
        for total in range(self._num_indexed + 1, len(token_ids)):
            start, size = self.match(token_ids, total)
            if size:
                scored.append((size, token_ids[start] == token_ids[total]))
            self._enter(token_ids, total)
        return scored

    def _enter(self, token_ids: Many[int], end: int) -> None:
        self._num_indexed = end
        if end >= _SHORTEST:
            pair = (token_ids[end - 2], token_ids[end - 1])
            self._earlier.append(self._latest.get(pair, 0))
            self._latest[pair] = end


class NgramDrafter:
    """One index per sequence that has blocks and lets it draft."""

    def __init__(self) -> None:
        self._indices: dict[str, NgramIndex] = {}
        self._scored: dict[str, list[tuple[int, bool]]] = {}

    @property
    def required_features(self) -> tuple[int, ...]:
        return ()

    def max_tokens(self, sequence: Sequence) -> int:
        return MAX_TOKENS if serves(sequence, DrafterKind.NGRAM) else 0

    def lag(self, sequence: Sequence) -> int:
        return 0

    def admit(self, sequence: Sequence) -> None:
        is_off = sequence.request.speculation is Speculation.OFF
        if is_off or not serves(sequence, DrafterKind.NGRAM):
            return
        index = NgramIndex()
        index.extend(sequence.token_ids)
        self._indices[sequence.request_id] = index

    def propose(self, entries: Many[PlanEntry]) -> Proposal:
        drafts = tuple(self.lookup(entry.sequence, entry.num_drafted) for entry in entries)
        return Proposal(
            draft_ids=drafts,
            row_index=tuple((-1,) * len(draft) for draft in drafts),
            drafter_names=("ngram",) * len(entries),
        )

    def lookup(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """The continuation that would be proposed, up to `count` tokens."""
        index = self._indices.get(sequence.request_id)
        if count == 0 or index is None:
            return ()
        return index.continuation(sequence.token_ids, count)

    def offer(self, sequence: Sequence) -> tuple[int, int]:
        """How many tokens it could draft now, and the length of the match behind them."""
        index = self._indices.get(sequence.request_id)
        if index is None:
            return 0, 0
        token_ids = sequence.token_ids
        _, size = index.match(token_ids, len(token_ids))
        return (MAX_TOKENS if size else 0), size

    def take_scored(self, sequence: Sequence) -> list[tuple[int, bool]]:
        """What `NgramIndex.score` said of the tokens committed since the last call."""
        return self._scored.pop(sequence.request_id, [])

    def observe(self, outcomes: Many[Outcome], features: Tensor | None) -> None:
        self._scored.clear()
        for outcome in outcomes:
            request_id = outcome.sequence.request_id
            index = self._indices.get(request_id)
            if index is not None and outcome.num_committed:
                self._scored[request_id] = index.score(outcome.sequence.token_ids)

    def release(self, sequence: Sequence) -> None:
        self._indices.pop(sequence.request_id, None)
        self._scored.pop(sequence.request_id, None)


def serves(sequence: Sequence, kind: DrafterKind) -> bool:
    """Whether the request lets a drafter of this kind propose."""
    return sequence.request.drafter in (DrafterKind.AUTO, kind)
