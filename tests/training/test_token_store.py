"""Shards of token ids on disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.training.token_store import HELD_OUT_EVERY, TokenSequence, TokenStore

if TYPE_CHECKING:
    from pathlib import Path


def _sequence(number: int) -> TokenSequence:
    return TokenSequence(tuple(range(number, number + 6)), 2, 0.5)


def test_sequences_survive_a_restart_in_order(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, shard_tokens=20)
    for number in range(10):
        store.add(_sequence(number))
    assert len(store.paths()) == 2, "four sequences of six tokens fill a shard"
    again = TokenStore(tmp_path, shard_tokens=20)
    assert again.num_sequences == 8, "what was pending is lost, nothing else"
    assert again.num_answer_tokens == 8 * 4
    again.add(_sequence(8))
    again.flush()
    shards = [again.read(path) for path in again.paths()]
    firsts = [ids[0].item() for shard in shards for ids in shard.sequences()]
    assert firsts == list(range(9))
    assert [shard.first for shard in shards] == [0, 4, 8]
    assert shards[0].prompt_lengths == (2,) * 4
    assert shards[0].temperatures == (0.5,) * 4


def test_a_half_written_shard_is_not_seen(tmp_path: Path) -> None:
    (tmp_path / "tokens-00000.safetensors.partial").write_bytes(b"broken")
    assert TokenStore(tmp_path).paths() == []


def test_sequences_without_an_answer_are_left_out(tmp_path: Path) -> None:
    store = TokenStore(tmp_path)
    store.add(TokenSequence((1, 2, 3), 3, 0.0))
    store.add(TokenSequence((1, 2), 1, 0.0))
    store.flush()
    assert store.num_sequences == 0


def test_held_out_sequences_stay_the_same_whatever_the_shards(tmp_path: Path) -> None:
    chosen = []
    for shard_tokens in (6, 60, 600):
        store = TokenStore(tmp_path / str(shard_tokens), shard_tokens=shard_tokens)
        for number in range(2 * HELD_OUT_EVERY):
            store.add(_sequence(number))
        store.flush()
        held = [
            int(ids[0])
            for shard in map(store.read, store.paths())
            for index, ids in enumerate(shard.sequences())
            if shard.is_held_out(index)
        ]
        chosen.append(held)
    assert chosen[0] == chosen[1] == chosen[2]
    assert len(chosen[0]) == 2
