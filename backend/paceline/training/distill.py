"""Making a draft for a target: data, features, training and export, in a work folder.

The time budget is split between collecting data and training on it. Everything that is made lies in
the work folder as soon as it is made (token shards, feature shards, a checkpoint every few
minutes), so a run that stops, for whatever reason, goes on where it was when it is started again
with the same folder.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch

from paceline.core.errors import ConfigError
from paceline.model.draft_folder import DraftTarget, save_draft
from paceline.model.draft_head import DraftModule, DraftModuleConfig
from paceline.model.features import FINAL_NORM
from paceline.sampling.tail import mean_tail
from paceline.training.batches import BatchSource
from paceline.training.card import model_card
from paceline.training.evaluation import Evaluation, evaluate
from paceline.training.initialise import copy_from_target, fit_inputs
from paceline.training.output_ids import always_kept, choose_output_ids
from paceline.training.sharpen import sharpen
from paceline.training.target_states import TargetEncoder
from paceline.training.token_store import TokenStore
from paceline.training.trainer import Trainer, TrainingOptions
from paceline.training.work_folder import WorkFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from torch import Tensor
    from transformers import PreTrainedModel

    from paceline.model.tokenizer import TextCodec
    from paceline.training.token_store import TokenSequence
    from paceline.training.trainer import Progress

DATA_SHARE = 0.4
"""Of the budget, for generating; encoding goes on to `ENCODE_SHARE` where data is plentiful."""
ENCODE_SHARE = 0.6
CHECKPOINT_EVERY_S = 180.0
EVALUATE_EVERY_S = 300.0
FIT_SEQUENCES = 96
TAIL_POSITIONS = 8192


class DraftKind(StrEnum):
    """``HEAD``: one layer on the target's hidden states. ``DECODER``: an independent small decoder
    that borrows the target's embedding."""

    HEAD = "head"
    DECODER = "decoder"


@dataclass(frozen=True, slots=True)
class DistillOptions:
    """``budget_s``: seconds of work, over all runs on this folder. ``max_answer_tokens``: enough
    data, however much time is left for it."""

    kind: DraftKind
    budget_s: float
    num_output_ids: int = 8192
    num_layers: int = 1
    max_answer_tokens: int = 1_000_000
    seed: int = 0
    training: TrainingOptions = TrainingOptions()


@dataclass(frozen=True, slots=True)
class Report:
    """Where the work stands. ``phase``: "data", "features" or "training"; ``share`` of the whole
    budget; the rest as far as it is known."""

    phase: str
    share: float
    answer_tokens: int = 0
    progress: Progress | None = None
    evaluation: Evaluation | None = None


class Distillation:
    """One work folder and the target it serves.

    ``model``: the target, with an attention of transformers ("sdpa"). ``on_report`` is called often
    and may raise (``KeyboardInterrupt``) to stop the work.
    """

    def __init__(
        self,
        folder: Path,
        model: PreTrainedModel,
        codec: TextCodec,
        options: DistillOptions,
        on_report: Callable[[Report], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._model: Any = model
        self._codec = codec
        self._options = options
        self._on_report = on_report
        self._clock = clock
        self._target = DraftTarget.of(model, codec.name)
        self._work = WorkFolder(folder, self._target, options.kind.value)
        self._store = TokenStore(self._work.tokens)
        layers = self._target.num_layers
        # The middle, the input of the last layer, and the final norm.
        head = (layers // 2 - 1, layers - 2, FINAL_NORM) if layers > 2 else (0, FINAL_NORM)
        self._feature_layers = head if options.kind is DraftKind.HEAD else ()
        self._encoder: TargetEncoder | None = None
        self._evaluation: Evaluation | None = None
        self.num_steps = 0

    @property
    def num_sequences(self) -> int:
        """Sequences collected so far, by all runs."""
        return self._store.num_sequences

    @property
    def needs_data(self) -> bool:
        """Whether time and the limit leave room for more answers."""
        return (
            self._work.spent["data"] < self._options.budget_s * DATA_SHARE
            and self._store.num_answer_tokens < self._options.max_answer_tokens
        )

    def add_answers(self, path: Path, sequences: Iterable[TokenSequence]) -> None:
        """Take all of a file's sequences, once: a later run with the same file skips it."""
        name = str(path.resolve())
        if name in self._work.files:
            return
        for sequence in sequences:
            self._store.add(sequence)
        self._store.flush()
        self._work.files.append(name)
        self._work.save()

    def collect(self, sequences: Iterable[TokenSequence]) -> None:
        """Take sequences until the data's share of the budget is used."""
        started, before = self._clock(), self._work.spent["data"]
        try:
            for sequence in sequences:
                self._store.add(sequence)
                self._work.spent["data"] = before + self._clock() - started
                self._report("data")
                if not self.needs_data:
                    break
        finally:
            self._store.flush()
            self._work.save()

    def encode(self) -> None:
        """The target's states of every token shard that has none yet, as far as time allows; of at
        least one."""
        if self._encoder is None:
            self._encoder = TargetEncoder(self._model, self._feature_layers)
        self._model.set_attn_implementation("sdpa")
        started, before = self._clock(), self._work.spent["data"]

        def checkpoint() -> None:
            self._work.spent["data"] = before + self._clock() - started
            self._report("features")

        try:
            for number, tokens in enumerate(self._store.paths()):
                if number and self._work.spent["data"] > self._options.budget_s * ENCODE_SHARE:
                    break
                if not self._work.states_of(tokens).exists():
                    self._encoder.encode_shard(tokens, self._work.states_of(tokens), checkpoint)
        finally:
            self._work.save()

    def train(self, destination: Path) -> Evaluation:
        """Train for what is left of the budget and write the draft folder. `num_steps` says then
        how many there have been, by all runs."""
        torch.manual_seed(self._options.seed)
        output_ids = self._output_ids()
        source = self._source(output_ids)
        if not source.training:
            raise ConfigError(
                "there is no training data yet: give more time (minutes) or other prompts",
                field="minutes",
            )
        module = self._module(output_ids)
        if not self._work.checkpoint.exists():
            self._initialise(module, output_ids, source)
        trainer = Trainer(module, source, self._options.training, self._work.checkpoint)
        judged = (source.held_out or source.training)[:64]
        last = {"save": self._clock(), "evaluate": self._clock()}

        def on_step(progress: Progress) -> None:
            self._work.spent["training"] = progress.elapsed_s
            now = self._clock()
            if now - last["evaluate"] >= EVALUATE_EVERY_S:
                with trainer.averaged():
                    self._evaluation = evaluate(module, source, judged)
                last["evaluate"] = self._clock()
            if now - last["save"] >= CHECKPOINT_EVERY_S:
                trainer.save()
                self._work.save()
                last["save"] = self._clock()
            self._report("training", progress)

        try:
            budget_s = max(0.0, self._options.budget_s - self._work.spent["data"])
            trainer.run(budget_s, on_step, self._clock)
        finally:
            trainer.save()
            self._work.save()
        self.num_steps = trainer.progress.step
        with trainer.averaged():
            sharpen(module, source, judged)
            evaluation = evaluate(module, source, source.held_out or source.training)
            tail_logits = mean_tail(self._target_logits(source), output_ids)
            self._export(destination, module, output_ids, tail_logits, trainer.progress, evaluation)
        return evaluation

    def _export(
        self,
        destination: Path,
        module: DraftModule,
        output_ids: Tensor,
        tail_logits: Tensor,
        progress: Progress,
        evaluation: Evaluation,
    ) -> None:
        figures = {
            "answer_tokens": self._store.num_answer_tokens,
            "steps": progress.step,
            "rows": progress.tokens,
            "seed": self._options.seed,
            "held_out": asdict(evaluation),
        }
        card = model_card(self._target, module, evaluation, figures)
        save_draft(destination, module, output_ids, tail_logits, self._target, card, figures)

    def _target_logits(self, source: BatchSource) -> Iterator[Tensor]:
        """The target's logits [N, V] at some thousands of positions, a block a sequence."""
        weight = self._model.get_output_embeddings().weight.detach()
        left = TAIL_POSITIONS
        for reference in source.training:
            if left <= 0:
                break
            states = source.final_states(reference)
            yield states @ weight.T
            left -= len(states)

    def _module(self, output_ids: Tensor) -> DraftModule:
        config: Any = self._model.config.get_text_config()
        heads = config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        return DraftModule(
            DraftModuleConfig(
                hidden_size=config.hidden_size,
                intermediate_size=config.intermediate_size,
                num_attention_heads=heads,
                num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
                head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
                num_output_ids=len(output_ids),
                feature_layers=self._feature_layers,
                num_layers=self._options.num_layers,
                rope_theta=float(rope.get("rope_theta", 10000.0)),
                rms_norm_eps=float(getattr(config, "rms_norm_eps", 1e-5)),
            ),
            self._model.get_input_embeddings().weight.detach(),
        ).to(device=self._model.device, dtype=torch.float32)

    def _initialise(self, module: DraftModule, output_ids: Tensor, source: BatchSource) -> None:
        count = module.config.num_layers
        total = self._target.num_layers
        # A head continues where the target's last layers are; a decoder begins where it begins.
        last = tuple(range(total - count, total))
        layers = last if module.has_features else (*range(count - 1), total - 1)
        copy_from_target(module, self._model, output_ids, layers)
        if module.has_features:
            chosen = source.training[:FIT_SEQUENCES]
            norm: Tensor = self._model.base_model.norm.weight.detach()
            fit_inputs(module, [source.sequence(reference) for reference in chosen], norm)

    def _source(self, output_ids: Tensor) -> BatchSource:
        weight = self._model.get_output_embeddings().weight.detach()
        source = BatchSource(
            self._feature_layers,
            output_ids,
            weight[output_ids].contiguous(),
            self._target.vocabulary_rows,
            random.Random(self._options.seed),
        )
        for tokens in self._store.paths():
            if self._work.states_of(tokens).exists():
                source.add(tokens, self._work.states_of(tokens))
        return source

    def _output_ids(self) -> Tensor:
        """Chosen once, when training begins, and kept: they are the shape of the output layer."""
        path = self._work.output_ids
        if not path.exists():
            counts: Counter[int] = Counter()
            for shard in map(self._store.read, self._store.paths()):
                for index, ids in enumerate(shard.sequences()):
                    if not shard.is_held_out(index):
                        counts.update(ids[shard.prompt_lengths[index] :].tolist())
            kept = always_kept(self._codec)
            limit = min(self._options.num_output_ids, self._target.vocabulary_rows)
            chosen = choose_output_ids(counts, kept, max(limit, len(kept)))
            path.write_text(json.dumps(chosen), encoding="utf-8")
        chosen_ids = json.loads(path.read_text(encoding="utf-8"))
        return torch.tensor(chosen_ids, device=self._model.device)

    def _report(self, phase: str, progress: Progress | None = None) -> None:
        spent = self._work.spent["data"] + self._work.spent["training"]
        share = min(1.0, spent / self._options.budget_s)
        self._on_report(
            Report(phase, share, self._store.num_answer_tokens, progress, self._evaluation)
        )
