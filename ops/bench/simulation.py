"""A world without models for the real scheduler and controller: scripted costs and acceptances.

Time is simulated: a step takes what a cost table says, times noise. Which drafted tokens are
accepted is drawn from acceptances that a scenario scripts. Everything follows from one seed.

Beside the run, a per-step oracle that knows the true costs and acceptances and obeys the same
session gates says what the best choice of each step would have been.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.cache.prefix import PrefixCache
from paceline.core.controller import Controller, ControllerSettings
from paceline.core.controller_depth import (
    DraftOffer,
    choose_depths,
    plain_tokens,
    without_prefill,
)
from paceline.core.controller_ledger import TOLERANCE, plain_equivalent
from paceline.core.controller_session import COPY_DEPTH, MODEL_DEPTH
from paceline.core.cost import CostModel, CostTable, Curve, StageSeconds, StepShape
from paceline.core.events import Gate, StepTimes
from paceline.core.limits import EngineLimits
from paceline.core.request import DrafterKind, Request, SamplingParams
from paceline.engine.adaptive_policy import AdaptivePolicy
from paceline.engine.plan import Outcome
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Many

    from paceline.engine.plan import PlanEntry
    from paceline.engine.policy import SpeculationPolicy

BLOCK = 16
GREEDY = SamplingParams(temperature=0.0)


def _milliseconds(points: dict[int, float]) -> Curve:
    return Curve(tuple(points), tuple(value / 1e3 for value in points.values()))


# A small model on two CPU cores: weights read at memory speed up to about 8 rows, then a knee.
CPU_TABLE = CostTable(
    target=_milliseconds(
        {1: 24, 4: 24.5, 8: 26, 16: 30, 24: 36, 32: 43, 48: 58, 64: 74, 96: 105, 128: 138, 256: 270}
    ),
    context_seconds=2e-7,
    sample_greedy=_milliseconds({1: 0.2, 64: 4.0, 256: 16.0}),
    sample_drawn=_milliseconds({1: 0.6, 64: 12.0, 256: 48.0}),
    verify_greedy=_milliseconds({1: 0.1, 64: 4.0, 256: 16.0}),
    verify_drawn=_milliseconds({1: 0.6, 64: 16.0, 256: 64.0}),
    draft_greedy=_milliseconds({1: 2.0, 16: 2.6, 64: 5.0, 256: 16.0}),
    draft_drawn=_milliseconds({1: 2.2, 16: 3.4, 64: 8.0, 256: 28.0}),
)
# A large model on a GPU: flat to 64 rows, compute-bound from some 200 on; an expensive draft.
GPU_TABLE = CostTable(
    target=_milliseconds({1: 20, 64: 21, 128: 24, 192: 30, 256: 38, 512: 74, 1024: 146}),
    context_seconds=2e-9,
    sample_greedy=_milliseconds({1: 0.1, 256: 0.6}),
    sample_drawn=_milliseconds({1: 0.2, 256: 1.2}),
    verify_greedy=_milliseconds({1: 0.1, 256: 0.6}),
    verify_drawn=_milliseconds({1: 0.2, 256: 1.8}),
    draft_greedy=_milliseconds({1: 2.4, 64: 2.6, 256: 4.0, 512: 8.0}),
    draft_drawn=_milliseconds({1: 2.5, 64: 2.8, 256: 4.4, 512: 8.6}),
)


@dataclass(frozen=True)
class Workload:
    """What a session's text is like.

    acceptance: of a drafted token at depth 0, by number of tokens emitted so far. decay: factor of
    acceptance per depth. copy_entry: chance per token that a copied passage begins; copy_hit: that
    it goes on. stray: chance of a match that means nothing, which is right with probability 0.2.
    """

    acceptance: Callable[[int], float]
    decay: float = 0.97
    copy_entry: float = 0.01
    copy_hit: float = 0.93
    stray: float = 0.15


def steady(acceptance: float, **options: float) -> Workload:
    return Workload(lambda emitted: acceptance, **options)


STRAY_HIT = 0.2
HORIZON = 32


class SimulatedText:
    """The scripted truth about one session: what a look-up finds, what the draft model meets."""

    def __init__(self, workload: Workload, rng: random.Random) -> None:
        self.workload = workload
        self.num_emitted = 0
        self._rng = rng
        self._match = 0
        self._is_copying = False
        self._is_copying_prob = 0.0
        self._scored: list[tuple[int, bool]] = []
        self._advance()

    @property
    def match_length(self) -> int:
        return self._match

    def model_rate(self, depth: int) -> float:
        """Probability that the draft model's token at this depth is accepted."""
        return self.workload.acceptance(self.num_emitted) * self.workload.decay**depth

    def copy_survivals(self) -> list[float]:
        """True survivals of a look-up's continuation: those of a passage that is being copied and
        of a stray match, weighed by what the matches so far say about which of them it is."""
        if not self._match:
            return []
        copying, hit = self._is_copying_prob, self.workload.copy_hit
        return [
            copying * hit**depth + (1.0 - copying) * STRAY_HIT**depth
            for depth in range(1, COPY_DEPTH + 1)
        ]

    def accepted_copies(self, num_drafted: int) -> int:
        """Draw how many tokens of the look-up's continuation are accepted."""
        count = 0
        rate = self.workload.copy_hit if self._is_copying else STRAY_HIT
        while count < num_drafted and self._rng.random() < rate:
            count += 1
        return count

    def accepted_drafts(self, num_drafted: int) -> int:
        count = 0
        while count < num_drafted and self._rng.random() < self.model_rate(count):
            count += 1
        return count

    def emit(self, num_tokens: int, known: Many[bool]) -> None:
        """Tokens were emitted; of the first ones it is known whether the look-up foretold them."""
        for index in range(num_tokens):
            if self._match:
                if index < len(known):
                    is_hit = known[index]
                else:
                    rate = self.workload.copy_hit if self._is_copying else STRAY_HIT
                    is_hit = self._rng.random() < rate
                self._scored.append((self._match, is_hit))
                if is_hit:
                    self._match = min(16, self._match + 1)
                    copied = self._is_copying_prob * self.workload.copy_hit
                    stray = (1.0 - self._is_copying_prob) * STRAY_HIT
                    self._is_copying_prob = copied / (copied + stray)
                    self.num_emitted += 1
                    continue
            self.num_emitted += 1
            self._advance()

    def take_scored(self) -> list[tuple[int, bool]]:
        scored, self._scored = self._scored, []
        return scored

    def _advance(self) -> None:
        """What the look-up finds behind a token that it did not foretell."""
        draw = self._rng.random()
        self._is_copying = draw < self.workload.copy_entry
        self._is_copying_prob = 0.0
        entry, stray = self.workload.copy_entry, self.workload.stray
        if self._is_copying:
            self._match = 3
        else:
            self._match = self._rng.choice((2, 2, 3)) if draw < entry + stray else 0
        if self._match == 3:
            self._is_copying_prob = entry / (entry + stray / 3)


class SimulatedDrafter:
    """Both drafters at once, for scheduler and policy. `kind` says which of them exist."""

    def __init__(self, kind: DrafterKind) -> None:
        self._has_copies = kind in (DrafterKind.AUTO, DrafterKind.NGRAM)
        self._has_model = kind in (DrafterKind.AUTO, DrafterKind.MODEL)
        self.texts: dict[str, SimulatedText] = {}

    @property
    def required_features(self) -> tuple[int, ...]:
        return ()

    @property
    def keeps_accepted_rows(self) -> bool:
        return True

    def max_tokens(self, sequence: Sequence) -> int:
        return COPY_DEPTH

    def lag(self, sequence: Sequence) -> int:
        return sequence.num_draft_lag if self._has_model else 0

    def offer(self, sequence: Sequence) -> tuple[int, int]:
        match = self.texts[sequence.request_id].match_length if self._has_copies else 0
        return (COPY_DEPTH if match else 0), match

    def take_scored(self, sequence: Sequence) -> list[tuple[int, bool]]:
        return self.texts[sequence.request_id].take_scored()

    def admit(self, sequence: Sequence) -> None:
        """Nothing to prepare."""

    def propose(self, entries: object) -> object:
        raise NotImplementedError("the simulation drafts by itself")

    def observe(self, outcomes: object, features: object) -> None:
        """The simulation moves the cursors."""

    def release(self, sequence: Sequence) -> None:
        """Nothing to give back."""


class _NoText:
    def append(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


@dataclass(frozen=True)
class Arrival:
    """A session that begins: its workload, prompt and answer in tokens."""

    workload: Workload
    num_prompt: int
    num_output: int
    key: str


@dataclass
class Phase:
    """A stretch of time under one label: tokens emitted in it, and its seconds."""

    label: str
    num_tokens: int = 0
    seconds: float = 0.0


@dataclass
class Report:
    """Sums over a run. Times in simulated seconds. excess: the worst over all intervals of time
    spent minus 1.03 times plain decoding's. phases: one for each change of label."""

    num_steps: int = 0
    num_sessions: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    oracle_seconds: float = 0.0
    judged_seconds: float = 0.0
    ungated_seconds: float = 0.0
    catch_up_seconds: float = 0.0
    stepped_seconds: float = 0.0
    excess: float = 0.0
    capacity: float = 0.0
    worst_step: float = 0.0
    plain_seconds: float = 0.0
    gate_flips: int = 0
    load_flips: int = 0
    phases: list[Phase] = field(default_factory=list)

    @property
    def regret(self) -> float:
        """Part of the time that the oracle would have saved."""
        return 1 - self.oracle_seconds / self.judged_seconds if self.judged_seconds else 0.0

    @property
    def gate_cost(self) -> float:
        """Part of the oracle's time that it loses to the session gates."""
        return 1 - self.ungated_seconds / self.oracle_seconds if self.oracle_seconds else 0.0

    @property
    def catch_up_share(self) -> float:
        """Part of the time that draft models spent on tokens that they had missed."""
        return self.catch_up_seconds / self.stepped_seconds if self.stepped_seconds else 0.0

    @property
    def speedup(self) -> float:
        return self.plain_seconds / self.seconds if self.seconds else 1.0


class Simulation:
    """Runs client sessions through the real scheduler and policy, in simulated time.

    truth, belief: what steps cost, and what the controller believes that they cost. load: how many
    sessions are open at a simulated time. next_arrival: the next one, None when there are no more.
    noise: spread of a step's time, common to all stages. is_leaving: sessions above `load` end at
    once, as when clients disconnect; otherwise they finish first. phase: names a simulated time, to
    group results by. judge_every: the oracle is asked once in so many steps; 0 never asks.
    """

    def __init__(
        self,
        *,
        truth: CostTable,
        belief: CostTable | None = None,
        load: Callable[[float], int],
        next_arrival: Callable[[], Arrival | None],
        seed: int,
        kind: DrafterKind = DrafterKind.AUTO,
        policy: SpeculationPolicy | None = None,
        max_sequences: int = 48,
        noise: float = 0.02,
        judge_every: int = 1,
        is_leaving: bool = False,
        phase: Callable[[float], str] = lambda now: "",
    ) -> None:
        self._rng = random.Random(seed)
        self._noise_rng = random.Random(seed + 1)
        self.truth = CostModel(truth)
        self.drafter = SimulatedDrafter(kind)
        self.controller = Controller(
            CostModel(belief or truth), ControllerSettings(max_sequences=max_sequences)
        )
        has_copies = kind in (DrafterKind.AUTO, DrafterKind.NGRAM)
        has_model = kind in (DrafterKind.AUTO, DrafterKind.MODEL)
        self.adaptive = AdaptivePolicy(
            self.controller,
            ngram=self.drafter if has_copies else None,
            model=self.drafter if has_model else None,
        )
        self.policy = policy or self.adaptive
        limits = EngineLimits(8192, 1 << 16, BLOCK, max_sequences, 1 << 20, 1 << 20)
        cache = PrefixCache(limits.num_blocks, BLOCK, enabled=False)
        self.scheduler = Scheduler(
            cache,
            limits,
            self.drafter,  # type: ignore[arg-type]
            self.policy,
            max(256, 4 * max_sequences),
        )
        self._load, self._next_arrival, self._phase = load, next_arrival, phase
        self._noise, self._judge_every = noise, judge_every
        self._has_model = has_model
        self._is_leaving = is_leaving
        self._running_excess = 0.0
        self._is_over = False
        self.now = 0.0
        self.report = Report(capacity=self.controller.ledger.capacity)

    def run(self, max_seconds: float = math.inf) -> Report:
        """Until there are no more sessions, or the simulated time is over."""
        while self.now < max_seconds:
            self._admit()
            if not self.scheduler.has_work:
                if self._is_over:
                    break
                self.now += 0.01
                continue
            self._step()
        self.report.gate_flips = self.controller.acceptances.num_gate_flips
        self.report.load_flips = self.controller.load_gate.num_flips
        return self.report

    def _admit(self) -> None:
        wanted = self._load(self.now)
        have = len(self.scheduler.running) + len(self.scheduler.waiting)
        while self._is_leaving and have > wanted:
            waiting = self.scheduler.waiting
            self._end(waiting[-1] if waiting else self.scheduler.running[-1])
            have -= 1
        while have < wanted and not self._is_over:
            arrival = self._next_arrival()
            if arrival is None:
                self._is_over = True
                return
            number = self.report.num_sessions
            self.report.num_sessions += 1
            request = Request(
                f"r{number}",
                (1,) * arrival.num_prompt,
                arrival.num_output,
                GREEDY,
                speculation_key=arrival.key,
            )
            text = SimulatedText(arrival.workload, random.Random(self._rng.random()))
            self.drafter.texts[request.request_id] = text
            self.scheduler.add(Sequence(request, _NoText(), 0, self.now))
            have += 1

    def _step(self) -> None:
        plan = self.scheduler.schedule()
        entries = plan.entries
        decoding = [entry for entry in entries if entry.sequence.is_decoding]
        base, shape = self._shapes(entries)
        report = self.report
        report.num_steps += 1
        judged = self._judge_every and report.num_steps % self._judge_every == 0 and decoding
        if judged:
            self._judge(base, shape, decoding)
        stall = math.exp(self._noise * self._noise_rng.gauss(0.0, 1.0))
        stages = self.truth.stages(shape)
        measured = StageSeconds(*(stage * stall for stage in stages))
        outcomes, num_emitted = self._outcomes(entries)
        self._charge(base, shape, decoding, num_emitted, measured, stall)
        times = StepTimes(
            measured.draft * 1e3, measured.target * 1e3, measured.sample * 1e3, measured.other * 1e3
        )
        self.now += measured.total
        self.policy.observe(outcomes, times)
        for outcome in outcomes:
            sequence = outcome.sequence
            self.scheduler.register_full_blocks(sequence)
            if sequence.num_output >= sequence.request.max_new_tokens:
                self._end(sequence)

    def _end(self, sequence: Sequence) -> None:
        self.scheduler.finish(sequence)
        self.policy.release(sequence)
        del self.drafter.texts[sequence.request_id]

    def _outcomes(self, entries: Many[PlanEntry]) -> tuple[list[Outcome], int]:
        outcomes = []
        num_emitted = 0
        for entry in entries:
            sequence = entry.sequence
            text = self.drafter.texts[sequence.request_id]
            num_before = sequence.num_tokens
            is_copy = self._drafts_copies(entry)
            is_decoding = sequence.is_decoding
            drafted = entry.num_drafted if self._can_draft(entry) else 0
            if entry.num_catch_up:
                sequence.num_draft_computed += entry.num_catch_up
            if is_copy:
                num_accepted = text.accepted_copies(drafted)
            else:
                num_accepted = text.accepted_drafts(drafted)
            if drafted and not is_copy:
                sequence.num_draft_computed += min(num_accepted, drafted - 1)
            draft_probs = self._scores(entry, text)
            num_committed = 0
            if entry.completes:
                num_committed = num_accepted + 1
                sequence.token_ids.extend([1] * num_committed)
                known = [True] * num_accepted + [False] * (num_accepted < drafted)
                text.emit(num_committed, known if is_copy else ())
                if is_decoding:
                    num_emitted += num_committed
            sequence.num_computed += entry.num_target_tokens
            if entry.completes:
                sequence.num_computed = sequence.num_tokens - 1
            if drafted:
                sequence.drafter_name = "ngram" if is_copy else "model"
            outcomes.append(
                Outcome(
                    sequence,
                    num_before,
                    drafted,
                    num_accepted,
                    num_committed,
                    0,
                    entry.num_target_tokens + drafted,
                    num_examined=min(num_accepted + 1, drafted),
                    num_passed=num_accepted,
                    survival=tuple(float(at < num_accepted) for at in range(drafted)),
                    target_prob=1.0,
                    draft_probs=draft_probs,
                )
            )
        return outcomes, num_emitted

    def _scores(self, entry: PlanEntry, text: SimulatedText) -> tuple[float, ...]:
        """A probe: greedy, so that the draft model either had each token or not."""
        if not entry.num_scored or entry.sequence.num_draft_lag > 0:
            return ()
        rate = text.model_rate(0)
        count = min(entry.num_scored, entry.sequence.num_output)
        return tuple(float(self._rng.random() < rate) for _ in range(count))

    def _drafts_copies(self, entry: PlanEntry) -> bool:
        if entry.drafter is DrafterKind.AUTO:
            return self.drafter.offer(entry.sequence)[0] > 0
        return entry.drafter is DrafterKind.NGRAM

    def _can_draft(self, entry: PlanEntry) -> bool:
        if self._drafts_copies(entry):
            return True
        return self._has_model and entry.num_catch_up == entry.sequence.num_draft_lag

    def _shapes(self, entries: Many[PlanEntry]) -> tuple[StepShape, StepShape]:
        rows = sum(entry.num_target_tokens for entry in entries)
        logits = sum(entry.completes for entry in entries)
        context = sum(entry.sequence.num_tokens for entry in entries)
        drafted = 0
        passes = [0] * (COPY_DEPTH + 1)
        for entry in entries:
            is_copy = self._drafts_copies(entry)
            count = entry.num_drafted if self._can_draft(entry) else 0
            drafted += count
            if self._has_model and not is_copy:
                passes[0] += entry.num_catch_up
                for depth in range(1, count):
                    passes[depth] += 1
        base = StepShape(len(entries), rows, logits, context)
        used = tuple(count for count in passes if count)
        return base, base._replace(
            num_rows=rows + drafted,
            num_logits=logits + drafted,
            draft_rows=used,
            num_drafted=drafted,
        )

    def _charge(
        self,
        base: StepShape,
        shape: StepShape,
        decoding: Many[PlanEntry],
        num_emitted: int,
        measured: StageSeconds,
        stall: float,
    ) -> None:
        report = self.report
        report.seconds += measured.total
        report.num_tokens += num_emitted
        count = len(decoding)
        whole = self.truth.step_seconds(base)
        alone = self.truth.step_seconds(without_prefill(base, count)) if count else whole
        mean_emitted = num_emitted / count if count else 1.0
        equivalent = plain_equivalent(mean_emitted, alone, whole - alone) * stall
        report.plain_seconds += equivalent
        if shape != base:
            worst = self.truth.step_seconds(shape) * stall - TOLERANCE * whole * stall
            report.worst_step = max(report.worst_step, worst)
        change = measured.total - TOLERANCE * equivalent
        self._running_excess = max(0.0, self._running_excess + change)
        report.excess = max(report.excess, self._running_excess)
        label = self._phase(self.now)
        if not report.phases or report.phases[-1].label != label:
            report.phases.append(Phase(label))
        report.phases[-1].num_tokens += num_emitted
        report.phases[-1].seconds += measured.total

    # The oracle

    def _judge(self, base: StepShape, shape: StepShape, decoding: Many[PlanEntry]) -> None:
        """Compare the plan's true expected rate with the best one, under and without the gates."""
        count = len(decoding)
        worth = self._worth(base, count)
        expected = worth
        for entry in decoding:
            if not self._can_draft(entry):
                continue
            text = self.drafter.texts[entry.sequence.request_id]
            survival = 1.0
            copies = text.copy_survivals()
            for depth in range(entry.num_drafted):
                if self._drafts_copies(entry):
                    expected += copies[depth]
                else:
                    survival *= text.model_rate(depth)
                    expected += survival
        passes = list(shape.draft_rows)
        lags = 0.0
        if passes:
            # Catching up is an investment: a part of it for each step, here as in the choice.
            drafting = sum(
                self._can_draft(entry) and entry.num_drafted > 0 and not self._drafts_copies(entry)
                for entry in decoding
            )
            curve = self.truth.draft_curve(is_drawn=False)
            lags = curve.at(passes[0]) - curve.at(drafting)
        seconds = self.truth.step_seconds(shape) - lags * (1 - 1 / HORIZON)
        self.report.catch_up_seconds += lags
        self.report.stepped_seconds += self.truth.step_seconds(shape)
        own = expected / seconds
        gated = max(own, self._best_rate(base, decoding, is_gated=True))
        ungated = max(gated, self._best_rate(base, decoding, is_gated=False))
        self.report.judged_seconds += seconds
        self.report.oracle_seconds += expected / gated
        self.report.ungated_seconds += expected / ungated

    def _best_rate(self, base: StepShape, decoding: Many[PlanEntry], *, is_gated: bool) -> float:
        """The highest expected tokens per second: from several starting points, the choice of each
        session is improved in turn until nothing gains."""
        options = [self._options(entry, is_gated=is_gated) for entry in decoding]
        count = len(decoding)
        worth = self._worth(base, count)
        best = worth / self.truth.step_seconds(base)
        for first in (0, 1):
            offers = [pair[first] or pair[1 - first] for pair in options]
            real = [
                DraftOffer(survivals, uses_model=uses_model)
                for survivals, uses_model in (offer or ((), False) for offer in offers)
            ]
            found = choose_depths(self.truth, base, worth, real)
            best = max(best, found.rate)
            if count <= 8:
                best = max(best, self._improve(base, worth, options, real, found.counts))
        return best

    def _improve(
        self,
        base: StepShape,
        worth: float,
        options: Many[tuple[tuple[list[float], bool] | None, tuple[list[float], bool] | None]],
        offers: list[DraftOffer],
        counts: list[int],
    ) -> float:
        choice = [(offer, count) for offer, count in zip(offers, counts, strict=True)]
        best = self._rate(base, worth, choice)
        is_better = True
        while is_better:
            is_better = False
            for index, pair in enumerate(options):
                for option in pair:
                    if option is None:
                        continue
                    offer = DraftOffer(option[0], uses_model=option[1])
                    for depth in range(len(option[0]) + 1):
                        trial = [*choice]
                        trial[index] = (offer, depth)
                        rate = self._rate(base, worth, trial)
                        if rate > best * (1 + 1e-9):
                            best, choice, is_better = rate, trial, True
        return best

    def _worth(self, base: StepShape, num_decoding: int) -> float:
        decoding = without_prefill(base, num_decoding)
        return plain_tokens(self.truth, base, decoding, num_decoding)

    def _rate(self, base: StepShape, worth: float, choice: Many[tuple[DraftOffer, int]]) -> float:
        tokens = worth
        drafted = 0
        passes = [0] * MODEL_DEPTH
        for offer, depth in choice:
            drafted += depth
            tokens += sum(offer.survivals[:depth])
            if offer.uses_model:
                for level in range(depth):
                    passes[level] += 1
        shape = base._replace(
            num_rows=base.num_rows + drafted,
            num_logits=base.num_logits + drafted,
            num_drafted=drafted,
            draft_rows=tuple(count for count in passes if count),
        )
        return tokens / self.truth.step_seconds(shape)

    def _options(
        self, entry: PlanEntry, *, is_gated: bool
    ) -> tuple[tuple[list[float], bool] | None, tuple[list[float], bool] | None]:
        """True survivals of what the session's gates let draft: by look-up, by the model."""
        sequence = entry.sequence
        text = self.drafter.texts[sequence.request_id]
        left = sequence.request.max_new_tokens - sequence.num_output - 1
        session = self.adaptive.session(sequence)
        copies = None
        if self.drafter.offer(sequence)[0] and left > 0:
            is_offered = self.controller.acceptances.offers_copies(text.match_length)
            if not is_gated or (session.copy_gate.gate is Gate.ON and is_offered):
                copies = (text.copy_survivals()[:left], False)
        model = None
        if self._has_model and left > 0 and (not is_gated or session.model_gate.gate is Gate.ON):
            survivals = []
            survival = 1.0
            for depth in range(min(left, MODEL_DEPTH)):
                survival *= text.model_rate(depth)
                survivals.append(survival)
            model = (survivals, True)
        return copies, model
