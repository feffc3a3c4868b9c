"""Measures what steps cost on this machine, before the first request: some seconds, then cached.

The real verifier and the real drafter run on made-up sequences over the empty K/V pool, so that
the table holds what a step will do, not what a formula says. Each time is the least of some runs,
since other work on the machine only ever adds to it; what is left of noise, and what changes later,
is corrected while serving (`core.cost.CostModel`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import platform
import tempfile
import time
from dataclasses import replace
from statistics import fmean, median
from typing import TYPE_CHECKING

import torch

import paceline
from paceline.core.cost import CostTable, Curve
from paceline.core.request import DrafterKind, Request, SamplingParams
from paceline.engine.drafters.interface import Proposal
from paceline.engine.plan import PlanEntry
from paceline.engine.sequence import Sequence
from paceline.model.native import load_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from collections.abc import Sequence as Many
    from pathlib import Path

    from paceline.core.limits import EngineLimits
    from paceline.engine.drafters.interface import Drafter
    from paceline.engine.verifier import Verifier

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
DRAFT_ROWS = (1, 2, 4, 8, 16, 48, 128, 256, 512)
SWEEPS = 5
FEW_ROWS = 64
REPEATS = 3
"""A sweep passes over points of up to `FEW_ROWS` rows so often: most steps are that small, and
whether one more row is nearly free is decided there. Once only where a pass over a curve takes
longer than a sweep should."""
PATIENCE_S = 8.0
"""No other sweep begins after so long."""
STEADY = 1.3
"""A table is kept if its sweeps differ by less."""
SHORT_CONTEXT = 8
LONG_CONTEXT = 256

_GREEDY = SamplingParams(temperature=0.0)
_DRAWN = SamplingParams(temperature=1.0)
_DRAFTED = 3
_log = logging.getLogger(__name__)


class _NoText:
    def append(self, token_id: int) -> str:
        return ""

    def flush(self) -> str:
        return ""


class Calibration:
    """Measures over an engine's own stages while nothing else uses them.

    model: the drafter that runs a draft model, None without one. token_budget: rows of the largest
    step. scrub: zeroes blocks of every model. The pool must be empty: block ids from 0 on are
    written to and scrubbed at the end.
    """

    def __init__(
        self,
        verifier: Verifier,
        model: Drafter | None,
        limits: EngineLimits,
        token_budget: int,
        scrub: Callable[[Many[int]], None],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._verifier = verifier
        self._model = model
        self._limits = limits
        self._most_rows = min(
            token_budget, limits.max_sequence_tokens - 2, limits.max_pool_tokens - 2
        )
        self._scrub = scrub
        self._clock = clock
        self._started_at = clock()

    def measure(self) -> CostTable:
        """The table. Takes some seconds on a CPU, less on a GPU.

        All points are swept a few times: what disturbs one sweep's point is over by the next.
        """
        self._started_at = self._clock()
        self._warm_up()
        sweeps = [self._sweep()]
        while len(sweeps) < SWEEPS and self._elapsed() < PATIENCE_S:
            sweeps.append(self._sweep())
        self._scrub(list(range(min(self._limits.num_blocks, self._blocks_used()))))
        table = least_of(sweeps)
        _log.info("step costs measured in %.1f s: %s", self._elapsed(), table.target)
        return table

    def _warm_up(self) -> None:
        """First calls compile, allocate and page in."""
        for rows in (1, min(16, self._most_rows)):
            self._target_seconds(self._one(rows, SHORT_CONTEXT))
            if self._model is not None:
                self._draft_seconds(rows, _DRAWN)
        self._sample_seconds(1, 0, _DRAWN)

    def _elapsed(self) -> float:
        return self._clock() - self._started_at

    def _sweep(self) -> CostTable:
        target = self._curve(
            ROWS, lambda rows: self._target_seconds(self._one(rows, SHORT_CONTEXT))
        )
        sample_greedy, verify_greedy = self._sample_curves(_GREEDY)
        sample_drawn, verify_drawn = self._sample_curves(_DRAWN)
        table = CostTable(
            target=target,
            context_seconds=self._context_seconds(),
            sequence_seconds=self._sequence_seconds(),
            sample_greedy=sample_greedy,
            sample_drawn=sample_drawn,
            verify_greedy=verify_greedy,
            verify_drawn=verify_drawn,
        )
        if self._model is not None:
            table = replace(
                table,
                draft_greedy=self._draft_curve(_GREEDY),
                draft_drawn=self._draft_curve(_DRAWN),
            )
        return table

    def _curve(self, counts: Many[int], seconds: Callable[[int], float]) -> Curve:
        """The least time for each count that a step can have, small ones tried over and over."""
        counts = [count for count in counts if count <= self._most_rows]
        least = dict.fromkeys(counts, math.inf)
        started = self._clock()
        for repeat in range(REPEATS):
            if repeat and self._clock() - started > PATIENCE_S / SWEEPS:
                break
            for count in counts:
                if repeat == 0 or count <= FEW_ROWS:
                    least[count] = min(least[count], seconds(count))
        return Curve(counts, list(least.values()))

    # Target

    def _target_seconds(self, entries: list[PlanEntry]) -> float:
        drafts = [(1,) * entry.num_drafted for entry in entries]

        def run() -> None:
            scores = self._verifier.score(entries, drafts)
            scores.logits[-1:, :1].cpu()

        return self._seconds(run)

    def _context_seconds(self) -> float:
        """More time for each token of context, with a few sequences."""
        count = self._most_sequences(4, LONG_CONTEXT)
        if count == 0:
            return 0.0
        near = self._target_seconds(self._many(count, SHORT_CONTEXT))
        far = self._target_seconds(self._many(count, LONG_CONTEXT))
        return max(0.0, far - near) / (count * (LONG_CONTEXT - SHORT_CONTEXT))

    def _sequence_seconds(self) -> float:
        """More time for rows of another sequence than for rows of the same one."""
        count = self._most_sequences(16, SHORT_CONTEXT)
        if count < 2:
            return 0.0
        together = self._target_seconds(self._one(count, SHORT_CONTEXT))
        apart = self._target_seconds(self._many(count, SHORT_CONTEXT))
        return max(0.0, apart - together) / (count - 1)

    # Sampling and acceptance

    def _sample_curves(self, params: SamplingParams) -> tuple[Curve, Curve]:
        """Sampling by sequences, and by drafted tokens what verifying them takes more, which is
        not what as many further sequences would."""
        most = self._most_sequences(self._limits.max_sequences, SHORT_CONTEXT)
        counts = sorted({count for count in (1, 4, 16, most) if 1 <= count <= most})
        plain: dict[int, float] = {}
        more: dict[int, list[float]] = {}
        for count in counts:
            plain[count] = self._sample_seconds(count, 0, params)
            for drafted in (1, _DRAFTED):
                seconds = self._sample_seconds(count, drafted, params) - plain[count]
                more.setdefault(count * drafted, []).append(max(0.0, seconds))
        verify = {drafted: fmean(more[drafted]) for drafted in sorted(more)}
        return (
            Curve(tuple(plain), tuple(plain.values())),
            Curve(tuple(verify), tuple(verify.values())),
        )

    def _sample_seconds(self, count: int, drafted: int, params: SamplingParams) -> float:
        entries = self._many(count, SHORT_CONTEXT, params, drafted=drafted)
        proposal = self._propose(entries)
        drafts = proposal.draft_ids
        scores = self._verifier.score(entries, drafts)
        seconds = self._seconds(lambda: self._verifier.accept(entries, proposal, scores).read())
        self._release(entries)
        return seconds

    def _propose(self, entries: list[PlanEntry]) -> Proposal:
        """What the draft model proposes, or made-up deterministic drafts."""
        if self._model is not None and entries[0].num_drafted:
            for entry in entries:
                self._model.admit(entry.sequence)
            return self._model.propose(entries)
        drafts = tuple((1,) * entry.num_drafted for entry in entries)
        rows = tuple((-1,) * len(draft) for draft in drafts)
        return Proposal(drafts, rows, ("ngram",) * len(entries))

    # Draft model

    def _draft_curve(self, params: SamplingParams) -> Curve:
        return self._curve(DRAFT_ROWS, lambda rows: self._draft_seconds(rows, params))

    def _draft_seconds(self, rows: int, params: SamplingParams) -> float:
        """One pass with one row for each of as many sequences as there may be, the rest of the
        rows being known tokens that the first one lags behind by."""
        model = self._model
        if model is None:
            return 0.0
        count = min(rows, self._most_sequences(self._limits.max_sequences, SHORT_CONTEXT))
        lag = rows - count + 1
        context = max(SHORT_CONTEXT, lag)
        entries = [self._entry(0, context, params, 0, drafted=1)]
        entries += [
            self._entry(index, SHORT_CONTEXT, params, self._offset(context, index), drafted=1)
            for index in range(1, count)
        ]
        entries[0] = replace(entries[0], num_catch_up=lag)
        for entry in entries:
            model.admit(entry.sequence)

        def run() -> None:
            for entry in entries:
                known = entry.sequence.num_tokens - entry.num_catch_up
                entry.sequence.num_draft_computed = known
            model.propose(entries)

        seconds = self._seconds(run)
        self._release(entries)
        return seconds

    def _release(self, entries: Many[PlanEntry]) -> None:
        if self._model is not None:
            for entry in entries:
                self._model.release(entry.sequence)

    # Made-up sequences

    def _one(self, rows: int, context: int) -> list[PlanEntry]:
        """One sequence that computes so many rows."""
        entry = self._entry(0, context + rows - 1, _GREEDY, 0)
        entry.sequence.num_computed = entry.sequence.num_tokens - rows
        return [replace(entry, num_target_tokens=rows)]

    def _many(
        self, count: int, context: int, params: SamplingParams = _GREEDY, *, drafted: int = 0
    ) -> list[PlanEntry]:
        """So many sequences that decode, with drafted tokens behind."""
        per_sequence = self._blocks(context + drafted + 1)
        return [
            self._entry(index, context, params, index * per_sequence, drafted=drafted)
            for index in range(count)
        ]

    def _entry(
        self,
        index: int,
        context: int,
        params: SamplingParams,
        first_block: int,
        *,
        drafted: int = 0,
    ) -> PlanEntry:
        top = self._limits.vocabulary_size
        prompt = tuple((index * 7919 + position * 104729) % top for position in range(context))
        request = Request(f"calibration-{index}", prompt, 64, params, drafter=DrafterKind.AUTO)
        sequence = Sequence(request, _NoText(), index, 0.0)
        count = self._blocks(context + drafted + 1)
        sequence.block_table = list(range(first_block, first_block + count))
        sequence.num_computed = sequence.num_tokens - 1
        sequence.num_draft_computed = sequence.num_tokens - 1
        return PlanEntry(sequence, 1, True, drafted, 1 if drafted else 0, DrafterKind.MODEL)

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._limits.block_size)

    def _offset(self, context: int, index: int) -> int:
        return self._blocks(context + 2) + (index - 1) * self._blocks(SHORT_CONTEXT + 2)

    def _most_sequences(self, wanted: int, context: int) -> int:
        """How many sequences of that context the pool and the positions have room for."""
        if context + _DRAFTED + 2 > self._limits.max_sequence_tokens:
            return 0
        per_sequence = self._blocks(context + _DRAFTED + 1)
        return min(wanted, self._limits.max_sequences, self._limits.num_blocks // per_sequence)

    def _blocks_used(self) -> int:
        rows = self._blocks(self._most_rows + SHORT_CONTEXT)
        sequences = self._limits.max_sequences * self._blocks(SHORT_CONTEXT + _DRAFTED + 2)
        return max(rows + sequences, 4 * self._blocks(LONG_CONTEXT + 1))

    def _seconds(self, run: Callable[[], object]) -> float:
        started = self._clock()
        run()
        return self._clock() - started


def least_of(tables: Many[CostTable]) -> CostTable:
    """Point by point the least of several measured tables, and by how much they differ: the median
    ratio of a target pass's second least time to its least; of one table nobody knows."""

    def least(curves: Many[Curve]) -> Curve:
        points = zip(*(curve.seconds for curve in curves), strict=True)
        return Curve(curves[0].counts, [min(point) for point in points])

    def least_of_two(first: Curve | None, rest: Many[Curve | None]) -> Curve | None:
        known = [curve for curve in rest if curve is not None]
        return None if first is None else least([first, *known])

    points = [sorted(point) for point in zip(*(t.target.seconds for t in tables), strict=True)]
    spread = math.inf
    if len(tables) > 1:
        spread = median(point[1] / point[0] for point in points)
    return CostTable(
        target=least([table.target for table in tables]),
        context_seconds=min(table.context_seconds for table in tables),
        sequence_seconds=min(table.sequence_seconds for table in tables),
        sample_greedy=least([table.sample_greedy for table in tables]),
        sample_drawn=least([table.sample_drawn for table in tables]),
        verify_greedy=least([table.verify_greedy for table in tables]),
        verify_drawn=least([table.verify_drawn for table in tables]),
        draft_greedy=least_of_two(tables[0].draft_greedy, [t.draft_greedy for t in tables[1:]]),
        draft_drawn=least_of_two(tables[0].draft_drawn, [t.draft_drawn for t in tables[1:]]),
        spread=spread,
    )


def cached_costs(
    folder: Path, key: Mapping[str, object], measure: Callable[[], CostTable]
) -> CostTable:
    """The table measured earlier under the same key, else a new one, which is kept.

    folder: made if it is not there. key: everything that the costs depend on (models, dtype,
    device, threads, versions). A file that cannot be read is measured anew, one that cannot be
    written is done without, and a table that was measured on a busy machine is not kept.
    """
    text = json.dumps(key, sort_keys=True, default=str)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["key"] == json.loads(text):
            return CostTable.from_json(stored["costs"])
    except FileNotFoundError:
        pass
    except (OSError, ValueError, KeyError, TypeError) as error:
        _log.warning("the cost table %s is measured anew: %s", path, error)
    table = measure()
    if table.spread > STEADY:
        _log.warning("the machine was busy while step costs were measured; they are not kept")
        return table
    document = json.dumps({"key": json.loads(text), "costs": table.to_json()}, indent=1)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(document)
        os.replace(name, path)
    except OSError as error:
        _log.warning("the cost table could not be kept: %s", error)
    return table


def cost_key(
    *,
    target: Path,
    draft: Path | None,
    dtype: str,
    device: str,
    max_sequences: int,
    fast_path: bool,
) -> dict[str, object]:
    """Everything that the costs of a step depend on. target, draft: folders or files of weights.
    fast_path: whether transformers' modules may be replaced by faster ones."""
    device_name = platform.processor() or platform.machine()
    if device == "cuda":
        device_name = torch.cuda.get_device_name()
    kernels = load_kernels() if device == "cpu" else None
    return {
        "target": _identity(target),
        "draft": None if draft is None else _identity(draft),
        "dtype": dtype,
        "device": device_name,
        "kernels": None if kernels is None else kernels.name,
        "threads": torch.get_num_threads(),
        "max_sequences": max_sequences,
        "fast_path": fast_path,
        "torch": torch.__version__,
        "paceline": paceline.__version__,
    }


def _identity(path: Path) -> dict[str, object]:
    """Names, sizes and times of the weights: enough to notice that they are others."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    return {
        "path": str(path.resolve()),
        "files": [[f.name, f.stat().st_size, int(f.stat().st_mtime)] for f in files if f.exists()],
    }
