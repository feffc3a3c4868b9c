"""How prompts share steps, by plans alone: no model runs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.cache.prefix import PrefixCache
from paceline.core.limits import EngineLimits
from paceline.core.request import Request
from paceline.engine.drafters.null import NullDrafter
from paceline.engine.policy import FixedPolicy
from paceline.engine.scheduler import Scheduler
from paceline.engine.sequence import Sequence
from tests.tiny_models import IdText

BUDGET = 32
TOKEN = 1


class Steps:
    """A scheduler whose plans count as computed; who gets its first token leaves."""

    def __init__(self, max_sequences: int = 16) -> None:
        limits = EngineLimits(4096, 4096, 4, max_sequences, 64, 10)
        cache = PrefixCache(4096, 4, enabled=False)
        self.scheduler = Scheduler(cache, limits, NullDrafter(), FixedPolicy(0), BUDGET)
        self.num_steps = 0
        self.first_token_at: dict[str, int] = {}
        self.num_left: dict[str, int] = {}

    def add(self, name: str, num_tokens: int) -> None:
        request = Request(name, (TOKEN,) * num_tokens, 1)
        self.scheduler.add(Sequence(request, IdText(), seed=0, arrived_at=0.0))
        self.num_left[name] = num_tokens

    def step(self) -> dict[str, int]:
        """How many tokens of each prompt are computed."""
        plan = self.scheduler.schedule()
        self.num_steps += 1
        done = {}
        for entry in plan.entries:
            name = entry.sequence.request_id
            done[name] = entry.num_target_tokens
            self.num_left[name] -= entry.num_target_tokens
            entry.sequence.num_computed += entry.num_target_tokens
            assert entry.completes == (self.num_left[name] == 0)
            if entry.completes:
                self.scheduler.finish(entry.sequence)
                del self.num_left[name]
                self.first_token_at[name] = self.num_steps
        return done

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()


def test_one_prompt_gets_all_there_is() -> None:
    steps = Steps()
    steps.add("long", 100)
    assert [steps.step() for _ in range(4)] == [{"long": 32}] * 3 + [{"long": 4}]


def test_a_short_prompt_does_not_wait_for_a_long_one() -> None:
    steps = Steps()
    steps.add("long", 3200)
    steps.step()
    steps.add("short", 4)
    assert steps.step() == {"long": 28, "short": 4}


def test_nor_for_several_long_ones_that_came_before_it() -> None:
    steps = Steps()
    for number in range(4):
        steps.add(f"long {number}", 3200)
    steps.add("short", 4)
    while "short" not in steps.first_token_at:
        assert steps.step()["long 0"] >= 24
    assert steps.num_steps <= 8


def test_equal_prompts_are_served_in_order_of_arrival() -> None:
    steps = Steps()
    for number in range(6):
        steps.add(f"{number}", 48)
    steps.run()
    assert list(steps.first_token_at) == [str(number) for number in range(6)]
    assert list(steps.first_token_at.values()) == sorted(steps.first_token_at.values())
    assert steps.first_token_at["0"] == 2
    assert steps.num_steps == 9


@given(
    prompts=st.lists(st.tuples(st.integers(1, 200), st.integers(0, 5)), min_size=1, max_size=20),
    max_sequences=st.integers(1, 6),
)
def test_no_budget_is_wasted_and_the_oldest_keeps_most_of_it(
    prompts: list[tuple[int, int]], max_sequences: int
) -> None:
    """prompts: tokens, and steps until the next one comes."""
    steps = Steps(max_sequences)
    for number, (num_tokens, pause) in enumerate(prompts):
        steps.add(f"{number}", num_tokens)
        for _ in range(pause):
            if steps.scheduler.has_work:
                _check_step(steps)
    while steps.scheduler.has_work:
        _check_step(steps)
    assert len(steps.first_token_at) == len(prompts)


def _check_step(steps: Steps) -> None:
    left = dict(steps.num_left)
    running = [sequence.request_id for sequence in steps.scheduler.running]
    oldest = (running or list(left))[0]
    done = steps.step()
    total = sum(done.values())
    assert total <= BUDGET
    assert done[oldest] >= min(left[oldest], BUDGET * 3 // 4)
    taken = {name: left[name] for name in done}
    # Budget is left only where everything that could be admitted is done.
    assert total == BUDGET or total == sum(taken.values())
