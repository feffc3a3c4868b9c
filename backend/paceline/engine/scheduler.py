"""Who is computed in the next step, how far, and on which blocks. Knows no tensors.

There is no prefill phase and no decode phase. Every sequence has known tokens and computed ones;
computed catches up, and a drafted token is one more to catch up. A step computes at most
`token_budget` tokens: decoding sequences first, then chunks of prompts, those in progress before
new ones, and what is left goes to draft models that lag behind. Prompts share three quarters of
what decoding leaves in order of arrival and a quarter by what they still lack, so that a short one
need not wait for the end of a long one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

from paceline.engine.drafters.forced import forced_tokens
from paceline.engine.plan import PlanEntry, StepPlan
from paceline.engine.policy import is_switched_off
from paceline.engine.sequence import SequenceStatus

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paceline.cache.prefix import PrefixCache
    from paceline.core.limits import EngineLimits
    from paceline.engine.drafters.interface import Drafter
    from paceline.engine.policy import SpeculationPolicy
    from paceline.engine.sequence import Sequence

# A drafter that trails by at most this many tokens is in step: no catching up to charge for.
_IN_STEP = 2
# One part in so many of what a step computes of prompts goes to those that lack least.
_SHORT_PROMPTS_SHARE = 4


class Scheduler:
    """Owns the queue, the running list (oldest first) and every block table.

    token_budget: at least max_sequences, so that no decoding sequence is ever left out.
    """

    def __init__(
        self,
        cache: PrefixCache,
        limits: EngineLimits,
        drafter: Drafter,
        policy: SpeculationPolicy,
        token_budget: int,
    ) -> None:
        if token_budget < limits.max_sequences:
            raise ValueError("token_budget must be at least max_sequences")
        self.cache = cache
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._limits = limits
        self._drafter = drafter
        self._policy = policy
        self._token_budget = token_budget

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence, whose request `EngineLimits.check` let through."""
        self.waiting.append(sequence)

    def schedule(self) -> StepPlan:
        """The next step's plan; its blocks are reserved. Empty only when there is no work."""
        preempted: list[Sequence] = []
        entries = self._plan_decoding(preempted)
        budget = self._token_budget - sum(e.num_target_tokens + e.num_drafted for e in entries)
        chunks = self._plan_chunks(budget, may_admit=not preempted)
        budget -= sum(chunk.num_target_tokens for chunk in chunks)
        entries += chunks
        return StepPlan(tuple(self._plan_catch_up(entries, budget)), tuple(preempted))

    def finish(self, sequence: Sequence, *, discard: bool = False) -> list[int]:
        """Take a sequence out for good.

        discard: its K/V is worthless. The blocks that nobody else holds are withdrawn from sharing
        and returned, for the caller to scrub before the next step.
        """
        worthless: list[int] = []
        if sequence.status is SequenceStatus.WAITING:
            self.waiting.remove(sequence)
        else:
            self.running.remove(sequence)
            if discard:
                held_alone = self.cache.pool.num_references
                worthless = [b for b in sequence.block_table if held_alone(b) == 1]
                for block_id in worthless:
                    self.cache.withdraw(block_id)
            self._release(sequence)
        sequence.status = SequenceStatus.FINISHED
        return worthless

    def register_full_blocks(self, sequence: Sequence) -> None:
        """Make the committed, computed full blocks findable. Call after rollback."""
        size = self.cache.block_size
        num_full = sequence.num_computed // size
        if num_full == sequence.num_registered:
            return
        if num_full > len(sequence.block_keys):
            known, salt = sequence.token_ids[: num_full * size], sequence.request.cache_salt
            sequence.block_keys = self.cache.keys(known, salt, sequence.block_keys)
        for index in range(sequence.num_registered, num_full):
            self.cache.register(sequence.block_table[index], sequence.block_keys[index])
        sequence.num_registered = num_full

    def _plan_decoding(self, preempted: list[Sequence]) -> list[PlanEntry]:
        decoding = [s for s in self.running if s.is_decoding]
        places = self._limits.max_sequences - len(self.running)
        num_prefill_rows = min(
            sum(s.num_uncomputed for s in self.running if not s.is_decoding)
            + sum(s.num_tokens for s in islice(self.waiting, places)),
            self._token_budget - len(decoding),
        )
        choices = self._policy.choose(decoding, num_prefill_rows)
        forced = [
            () if is_switched_off(sequence) else forced_tokens(sequence, self._room(sequence))
            for sequence in decoding
        ]
        counts = [
            len(known)
            or min(choice.num_drafted, self._room(sequence), self._drafter.max_tokens(sequence))
            for sequence, choice, known in zip(decoding, choices, forced, strict=True)
        ]
        counts = self._fit_budget(counts)
        entries = []
        for sequence, choice, count, known in zip(decoding, choices, counts, forced, strict=True):
            if not self._reserve(sequence, sequence.num_tokens + count):
                pool = self.cache.pool
                self._policy.withdraw(decoding, pool.num_available, pool.num_blocks)
                return self._plan_without_drafts(decoding, preempted)
            if known[:count]:
                entries.append(PlanEntry(sequence, 1, True, count, forced=known[:count]))
                continue
            catches_up = choice.catches_up and (count > 0 or choice.num_drafted == 0)
            lag = self._drafter.lag(sequence) if catches_up else 0
            entries.append(
                PlanEntry(sequence, 1, True, count, lag, choice.drafter, choice.num_scored)
            )
        return entries

    def _plan_without_drafts(
        self, decoding: list[Sequence], preempted: list[Sequence]
    ) -> list[PlanEntry]:
        """Blocks ran short: nobody drafts, lookahead goes back, and only then is the youngest
        sequence preempted, until the oldest ones have what they need."""
        for sequence in self.running:
            self._give_back_lookahead(sequence)
        entries = []
        for sequence in decoding:
            if sequence.status is not SequenceStatus.RUNNING:
                continue
            while not self._reserve(sequence, sequence.num_tokens):
                victim = self.running[-1]
                self._preempt(victim)
                preempted.append(victim)
                if victim is sequence:
                    break
            else:
                entries.append(PlanEntry(sequence, 1, True))
        return entries

    def _plan_chunks(self, budget: int, *, may_admit: bool) -> list[PlanEntry]:
        """What is computed of prompts, oldest first; sequences are admitted as long as there is
        budget for them."""
        prompts = [sequence for sequence in self.running if not sequence.is_decoding]
        counts = [0] * len(prompts)
        shared = budget // _SHORT_PROMPTS_SHARE  # what the shortest ones may have

        def give(place: int, most: int) -> None:
            nonlocal budget
            count = max(0, min(prompts[place].num_uncomputed - counts[place], most))
            counts[place] += count
            budget -= count

        def admit() -> bool:
            nonlocal may_admit
            may_admit = (
                may_admit
                and len(self.running) < self._limits.max_sequences
                and bool(self.waiting)
                and self._admit(self.waiting[0])
            )
            if may_admit:
                prompts.append(self.waiting.popleft())
                counts.append(0)
            return may_admit

        for place in range(len(prompts)):
            give(place, budget - shared)
        while budget > shared and admit():
            give(-1, budget - shared)
        # Half of what is left each time: there is something for whoever stands behind.
        others = range(1, len(prompts))
        for place in sorted(others, key=lambda at: prompts[at].num_uncomputed):
            give(place, -(-budget // 2))
        while budget > 0 and admit():
            give(-1, -(-budget // 2))
        for place in range(len(prompts)):
            give(place, budget)
        return [
            PlanEntry(sequence, count, count == sequence.num_uncomputed)
            for sequence, count in zip(prompts, counts, strict=True)
            if count
        ]

    def _room(self, sequence: Sequence) -> int:
        """Drafted tokens that can still be of use: the token behind them must fit as well."""
        request = sequence.request
        left = min(
            request.max_new_tokens - sequence.num_output,
            self._limits.max_sequence_tokens - sequence.num_tokens,
        )
        return max(0, left - 1)

    def _fit_budget(self, counts: list[int]) -> list[int]:
        """Take from the deepest drafts until decoding keeps within its share of the budget.

        A quarter of the budget stays free of drafts while prompts are waiting to be computed.
        """
        is_prefilling = bool(self.waiting) or any(not s.is_decoding for s in self.running)
        reserve = self._token_budget // 4 if is_prefilling else 0
        room = max(0, self._token_budget - reserve - len(counts))
        total = sum(counts)
        depth = max(counts, default=0)
        while total > room:
            for index, count in enumerate(counts):
                if count == depth and total > room:
                    counts[index] -= 1
                    total -= 1
            depth -= 1
        return counts

    def _plan_catch_up(self, entries: list[PlanEntry], budget: int) -> Iterable[PlanEntry]:
        """Cut catching up to what the step's token budget has left; keeping in step is free."""
        for entry in entries:
            lag = entry.num_catch_up
            if lag <= _IN_STEP:
                yield entry
                continue
            count = min(lag, max(budget, 0))
            # What is to be scored has to be computed in one piece: leave room for it.
            piece = entry.num_scored + 1
            if entry.num_scored and piece < count < lag:
                count = min(count, lag - piece)
            budget -= count
            yield replace(entry, num_catch_up=count)

    def _admit(self, sequence: Sequence) -> bool:
        """Give the queue's first sequence all blocks for its known tokens, or leave it there."""
        size = self.cache.block_size
        sequence.block_keys = self.cache.keys(
            sequence.token_ids, sequence.request.cache_salt, sequence.block_keys
        )
        matched = self.cache.match(sequence.block_keys, sequence.num_tokens)
        needed = -(-sequence.num_tokens // size) - len(matched)
        # Every running sequence may need a block soon; without this reserve a preempted sequence
        # would come back only to be preempted again.
        reserve = len(self.running)
        fresh = None
        if needed + reserve <= self.cache.pool.num_available:
            fresh = self.cache.allocate(needed)
        if fresh is None:
            self.cache.pool.release(reversed(matched))
            return False
        sequence.block_table = matched + fresh
        sequence.num_computed = len(matched) * size
        sequence.num_registered = len(matched)
        sequence.num_draft_computed = min(
            self.cache.num_leading_draft_rows(matched), sequence.num_computed
        )
        if sequence.num_cached_prompt is None:
            sequence.num_cached_prompt = min(sequence.num_computed, sequence.num_prompt)
        sequence.status = SequenceStatus.RUNNING
        self.running.append(sequence)
        self._drafter.admit(sequence)
        return True

    def _reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Make the block table cover num_tokens tokens."""
        missing = -(-num_tokens // self.cache.block_size) - len(sequence.block_table)
        if missing <= 0:
            return True
        fresh = self.cache.allocate(missing)
        if fresh is None:
            return False
        sequence.block_table += fresh
        return True

    def _give_back_lookahead(self, sequence: Sequence) -> None:
        used = -(-sequence.num_tokens // self.cache.block_size)
        self.cache.pool.release(reversed(sequence.block_table[used:]))
        del sequence.block_table[used:]

    def _preempt(self, sequence: Sequence) -> None:
        """Take a running sequence's blocks; it waits at the head of the queue and recomputes."""
        self.running.remove(sequence)
        self._release(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.counters.num_preemptions += 1
        self.waiting.appendleft(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._drafter.release(sequence)
        self.cache.pool.release(reversed(sequence.block_table))
        sequence.block_table = []
        sequence.num_computed = 0
        sequence.num_draft_computed = 0
        sequence.num_registered = 0
