"""What must hold between any two steps of an engine, checked from the outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.engine.sequence import SequenceStatus

if TYPE_CHECKING:
    from paceline.engine.engine import Engine
    from tests.fakes import TableRunner
    from tests.tiny_models import Outputs


def check_invariants(
    engine: Engine, outputs: Outputs, target: TableRunner, draft: TableRunner | None
) -> None:
    """Cursors, block accounts, contents of K/V memory and emitted tokens all agree."""
    scheduler = engine._scheduler
    cache = scheduler.cache
    cache.pool.check([sequence.block_table for sequence in scheduler.running])
    size = cache.block_size
    for sequence in scheduler.waiting:
        assert sequence.status is SequenceStatus.WAITING
        assert sequence.block_table == []
        assert sequence.num_computed == sequence.num_draft_computed == 0
    for sequence in scheduler.running:
        assert sequence.status is SequenceStatus.RUNNING
        tokens = sequence.token_ids
        assert sequence.num_computed <= len(tokens) - 1
        assert sequence.num_draft_computed <= len(tokens) - 1
        assert len(sequence.block_table) * size >= sequence.num_computed
        if sequence.num_output > 0 and sequence.counters.num_preemptions == 0:
            assert sequence.num_computed == len(tokens) - 1
        assert len(tokens) < engine.limits.max_sequence_tokens
        assert sequence.num_output < max(1, sequence.request.max_new_tokens)
        emitted = outputs.tokens.get(sequence.request_id, [])
        assert emitted == tokens[sequence.num_prompt :]
        held = target.prefix(sequence.block_table, sequence.num_computed)
        assert held == tuple(tokens[: sequence.num_computed]), "target rows are not its tokens"
        if draft is not None:
            held = draft.prefix(sequence.block_table, sequence.num_draft_computed)
            assert held == tuple(tokens[: sequence.num_draft_computed]), "stale draft rows"
        # Every registered block of the table is full, committed and computed.
        for index, block_id in enumerate(sequence.block_table):
            if block_id in cache._key_of:
                assert (index + 1) * size <= sequence.num_computed
                key = cache.keys(tokens[: (index + 1) * size], sequence.request.cache_salt)[-1]
                assert cache._key_of[block_id] == key
    for key, block_id in cache._block_of.items():
        assert cache._key_of[block_id] == key
        assert cache.pool.num_references(block_id) > 0 or cache.pool.is_cached(block_id)
        assert (target.memory[block_id] >= 0).all(), "a shareable block with an unwritten row"
        rows = cache._num_draft_rows[block_id]
        if draft is not None:
            held_rows = draft.memory[block_id][:rows].tolist()
            assert held_rows == target.memory[block_id][:rows].tolist(), (
                "draft rows of other tokens"
            )
