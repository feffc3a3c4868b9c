"""From folders on disk to an engine that answers, without a socket."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
import torch

from paceline import composition
from paceline.cache.kv_tensors import KVTensors
from paceline.core.config import Device, Dtype, EngineConfig, ServeConfig, resolve
from paceline.core.cost import CostTable, Curve
from paceline.core.errors import ModelError
from paceline.core.events import FinishEvent, FinishReason, TokenEvent
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.engine.calibration import STEADY
from paceline.model import default_weights
from paceline.model.chat import ChatMessage
from paceline.model.draft_folder import DraftDescription, DraftTarget, save_draft
from paceline.model.draft_head import DraftModule, DraftModuleConfig
from paceline.model.draft_runner import feature_bytes_per_token
from paceline.model.loading import load_target
from tests.model.tiny import byte_level_tokenizer, llama_config, write_model, write_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.engine.engine import Engine

ANSWER_LENGTH = 24


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measured step costs are kept in the user's cache; these models have no business there."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def target(tmp_path: Path) -> Path:
    # 330 rows for 320 tokens: a padded tail that must never be drawn.
    config = llama_config(initializer_range=0.3, vocab_size=330, dtype="float32")
    return write_tokenizer(write_model(tmp_path / "target", config), byte_level_tokenizer())


def settings(target: Path, **changes: Any) -> ServeConfig:
    values = {"target": str(target), "device": "cpu", "dtype": "float32", "kv_memory": "4MiB"}
    return ServeConfig.of(values | changes)


def build(config: ServeConfig) -> tuple[composition.Models, EngineConfig, Engine]:
    models = composition.check_models(config)
    engine_config = resolve(config, composition.facts_of(models))
    plan = composition.plan_for(models, engine_config, kv_memory=config.kv_memory)
    return models, engine_config, composition.build_engine(models, engine_config, plan)


def test_what_takes_a_while_is_told_before_it_begins(target: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        models = composition.check_models(settings(target), tell=told.append)
        engine_config = resolve(settings(target), composition.facts_of(models))
        plan = composition.plan_for(models, engine_config, kv_memory=4 << 20)
        composition.build_engine(models, engine_config, plan, tell=told.append)
    reading = f"Reading the weights of {target.name}"
    starts = [what.partition(";")[0] for what in told]
    assert starts[0] == reading
    assert starts[1].startswith("Measuring what a step costs on this machine")
    assert reading in starts[2:]


@pytest.mark.parametrize(
    ("spread", "cause"),
    [(STEADY + 0.1, "The machine was busy meanwhile"), (math.inf, "There was time for one round")],
)
def test_costs_that_are_not_kept_are_told(target: Path, spread: float, cause: str) -> None:
    models = composition.check_models(settings(target))
    engine_config = resolve(settings(target), composition.facts_of(models))
    steady = CostTable(Curve((1,), (0.01,)))
    shaky = dataclasses.replace(steady, spread=spread)
    told: list[str] = []

    def start(measured: CostTable) -> list[str]:
        told.clear()
        costs = composition._costs(models, engine_config, told.append, lambda: measured)
        assert costs == measured
        return [what.partition(",")[0].partition(";")[0] for what in told]

    measuring = "Measuring what a step costs on this machine"
    for _ in range(2):
        first, second = start(shaky)
        assert first == measuring
        assert second.startswith(cause)
        assert "the next start measures again" in told[1]
    assert start(steady) == [measuring]
    assert start(steady) == []


def answer(engine: Engine, prompt_ids: tuple[int, ...]) -> tuple[list[int], str, FinishEvent]:
    engine.submit(
        Request(
            "r",
            prompt_ids,
            ANSWER_LENGTH,
            SamplingParams(temperature=0.0),
            speculation=Speculation.ON,
            num_speculative_tokens=3,
        )
    )
    ids: list[int] = []
    text = ""
    for _ in range(200):
        for event in engine.step().events:
            text += event.text
            if isinstance(event, FinishEvent):
                return ids, text, event
            assert isinstance(event, TokenEvent)
            ids += [token.token_id for token in event.tokens]
    raise AssertionError("the request did not end")


def reference(target: Path, prompt_ids: tuple[int, ...]) -> list[int]:
    """Greedy decoding by transformers, a whole forward pass a token, padding left out."""
    model = load_target(str(target), dtype=Dtype.FLOAT32, attn_implementation="sdpa")
    ids = list(prompt_ids)
    for _ in range(ANSWER_LENGTH):
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1, :320]
        ids.append(int(logits.argmax()))
    return ids[len(prompt_ids) :]


def write_head(folder: Path, target: Path, **changes: Any) -> Path:
    model = load_target(str(target), dtype=Dtype.FLOAT32)
    torch.manual_seed(9)
    config = DraftModuleConfig(
        hidden_size=32,
        intermediate_size=40,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_output_ids=100,
        feature_layers=(0, -1),
    )
    embedding: Any = model.get_input_embeddings()
    save_draft(
        folder,
        DraftModule(config, embedding.weight),
        torch.arange(0, 300, 3),
        torch.zeros(len(embedding.weight) - 100),
        DraftTarget.of(model, "tiny"),
        "# card\n",
        {},
    )
    path = folder / "config.json"
    written = json.loads(path.read_text())
    written["target"] |= changes
    path.write_text(json.dumps(written))
    return folder


@pytest.mark.parametrize("drafter", ["none", "ngram", "model", "auto", "head"])
def test_an_engine_from_folders_answers_as_transformers_does(
    target: Path, tmp_path: Path, drafter: str
) -> None:
    changes: dict[str, Any] = {"drafter": drafter}
    if drafter == "head":
        changes = {"drafter": "model", "draft": str(write_head(tmp_path / "head", target))}
    elif drafter in ("model", "auto"):
        changes["draft"] = str(target)
    models, _, engine = build(settings(target, **changes))
    prompt = models.codec.encode_chat([ChatMessage("user", "the quick brown fox")]).ids
    ids, text, finish = answer(engine, prompt)
    assert ids == reference(target, prompt)
    assert text == models.codec.decode(ids)
    assert finish.reason is FinishReason.LENGTH
    if drafter == "model":  # the target as its own draft: nothing is ever rejected
        assert finish.summary.num_drafted > 0
        assert finish.summary.num_accepted == finish.summary.num_drafted


def test_the_plan_is_what_is_taken(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and K/V of the plan, against the tensors that were made."""
    made: list[int] = []

    def counted(*arguments: Any) -> KVTensors:
        tensors = KVTensors(*arguments)
        made.extend(layer.numel() * layer.element_size() for layer in tensors.layers)
        return tensors

    monkeypatch.setattr("paceline.composition.KVTensors", counted)
    for draft in (None, str(target), str(write_head(tmp_path / "head", target))):
        made.clear()
        config = settings(target, **({} if draft is None else {"draft": draft}))
        models = composition.check_models(config)
        engine_config = resolve(config, composition.facts_of(models))
        plan = composition.plan_for(models, engine_config, kv_memory=config.kv_memory)
        composition.build_engine(models, engine_config, plan)
        share = plan.share
        taken = sum(made)
        if isinstance(models.draft, DraftDescription):  # the target's features wait beside the K/V
            taken += share.num_tokens * feature_bytes_per_token(models.draft.config, 4)
        assert taken == share.num_tokens * share.kv_bytes_per_token
        assert 0 <= share.kv_bytes - taken < share.block_size * share.kv_bytes_per_token
        loaded = load_target(str(target), dtype=Dtype.FLOAT32)
        weights = sum(p.numel() * p.element_size() for p in loaded.parameters())
        assert plan.target.weight_bytes == weights


def test_a_draft_folder_of_another_target_is_refused(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", target, hidden_size=64)
    with pytest.raises(ModelError, match=r"\(330, 64, 2\) there and \(330, 32, 2\)"):
        composition.check_models(settings(target, draft=str(head)))


def test_a_draft_folder_without_weights_is_refused(target: Path, tmp_path: Path) -> None:
    head = write_head(tmp_path / "head", target)
    (head / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"has no model\.safetensors"):
        composition.check_models(settings(target, draft=str(head)))


def test_the_shipped_draft_goes_with_the_default_target_alone(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = write_head(tmp_path / "drafts" / "head", target, name="SmolLM2-135M-Instruct")
    write_head(tmp_path / "drafts" / "other", target, name="another")
    monkeypatch.setattr("paceline.__file__", str(tmp_path / "__init__.py"))
    monkeypatch.setattr(default_weights, "ensure_default_target", lambda tell: target)
    assert composition.shipped_draft() == head
    for drafter, is_used in itertools.product(DrafterKind, [True, False]):
        values = {} if is_used else {"target": str(target)}
        models = composition.check_models(ServeConfig.of(values | {"drafter": drafter}))
        is_wanted = drafter in (DrafterKind.AUTO, DrafterKind.MODEL)
        assert (models.draft is not None) == (is_used and is_wanted)


def test_a_cgroup_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "_cgroup_limit", lambda: 12345)
    assert composition._available_bytes(Device.CPU) == 12345


@pytest.mark.parametrize("is_tied", [True, False])
def test_the_plan_counts_what_the_fast_path_keeps_twice(tmp_path: Path, is_tied: bool) -> None:
    config = llama_config(vocab_size=330, dtype="bfloat16", tie_word_embeddings=is_tied)
    target = write_tokenizer(write_model(tmp_path / "model", config), byte_level_tokenizer())
    models = composition.check_models(settings(target, dtype="bfloat16"))
    assert models.target.is_head_tied is is_tied
    for has_fast_path in (True, False):
        asked = settings(target, dtype="bfloat16", fast_path=has_fast_path)
        sizes = composition.footprint(models.target, resolve(asked, composition.facts_of(models)))
        head = 330 * models.target.hidden_size * 2
        assert sizes.copy_bytes == (head if is_tied and has_fast_path else 0)
        assert sizes.weight_bytes == 2 * models.target.num_parameters


@pytest.mark.gpu
def test_an_engine_with_cuda_graphs_answers_as_one_without(target: Path) -> None:
    prompt = tuple(range(5, 25))
    answers = []
    for has_graphs in (False, True):
        asked = settings(target, device="cuda", dtype="bfloat16", cuda_graphs=has_graphs)
        _, _, engine = build(asked)
        answers.append(answer(engine, prompt)[0])
    assert answers[0] == answers[1]
