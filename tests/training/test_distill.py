"""A draft for a tiny target, from prompts to a folder, interrupted and resumed."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from paceline.core.errors import ConfigError
from paceline.model.draft_folder import describe_draft, load_draft
from paceline.training import distill, prompts
from paceline.training.distill import Distillation, DistillOptions, DraftKind, Report
from paceline.training.generate import GenerationOptions, OnPolicyGenerator
from paceline.training.generation_engine import generation_engine
from paceline.training.trainer import TrainingOptions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paceline.training.token_store import TokenSequence
    from tests.training.conftest import TinyTarget

GENERATION = GenerationOptions(
    concurrency=8, max_prompt_tokens=24, max_question_tokens=8, max_answer_tokens=24
)


class Ticks:
    """A clock that moves on by a fixed amount each time it is read, so that budgets mean a number
    of things done and not the speed of the machine."""

    def __init__(self, step: float) -> None:
        self.now = 0.0
        self.step = step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class Stop(Exception):
    pass


def _options(kind: DraftKind, budget_s: float = 120.0) -> DistillOptions:
    return DistillOptions(
        kind=kind,
        budget_s=budget_s,
        num_output_ids=280,
        num_layers=1 if kind is DraftKind.HEAD else 2,
        training=TrainingOptions(learning_rate=3e-3, warmup_steps=5, batch_sequences=4),
    )


def _sequences(target: TinyTarget, seed: int = 0) -> Iterator[TokenSequence]:
    engine = generation_engine(target.load(), target.description, target.codec, GENERATION)
    rng = random.Random(seed)
    return iter(
        OnPolicyGenerator(engine, target.codec, prompts.self_written(rng), GENERATION, seed)
    )


@pytest.mark.parametrize("kind", list(DraftKind))
def test_a_draft_is_made_across_an_interruption(
    tiny_target: TinyTarget, tmp_path: Path, kind: DraftKind
) -> None:
    phases: list[str] = []
    stop_in = {"data": 30, "features": 10, "training": 20}

    def report(now: Report) -> None:
        phases.append(now.phase)
        if phases.count(now.phase) == stop_in[now.phase]:
            raise Stop

    def session() -> Distillation:
        return Distillation(
            tmp_path / "work", tiny_target.load(), tiny_target.codec, _options(kind), report,
            clock=Ticks(0.5),
        )  # fmt: skip

    # Stopped once in each phase, each time by a new process's worth of objects.
    work = session()
    with pytest.raises(Stop):
        work.collect(_sequences(tiny_target))
    collected = work.num_sequences
    assert collected >= 30
    work = session()
    assert work.num_sequences == collected, "what was collected is still there"
    if work.needs_data:
        work.collect(_sequences(tiny_target, seed=1))
    assert work.num_sequences > collected
    with pytest.raises(Stop):
        work.encode()
    work = session()
    work.encode()
    with pytest.raises(Stop):
        work.train(tmp_path / "draft")
    assert not (tmp_path / "draft").exists()
    work = session()
    work.encode()
    evaluation = work.train(tmp_path / "draft")
    assert phases.count("training") > 20
    assert not work.needs_data

    loaded = load_draft(describe_draft(tmp_path / "draft"), tiny_target.load(), "tiny")
    assert loaded.description.kind == kind.value
    assert set(tiny_target.codec.eos_token_ids) <= set(loaded.output_ids.tolist())
    card = (tmp_path / "draft" / "README.md").read_text()
    assert f"{evaluation.mean_acceptance:.3f}" in card


def test_training_raises_acceptance_above_the_start(
    tiny_target: TinyTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself: the factor that is fitted at the end, which lifts the start too, is left out."""
    monkeypatch.setattr(distill, "sharpen", lambda module, source, judged: None)

    def session(budget_s: float) -> Distillation:
        options = replace(_options(DraftKind.HEAD), budget_s=budget_s)
        return Distillation(
            tmp_path / "work", tiny_target.load(), tiny_target.codec, options,
            lambda report: None, clock=Ticks(0.25),
        )  # fmt: skip

    work = session(100.0)
    work.collect(_sequences(tiny_target))
    work.encode()
    # No time is left to train: this is the head as it is initialised.
    start = session(1.0).train(tmp_path / "start")
    trained = session(140.0).train(tmp_path / "trained")
    # The start is a regression already. On so small a target training adds 0.03 to it, and 10 more
    # of 96 greedy drafts agree at the first token, which no factor on the logits could change.
    assert trained.mean_acceptance > start.mean_acceptance + 0.02
    assert trained.greedy is not None
    assert start.greedy is not None
    assert trained.greedy.survival[0] > start.greedy.survival[0]


def test_a_work_folder_serves_one_kind_of_draft(tiny_target: TinyTarget, tmp_path: Path) -> None:
    def session(kind: DraftKind) -> Distillation:
        return Distillation(
            tmp_path, tiny_target.load(), tiny_target.codec, _options(kind), lambda report: None
        )

    session(DraftKind.HEAD).add_answers(tmp_path / "none", [])
    with pytest.raises(ConfigError, match="another kind"):
        session(DraftKind.DECODER)


def test_training_without_data_says_so(tiny_target: TinyTarget, tmp_path: Path) -> None:
    work = Distillation(
        tmp_path, tiny_target.load(), tiny_target.codec, _options(DraftKind.HEAD),
        lambda report: None,
    )  # fmt: skip
    with pytest.raises(ConfigError, match="no training data"):
        work.train(tmp_path / "draft")
