"""The head drafter in the engine against a head driven by hand over the target's true features."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest
import torch

from paceline.cache.kv_tensors import KVShape, KVTensors
from paceline.core.controller_session import PLAIN
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams, Speculation
from paceline.engine.assembly import HeadPart, ModelPart, assemble
from paceline.engine.drafters.head import HeadDrafter
from paceline.engine.plan import PlanEntry
from paceline.model.attention import ATTENTION_NAME
from paceline.model.draft_folder import DraftDescription, DraftTarget, LoadedDraft
from paceline.model.draft_head import DraftModule, DraftModuleConfig
from paceline.model.draft_runner import DraftModuleRunner
from paceline.model.runner import ModelRunner
from paceline.sampling.tail import Tail
from paceline.training.initialise import copy_from_target
from tests.reference import chi_square
from tests.tiny_models import VOCABULARY_SIZE, IdText, Outputs, run_to_end, tiny_llama
from tests.training.modules import Driver, embedding_of

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedModel

    from paceline.engine.drafters.interface import Proposal
    from paceline.engine.engine import Engine

OUTPUT_IDS = torch.arange(0, VOCABULARY_SIZE, 2)
BLOCK_SIZE = 4


def tiny_draft(
    target: PreTrainedModel,
    folder: Path,
    features: tuple[int, ...] = (0, 1, -1),
    layers: int = 1,
    *,
    has_tail: bool = False,
) -> LoadedDraft:
    """A head or decoder with random inputs and the target's last layer: good enough to differ from
    chance, bad enough to be rejected."""
    torch.manual_seed(5)
    config = DraftModuleConfig(
        hidden_size=32,
        intermediate_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_output_ids=len(OUTPUT_IDS),
        feature_layers=features,
        num_layers=layers,
        rms_norm_eps=1e-6,
    )
    module = DraftModule(config, embedding_of(target))
    copy_from_target(module, target, OUTPUT_IDS, (-1,) * layers)
    module.requires_grad_(False)
    description = DraftDescription(folder, config, DraftTarget.of(target, "tiny"))
    generator = torch.Generator().manual_seed(6)
    tail = torch.randn(VOCABULARY_SIZE - len(OUTPUT_IDS), generator=generator)
    return LoadedDraft(module, OUTPUT_IDS, description, tail if has_tail else None)


@dataclass
class Drafted:
    """A draft as it was proposed: the tokens known then, and the ids."""

    request_id: str
    known: tuple[int, ...]
    ids: tuple[int, ...]


class Spy(HeadDrafter):
    """Writes down what is proposed."""

    drafted: list[Drafted]

    def propose(self, entries):  # type: ignore[no-untyped-def]
        known = [(e.sequence.request_id, tuple(e.sequence.token_ids)) for e in entries]
        proposal: Proposal = super().propose(entries)
        for (request_id, tokens), ids in zip(known, proposal.draft_ids, strict=True):
            if ids:
                self.drafted.append(Drafted(request_id, tokens, ids))
        return proposal


def head_engine(
    target: PreTrainedModel,
    draft: LoadedDraft,
    monkeypatch: pytest.MonkeyPatch,
    *,
    num_blocks: int = 256,
    prefix_caching: bool = False,
    kind: DrafterKind = DrafterKind.MODEL,
) -> tuple[Engine, list[Drafted]]:
    drafted: list[Drafted] = []
    monkeypatch.setattr(Spy, "drafted", drafted, raising=False)
    monkeypatch.setattr("paceline.engine.assembly.HeadDrafter", Spy)
    config, shape = target.config, draft.module.config

    def tensors(layers: int) -> KVTensors:
        layout = KVShape(((2, 8),) * layers, torch.float32)
        return KVTensors(layout, num_blocks, BLOCK_SIZE, torch.device("cpu"))

    target_kv, draft_kv = tensors(config.num_hidden_layers), tensors(shape.num_layers)
    target.set_attn_implementation(ATTENTION_NAME)
    runner = ModelRunner(target, target_kv.layers, feature_layers=shape.feature_layers)
    engine = assemble(
        target=ModelPart(runner, config.max_position_embeddings, target_kv.scrub),
        draft=HeadPart(
            DraftModuleRunner(draft, draft_kv.layers),
            config.max_position_embeddings,
            draft_kv.scrub,
        ),
        drafter=kind,
        limits=EngineLimits(
            max_model_len=config.max_position_embeddings,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            max_sequences=8,
            max_waiting=100,
            vocabulary_size=VOCABULARY_SIZE,
        ),
        text_stream=lambda prompt_ids: IdText(),
        token_budget=64,
        num_speculative_tokens=4,
        prefix_caching=prefix_caching,
    )
    return engine, drafted


def request(name: str, prompt: tuple[int, ...], new: int = 24, temperature: float = 0.0) -> Request:
    return Request(
        name,
        prompt,
        new,
        SamplingParams(temperature=temperature),
        speculation=Speculation.ON,
        num_speculative_tokens=4,
    )


def prompt(seed: int, length: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, VOCABULARY_SIZE, (length,), generator=generator).tolist())


def by_hand(
    target: PreTrainedModel,
    draft: LoadedDraft,
    known: tuple[int, ...],
    count: int,
) -> list[int]:
    """A greedy draft behind the known tokens, from features computed anew."""
    driver, hidden = drive_by_hand(target, draft, known)
    drafted: list[int] = []
    with torch.no_grad():
        while True:
            column = int(draft.module.logits(hidden[None])[0].argmax())
            drafted.append(int(draft.output_ids[column]))
            if len(drafted) == count:
                return drafted
            position = len(known) + len(drafted) - 1
            hidden = driver.draft(hidden, torch.tensor(drafted[-1]), position)


def drive_by_hand(
    target: PreTrainedModel,
    draft: LoadedDraft,
    known: tuple[int, ...],
) -> tuple[Driver, torch.Tensor]:
    """A driver that has all true rows of the known tokens, and the last hidden row."""
    ids = torch.tensor(known)
    with torch.no_grad():
        target.set_attn_implementation("eager")
        output = target(ids[None], output_hidden_states=True)
        target.set_attn_implementation(ATTENTION_NAME)
        layers = draft.module.config.feature_layers
        states = [output.hidden_states[-1 if i < 0 else i + 1][0] for i in layers]
        features = torch.stack(states, 1) if states else torch.zeros(len(ids), 0, 32)
        driver = Driver(draft.module)
        return driver, driver.extend(ids, features[:-1])


def logits_by_hand(
    target: PreTrainedModel, draft: LoadedDraft, known: tuple[int, ...]
) -> torch.Tensor:
    """The module's logits for the token behind the known ones."""
    _, hidden = drive_by_hand(target, draft, known)
    with torch.no_grad():
        return draft.module.logits(hidden[None])[0]


@pytest.mark.parametrize(
    ("features", "layers"), [((0, 1, -1), 1), ((0, 1, -1), 2), ((1,), 1), ((), 2)]
)
def test_greedy_drafts_are_what_the_module_says(
    features: tuple[int, ...], layers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_llama(7, layers=3)
    draft = tiny_draft(target, tmp_path, features, layers)
    engine, drafted = head_engine(target, draft, monkeypatch)
    for index, length in enumerate((1, 5, 23, 90)):
        engine.submit(request(f"r{index}", prompt(index, length)))
    outputs = run_to_end(engine)
    assert set(outputs.finished) == {"r0", "r1", "r2", "r3"}
    assert len(drafted) > 20
    for made in drafted:
        assert list(made.ids) == by_hand(target, draft, made.known, len(made.ids))
    sources = {source for tokens in outputs.sources.values() for source in tokens}
    assert "accepted" in sources, "some drafts were right"
    assert "residual" in sources or "plain" in sources, "some were not"


def test_output_is_the_targets_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tiny_llama(8, layers=3)
    draft = tiny_draft(target, tmp_path)
    prompts = {f"r{i}": prompt(i + 50, 3 + 9 * i) for i in range(5)}

    def run(speculation: Speculation) -> Outputs:
        engine, _ = head_engine(target, draft, monkeypatch)
        for name, ids in prompts.items():
            engine.submit(replace(request(name, ids), speculation=speculation))
        return run_to_end(engine)

    assert run(Speculation.ON).tokens == run(Speculation.OFF).tokens


@pytest.mark.parametrize("num_blocks", [14, 20])
def test_short_of_blocks_it_still_ends_and_drafts_stay_right(
    num_blocks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_llama(9, layers=3)
    draft = tiny_draft(target, tmp_path)
    engine, drafted = head_engine(target, draft, monkeypatch, num_blocks=num_blocks)
    for index in range(4):
        engine.submit(request(f"r{index}", prompt(index + 9, 11)))
    outputs = run_to_end(engine)
    assert all(len(tokens) == 24 for tokens in outputs.tokens.values())
    for made in drafted:
        assert list(made.ids) == by_hand(target, draft, made.known, len(made.ids))


@pytest.mark.parametrize("first", list(Speculation))
def test_behind_a_prefix_from_the_cache_nothing_is_missing(
    first: Speculation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the sequence that computed the prefix drafted or not."""
    target = tiny_llama(10, layers=3)
    draft = tiny_draft(target, tmp_path)
    engine, drafted = head_engine(target, draft, monkeypatch, prefix_caching=True)
    shared = prompt(3, 22)
    engine.submit(replace(request("first", shared), speculation=first))
    run_to_end(engine)
    drafted.clear()
    engine.submit(request("second", (*shared, 7, 9)))
    outputs = run_to_end(engine)
    assert outputs.finished["second"].usage.num_cached == 20
    assert drafted
    for made in drafted:
        assert list(made.ids) == by_hand(target, draft, made.known, len(made.ids))


def test_drafting_begins_again_where_it_left_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that drafts in every fifth step alone."""
    target = tiny_llama(11, layers=3)
    draft = tiny_draft(target, tmp_path)
    engine, drafted = head_engine(target, draft, monkeypatch)
    choose, calls = engine._policy.choose, itertools.count()

    def now_and_then(decoding, num_prefill_rows):  # type: ignore[no-untyped-def]
        chosen = choose(decoding, num_prefill_rows)
        return chosen if next(calls) % 5 == 4 else [PLAIN] * len(chosen)

    monkeypatch.setattr(engine._policy, "choose", now_and_then)
    for index in range(3):
        engine.submit(request(f"r{index}", prompt(index + 20, 9 + index), new=40))
    run_to_end(engine)
    assert len(drafted) > 6
    for made in drafted:
        assert list(made.ids) == by_hand(target, draft, made.known, len(made.ids))


def test_sampled_drafts_stay_within_the_drafts_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tiny_llama(12, layers=3)
    draft = tiny_draft(target, tmp_path)
    engine, drafted = head_engine(target, draft, monkeypatch)
    for index in range(4):
        engine.submit(request(f"r{index}", prompt(index, 6), temperature=1.0))
    outputs = run_to_end(engine)
    allowed = set(OUTPUT_IDS.tolist())
    assert drafted
    assert all(set(made.ids) <= allowed for made in drafted)
    emitted = {token for tokens in outputs.tokens.values() for token in tokens}
    assert emitted - allowed, "the target's other ids are reached all the same"


def test_hot_drafts_of_a_draft_with_a_tail_reach_every_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And those of a cool neighbour in the same steps stay what they are."""
    target = tiny_llama(12, layers=3)
    draft = tiny_draft(target, tmp_path, has_tail=True)
    engine, drafted = head_engine(target, draft, monkeypatch)
    for index in range(4):
        engine.submit(request(f"hot {index}", prompt(index, 6), temperature=1.5))
    engine.submit(request("greedy", prompt(4, 6), new=40))
    engine.submit(request("late", prompt(5, 6), new=60, temperature=1.0))
    outputs = run_to_end(engine)
    assert {len(tokens) for tokens in outputs.tokens.values()} == {24, 40, 60}
    allowed = set(OUTPUT_IDS.tolist())
    hot = {id_ for made in drafted if made.request_id.startswith("hot") for id_ in made.ids}
    assert hot - allowed
    assert hot & allowed
    for made in drafted:
        if made.request_id == "greedy":
            assert list(made.ids) == by_hand(target, draft, made.known, len(made.ids))
    # When the hot ones have ended, what is drafted is the draft's own again.
    assert set(next(made.ids for made in reversed(drafted) if made.request_id == "late")) <= allowed


def second_tokens(engine: Engine, number: int) -> Counter[tuple[int, ...]]:
    """The second token, which was drafted, of so many hot answers to one prompt."""
    made: Counter[tuple[int, ...]] = Counter()
    for first in range(0, number, 100):
        for index in range(first, first + 100):
            engine.submit(request(f"r{index}", prompt(2, 5), new=3, temperature=1.5))
        made.update((tokens[1],) for tokens in run_to_end(engine).tokens.values())
    return made


def law_of_second_tokens(target: PreTrainedModel) -> dict[tuple[int, ...], float]:
    """By the model alone: over all first tokens."""
    target.set_attn_implementation("eager")
    with torch.no_grad():
        ids = torch.tensor(prompt(2, 5))
        first = (target(ids[None]).logits[0, -1].double() / 1.5).softmax(-1)
        both = torch.cat(
            [ids.expand(VOCABULARY_SIZE, -1), torch.arange(VOCABULARY_SIZE)[:, None]], 1
        )
        second = (target(both).logits[:, -1].double() / 1.5).softmax(-1)
    target.set_attn_implementation(ATTENTION_NAME)
    return {(token,): float(p) for token, p in enumerate(first @ second)}


NUMBER, REJECT = 2000, 1e-6


def test_hot_answers_follow_the_targets_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rejects a right engine with probability 1e-6; seeds are fixed."""
    target = tiny_llama(14, layers=3)
    draft = tiny_draft(target, tmp_path, has_tail=True)
    engine, _ = head_engine(target, draft, monkeypatch)
    made = second_tokens(engine, NUMBER)
    assert chi_square(made, law_of_second_tokens(target)) > REJECT


def test_a_tail_left_out_of_the_rows_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: tokens drafted from a tail, verified by rows that have none."""
    target = tiny_llama(14, layers=3)
    draft = tiny_draft(target, tmp_path, has_tail=True)
    engine, _ = head_engine(target, draft, monkeypatch)
    propose = engine._drafter.propose

    def without(entries):  # type: ignore[no-untyped-def]
        made = propose(entries)
        if made.rows is None:
            return made
        rows = torch.zeros_like(made.rows).index_copy(1, OUTPUT_IDS, made.rows[:, OUTPUT_IDS])
        return replace(made, rows=rows / rows.sum(-1, keepdim=True))

    monkeypatch.setattr(engine._drafter, "propose", without)
    made = second_tokens(engine, NUMBER)
    assert chi_square(made, law_of_second_tokens(target)) < REJECT


@pytest.mark.parametrize(
    ("temperature", "has_tail", "top_k"),
    [(0.0, True, 0), (1.0, True, 0), (1.5, False, 0), (1.5, True, 0), (1.5, True, 60)],
)
def test_known_tokens_are_scored_by_the_rows_before_them(
    temperature: float,
    has_tail: bool,
    top_k: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = tiny_llama(13, layers=3)
    draft = tiny_draft(target, tmp_path, has_tail=has_tail)
    engine, _ = head_engine(target, draft, monkeypatch)
    ids = prompt(6, 13)
    sampling = SamplingParams(temperature=temperature, top_k=top_k)
    asked = replace(request("r", ids, 3), sampling=sampling, speculation=Speculation.OFF)
    engine.submit(asked)
    engine.step()
    sequence = engine._scheduler.running[0]
    drafter = engine._drafter
    entry = PlanEntry(sequence, 1, True, 0, num_catch_up=drafter.lag(sequence), num_scored=5)
    (scores,) = drafter.propose([entry]).scores
    known = tuple(sequence.token_ids)
    assert len(scores) == 5
    for offset, score in enumerate(scores):
        end = len(known) - 5 + offset
        logits = logits_by_hand(target, draft, known[:end])
        found = (draft.output_ids == known[end]).nonzero()[:, 0]
        expected = 0.0
        if draft.tail_logits is not None and temperature > 1.1:
            tail = Tail(draft.tail_logits, OUTPUT_IDS)
            wide = tail.widen(logits[None], [sampling])[0]
            if top_k:
                wide[wide < wide.topk(top_k).values[-1]] = float("-inf")
            expected = float((wide / temperature).softmax(-1)[known[end]])
        elif len(found) and temperature:
            expected = float((logits / temperature).softmax(-1)[found[0]])
        elif len(found):
            expected = float(logits.argmax() == found[0])
        assert score == pytest.approx(expected, rel=1e-4, abs=1e-7)
    assert any(token in OUTPUT_IDS for token in known[-5:])
    assert any(token not in OUTPUT_IDS for token in known[-5:])
