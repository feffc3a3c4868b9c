"""Engines side by side: prompts, turns and medians, with engines that answer by script."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from ops.bench import peer_engines, peers
from ops.bench.peer_engines import Answer, TransformersEngine
from ops.bench.peer_prompts import Load, prompts_for
from paceline.model.tokenizer import TextCodec
from tests.tiny_models import tiny_llama

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

CODE, CHAT = Load("code", 50, 2), Load("chat", None, 3)


class CharacterCodec:
    """A token is a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(character) % 1000 for character in text]

    def encode_chat(self, messages: Any) -> Any:
        return argparse.Namespace(ids=self.encode(messages[0].content))


class ScriptedEngine:
    """Takes as long as it is told, by column."""

    def __init__(
        self, name: str, seconds: dict[str, float], most_sessions: int = 99, fails: bool = False
    ) -> None:
        self.name = name
        self.columns: Mapping[str, Mapping[str, Any]] = dict.fromkeys(seconds, {})
        self.asked: list[tuple[str, int, int]] = []
        self._seconds = seconds
        self._most_sessions = most_sessions
        self._fails = fails

    def takes(self, column: str, num_sessions: int) -> bool:
        return column != "lookup" or num_sessions <= self._most_sessions

    def answer(self, column: str, prompts: Sequence[list[int]], num_tokens: int) -> list[Answer]:
        self.asked.append((column, len(prompts), num_tokens))
        if self._fails and num_tokens == 10:
            raise RuntimeError("it broke")
        seconds = self._seconds[column]
        return [Answer(1.0, 1.5, 1.0 + seconds, num_tokens) for _ in prompts]

    def stop(self) -> None:
        pass


def _options(**changes: Any) -> argparse.Namespace:
    return argparse.Namespace(**({"rounds": 3, "tokens": 10, "minutes": 10.0} | changes))


@pytest.fixture
def _no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "ensure_default_target", Path)
    monkeypatch.setattr(TextCodec, "load", lambda folder: CharacterCodec())


@pytest.mark.parametrize("load", [CODE, CHAT, Load("edit", None, 4)])
def test_no_two_prompts_begin_alike(load: Load) -> None:
    codec: Any = CharacterCodec()
    turns = [prompts_for(load, codec, turn=turn) for turn in range(3)]
    assert turns[0] == prompts_for(load, codec, turn=0)
    prompts = [tuple(prompt) for turn in turns for prompt in turn]
    assert len({prompt[:40] for prompt in prompts}) == len(prompts) == 3 * load.sessions
    if load.context is not None:
        assert {len(prompt) for prompt in prompts} == {load.context}


@pytest.mark.usefixtures("_no_weights")
def test_every_column_is_asked_in_every_turn_after_the_prompts_are_computed() -> None:
    first = ScriptedEngine("first", {"plain": 2.0, "fast": 1.0})
    second = ScriptedEngine("second", {"generate": 4.0, "lookup": 1.0}, most_sessions=2)
    samples = peers.measure([first, second], [CODE, CHAT], _options(), {})
    counts = {key: len(values) for key, values in samples.items()}
    assert counts["2 x code 50", "plain"] == counts["2 x code 50", "first prefill"] == 3
    assert ("3 x chat", "lookup") not in counts, "it does not take three"
    assert counts["2 x code 50", "lookup"] == 3
    after_warm_up = first.asked[2:]
    assert [tokens for _, _, tokens in after_warm_up[:3]] == [1, 10, 10]
    assert after_warm_up[1][0] != after_warm_up[1 + 6][0], "the order turns"
    result = peers.summary(
        samples, [CODE, CHAT], ["first", "second"], [*first.columns, *second.columns]
    )
    assert result["turns"] == {"2 x code 50": 3, "3 x chat": 3}
    assert result["decode"]["2 x code 50"] == {
        "plain": 10.0,
        "fast": 20.0,
        "generate": 5.0,
        "lookup": 20.0,
    }
    assert result["prefill"]["2 x code 50"] == {"first": 200.0, "second": 200.0}


@pytest.mark.usefixtures("_no_weights")
def test_no_turn_begins_when_the_time_is_up(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    engine = ScriptedEngine("first", {"plain": 2.0})
    samples = peers.measure([engine], [CODE, CHAT], _options(minutes=0.0), {})
    result = peers.summary(samples, [CODE, CHAT], ["first"], ["plain"])
    assert result["turns"] == {"2 x code 50": 1, "3 x chat": 1}
    peers.show(result)
    assert "3 x chat: plain 15; ahead: plain" in capsys.readouterr().out
    peers.write_chart(result, tmp_path / "chart.svg")
    ElementTree.parse(tmp_path / "chart.svg")


@pytest.mark.usefixtures("_no_weights")
def test_a_peer_that_fails_is_left_out_with_its_reason() -> None:
    good, bad = ScriptedEngine("paceline", {"plain": 2.0}), ScriptedEngine("x", {"p": 1.0}, 9, True)
    left_out: dict[str, str] = {}
    samples = peers.measure([good, bad], [CODE, CHAT], _options(), left_out)
    assert left_out == {"x": "it broke"}
    assert len(samples["3 x chat", "plain"]) == 3
    assert ("3 x chat", "p") not in samples
    good._fails = True
    with pytest.raises(RuntimeError, match="it broke"):
        peers.measure([good], [CODE], _options(), {})


def test_transformers_answers_whole_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_engines, "use_threads", lambda count: None)
    monkeypatch.setattr(peer_engines, "load_target", lambda folder, **options: tiny_llama())
    engine = TransformersEngine(Path(), Path())
    assert not engine.takes("transformers assisted", 2)
    assert engine.takes("transformers generate", 2)
    for column in engine.columns:
        prompts = [[3, 4, 5, 6, 3, 4]] + [[7, 8]] * engine.takes(column, 2)
        [first, *_] = engine.answer(column, prompts, 1)
        assert (first.num_tokens, first.last_at) == (1, first.first_at)
        answers = engine.answer(column, prompts, 6)
        assert len(answers) == len(prompts)
        assert all(answer.first_at < answer.last_at for answer in answers)
        # Times begin with the first tokens, of which an assisted step may bring several.
        assert all(1 <= answer.num_tokens <= 5 for answer in answers)
