"""The scenario set of the simulator: what sessions come, when, and what their text is like."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ops.bench.simulation import (
    CPU_TABLE,
    GPU_TABLE,
    Arrival,
    Report,
    Simulation,
    Workload,
    steady,
)
from paceline.core.cost import CostTable, Curve
from paceline.core.events import Gate
from paceline.core.request import DrafterKind
from paceline.engine.policy import FixedPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from paceline.engine.policy import SpeculationPolicy

CHAT = steady(0.62)
CODE = steady(0.8, copy_entry=0.05)
EDIT = steady(0.75, copy_entry=0.2, copy_hit=0.97)
PROSE = steady(0.28, copy_entry=0.0)


@dataclass(frozen=True)
class Scenario:
    """load: sessions wanted at a simulated time. workload: of session number n, by dice.
    num_prompt, num_output: tokens of a
    prompt and an answer, shortest and longest. kind: which drafters there are. belief:
    the factor by which the controller's table is wrong at first. has_lanes: whether sessions go on
    under the same key when an answer ends."""

    name: str
    load: Callable[[float], int]
    workload: Callable[[int, random.Random], Workload]
    truth: CostTable = CPU_TABLE
    num_prompt: tuple[int, int] = (8, 120)
    num_output: tuple[int, int] = (40, 240)
    kind: DrafterKind = DrafterKind.AUTO
    belief: float = 1.0
    max_sequences: int = 48
    is_leaving: bool = False
    phase: Callable[[float], str] = lambda now: ""


def _ramp(now: float) -> int:
    """1 to 48 and back within 40 seconds, again and again."""
    return 1 + round(47 * (0.5 - 0.5 * math.cos(2 * math.pi * now / 40.0)))


def _burst(now: float) -> int:
    return 40 if now % 7.0 < 1.5 else 3


SWING_SECONDS = 4.0


def _swing(now: float) -> int:
    return 48 if int(now / SWING_SECONDS) % 2 else 1


def _swing_phase(now: float) -> str:
    return "48 sessions" if int(now / SWING_SECONDS) % 2 else "1 session"


def _shift(number: int, rng: random.Random) -> Workload:
    """Code, then prose, then code again within one answer."""
    return Workload(lambda emitted: 0.15 if 60 <= emitted < 160 else 0.85, copy_entry=0.02)


def _bimodal(number: int, rng: random.Random) -> Workload:
    return steady(0.85) if number % 2 else steady(0.12, copy_entry=0.0)


def _recover(number: int, rng: random.Random) -> Workload:
    return Workload(lambda emitted: 0.1 if emitted < 120 else 0.85, copy_entry=0.0)


def _decay(number: int, rng: random.Random) -> Workload:
    return steady(0.82, decay=0.78)


def _mixed(number: int, rng: random.Random) -> Workload:
    return rng.choice((CHAT, CODE, EDIT, PROSE))


SCENARIOS = (
    Scenario("steady chat, 1 session", lambda now: 1, lambda number, rng: CHAT),
    Scenario("steady mix, 16 sessions", lambda now: 16, _mixed),
    Scenario("steady mix, 48 sessions", lambda now: 48, _mixed),
    Scenario("steady mix on a GPU", lambda now: 96, _mixed, truth=GPU_TABLE, max_sequences=128),
    Scenario("wrong table at first", lambda now: 8, _mixed, belief=1.5),
    Scenario("ramp 1 to 48 to 1", _ramp, _mixed),
    Scenario("bursts", _burst, _mixed),
    Scenario("shift of workload", lambda now: 4, _shift, num_output=(200, 260)),
    Scenario("bimodal sessions", lambda now: 12, _bimodal, num_output=(150, 300)),
    Scenario("draft decays with depth", lambda now: 4, _decay),
    Scenario("draft recovers", lambda now: 4, _recover, num_output=(300, 500)),
    Scenario("n-gram alone, edits", lambda now: 4, lambda n, rng: EDIT, kind=DrafterKind.NGRAM),
    Scenario("adversarial", lambda now: 6, lambda n, rng: PROSE, num_output=(200, 400)),
)


def simulate(
    scenario: Scenario,
    num_sessions: int,
    seed: int,
    *,
    policy: SpeculationPolicy | None = None,
    noise: float = 0.02,
    judge_every: int = 1,
    max_seconds: float = math.inf,
) -> Report:
    """One run. Deterministic by its arguments."""
    rng = random.Random(f"{scenario.name} {seed}")
    made = 0

    def next_arrival() -> Arrival | None:
        nonlocal made
        if made >= num_sessions:
            return None
        number, made = made, made + 1
        workload = scenario.workload(number, rng)
        key = f"s{number}"
        if scenario.name == "adversarial":
            workload = _against(simulation, key)
        return Arrival(
            workload, rng.randint(*scenario.num_prompt), rng.randint(*scenario.num_output), key
        )

    simulation = Simulation(
        truth=scenario.truth,
        belief=_scaled(scenario.truth, scenario.belief),
        load=scenario.load,
        next_arrival=next_arrival,
        seed=rng.getrandbits(32),
        kind=scenario.kind,
        policy=policy,
        max_sequences=scenario.max_sequences,
        noise=noise,
        judge_every=judge_every,
        is_leaving=scenario.is_leaving,
        phase=scenario.phase,
    )
    return simulation.run(max_seconds)


def _against(simulation: Simulation, key: str) -> Workload:
    """Looks good exactly while nobody drafts: high while the gate is not on, nothing when it is."""
    controller = simulation.controller
    return Workload(
        lambda emitted: 0.02 if controller.session(key).model_gate.gate is Gate.ON else 0.95,
        copy_entry=0.0,
    )


def _scaled(table: CostTable, factor: float) -> CostTable:
    def scale(curve: Curve) -> Curve:
        return Curve(curve.counts, [seconds * factor for seconds in curve.seconds])

    return replace(table, target=scale(table.target))


def swing(policy: SpeculationPolicy | None, seed: int, seconds: float = 120.0) -> Report:
    """Load swings 1 -> 48 -> 1 every few simulated seconds, by phase."""
    scenario = Scenario(
        "swings",
        _swing,
        lambda n, rng: CHAT,
        num_prompt=(4, 16),
        num_output=(60, 120),
        is_leaving=True,
        phase=_swing_phase,
    )
    return simulate(scenario, 1 << 30, seed, policy=policy, judge_every=0, max_seconds=seconds)


def always_on(depth: int) -> SpeculationPolicy:
    """Drafts a fixed number whatever happens."""
    return FixedPolicy(depth)
