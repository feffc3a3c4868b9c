"""How many tokens to draft for whom in one step: the most committed tokens per second.

Prefill rows of the step are work that is done either way. They count as worth the time that they
take, in tokens of plain decoding; else a draft would look cheap beside them.

Every drafted token is a unit of work with a gain, its survival, and a price, its row in the target
pass and its share of a draft pass. Units are sorted by gain over price and every prefix of that
order is priced with the cost model; the best one wins, and the empty one is plain decoding. All
prefixes are looked at because the cost of rows has steps: behind a unit that does not pay may stand
one that is free. Compute-bound is where the empty prefix wins.

Within a session survivals never rise with depth and prices are alike, so that each prefix holds a
session's first units.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from paceline.core.cost import CostModel, StepShape

_NEGLIGIBLE = 0.02
_POLISHED = 4
_DEEPEST = 32


class DraftOffer(NamedTuple):
    """What one session could draft in this step.

    survivals: of its drafted tokens, falling. uses_model: by passes of the draft model, else by
    look-up, which costs nothing. lag: known tokens that the draft model has to compute first;
    horizon: steps over which that is worth it.
    """

    survivals: Sequence[float]
    uses_model: bool = False
    lag: int = 0
    horizon: int = 1


class Depths(NamedTuple):
    """counts: for each offer. tokens: what the step is worth, expected commits and prefill.
    seconds: predicted, with catching up spread over its horizon."""

    counts: list[int]
    tokens: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.tokens / self.seconds


def without_prefill(base: StepShape, num_decoding: int) -> StepShape:
    """The decoding part of a step in which nothing was forced; forced drafts stay in."""
    rows = num_decoding + base.num_drafted
    return base._replace(
        num_sequences=num_decoding, num_rows=min(base.num_rows, rows), num_logits=rows
    )


def plain_tokens(cost: CostModel, base: StepShape, decoding: StepShape, num_decoding: int) -> float:
    """What a step without drafts is worth, in tokens of plain decoding.

    base: the step. decoding: the step without its prefill rows. num_decoding: sequences that
    decode in it.
    """
    return num_decoding * cost.step_seconds(base) / cost.step_seconds(decoding)


def choose_depths(
    cost: CostModel, base: StepShape, tokens: float, offers: Sequence[DraftOffer]
) -> Depths:
    """The best counts for the offers.

    base: the step without any of them. tokens: what that is worth, from `plain_tokens`.
    """
    base_seconds = cost.step_seconds(base)
    num_units = sum(len(offer.survivals) for offer in offers)
    if not num_units:
        return Depths([0] * len(offers), tokens, base_seconds)
    prices = _prices(cost, base, base_seconds, num_units, len(offers))
    fixed, target, verifying, passes, at_first, draft_row = prices
    units = _sorted_units(offers, target, passes, base_seconds)

    at_depth = list(at_first)
    draft_seconds = 0.0
    best_rate, best_size, best_tokens, best_seconds = tokens / base_seconds, 0, tokens, base_seconds
    for size, (_, depth, index, survival, uses_model) in enumerate(units, start=1):
        tokens += survival
        if uses_model:
            rows = at_depth[depth]
            at_depth[depth] = rows + 1
            draft_seconds += passes[rows + 1] - passes[rows]
            if depth == 0 and offers[index].lag > 1:
                draft_seconds += (offers[index].lag - 1) * draft_row / offers[index].horizon
        seconds = fixed + target[size] + verifying[size] + draft_seconds
        rate = tokens / seconds
        if rate > best_rate:
            best_rate, best_size, best_tokens, best_seconds = rate, size, tokens, seconds
    counts = [0] * len(offers)
    for unit in units[:best_size]:
        counts[unit[2]] += 1
    found = Depths(counts, best_tokens, best_seconds)
    if best_size and len(offers) <= _POLISHED:
        return _polished(prices, offers, found)
    return found


class _Prices(NamedTuple):
    """Seconds of a step in which something is drafted: those of all that does not depend on it, of
    the target pass and of verifying by drafted tokens, of a draft pass by its rows. at_first: rows
    that each draft pass has before. draft_row: of catching up, a token."""

    fixed: float
    target: Sequence[float]
    verifying: Sequence[float]
    passes: Sequence[float]
    at_first: Sequence[int]
    draft_row: float

    def of(self, offers: Sequence[DraftOffer], counts: Sequence[int]) -> float:
        """The step with so many tokens drafted for each offer."""
        size = sum(counts)
        seconds = self.fixed + self.target[size] + self.verifying[size]
        asked = []
        for offer, count in zip(offers, counts, strict=True):
            if count and offer.uses_model:
                asked.append(count)
                if offer.lag > 1:
                    seconds += (offer.lag - 1) * self.draft_row / offer.horizon
        passes, first, deepest = self.passes, self.at_first, max(asked, default=0)
        for depth in range(deepest):
            more = sum([count > depth for count in asked])
            seconds += passes[first[depth] + more] - passes[first[depth]]
        return seconds


def _prices(
    cost: CostModel, base: StepShape, base_seconds: float, num_units: int, num_offers: int
) -> _Prices:
    first = base.num_drafted
    verify = cost.verify_curve(base.is_drawn).dense(first + num_units)
    verifying = [second * cost.sample_factor for second in verify[first : first + num_units + 1]]
    most = num_offers + max(base.draft_rows, default=0)
    passes = cost.draft_curve(base.is_drawn).dense(most)
    target = cost.target_range(base, num_units)
    return _Prices(
        base_seconds - target[0] - verifying[0],
        target,
        verifying,
        [second * cost.draft_factor for second in passes[: most + 1]],
        [*base.draft_rows, *[0] * _DEEPEST],
        cost.draft_row_seconds(base.is_drawn),
    )


def _polished(prices: _Prices, offers: Sequence[DraftOffer], found: Depths) -> Depths:
    """Better neighbours, while there are any: for one session a token more, one less or none, for
    all that use the model a lower depth. The order of units prices a draft pass as if all shared
    it, which is off most where there are few to share."""
    is_better = True
    while is_better:
        is_better = False
        for counts in _neighbours(offers, found.counts):
            tokens = found.tokens
            for offer, now, count in zip(offers, found.counts, counts, strict=True):
                tokens += sum(offer.survivals[now:count]) - sum(offer.survivals[count:now])
            seconds = prices.of(offers, counts)
            if tokens / seconds > found.rate * (1.0 + 1e-9):
                found = Depths(counts, tokens, seconds)
                is_better = True
                break
    return found


def _neighbours(offers: Sequence[DraftOffer], counts: list[int]) -> Iterator[list[int]]:
    for index, offer in enumerate(offers):
        now = counts[index]
        for count in {0, now - 1, now + 1} - {-1, now, len(offer.survivals) + 1}:
            yield [*counts[:index], count, *counts[index + 1 :]]
    deepest = max(
        (count for offer, count in zip(offers, counts, strict=True) if offer.uses_model), default=0
    )
    for cap in range(1, deepest):
        yield [
            min(cap, count) if offer.uses_model else count
            for offer, count in zip(offers, counts, strict=True)
        ]


def steady_seconds(
    cost: CostModel, base: StepShape, depth: int, *, uses_model: bool
) -> list[float]:
    """Seconds of a decoding step if every sequence of it drafted 0, 1, .. depth tokens."""
    num_decoding = base.num_sequences
    base_seconds = cost.step_seconds(base)
    verify = cost.verify_curve(base.is_drawn)
    first_target = cost.target_seconds(base.num_rows, base.context, num_decoding)
    first_verify = verify.at(base.num_drafted)
    one_pass = 0.0
    if uses_model:
        one_pass = cost.draft_curve(base.is_drawn).at(num_decoding) * cost.draft_factor
    seconds = [base_seconds]
    for gamma in range(1, depth + 1):
        extra = gamma * num_decoding
        rows = base.num_rows + extra
        target = cost.target_seconds(rows, base.context, num_decoding) - first_target
        verifying = (verify.at(base.num_drafted + extra) - first_verify) * cost.sample_factor
        seconds.append(base_seconds + target + verifying + gamma * one_pass)
    return seconds


def steady_gain(survivals: Sequence[float], seconds: Sequence[float]) -> float:
    """Committed tokens per second over plain decoding's if every session drafted like this, at the
    best depth; at least 1. seconds: from `steady_seconds`."""
    plain, gain, tokens = seconds[0], 1.0, 1.0
    for survival, needed in zip(survivals, seconds[1:], strict=False):
        tokens += survival
        gain = max(gain, tokens * plain / needed)
    return gain


def drafting_shape(
    base: StepShape, offers: Sequence[DraftOffer], counts: Sequence[int]
) -> StepShape:
    """The shape of the step with so many tokens drafted for each offer."""
    passes = list(base.draft_rows)
    for offer, count in zip(offers, counts, strict=True):
        if not (offer.uses_model and count):
            continue
        passes += [0] * (count - len(passes))
        passes[0] += max(1, offer.lag) - 1
        for depth in range(count):
            passes[depth] += 1
    total = sum(counts)
    return base._replace(
        num_rows=base.num_rows + total,
        num_logits=base.num_logits + total,
        num_drafted=base.num_drafted + total,
        draft_rows=tuple(passes),
    )


def _sorted_units(
    offers: Sequence[DraftOffer],
    target: Sequence[float],
    passes: Sequence[float],
    base_seconds: float,
) -> list[tuple[float, int, int, float, bool]]:
    """(rank, depth, offer, survival, uses_model), best first."""
    row_price = (target[-1] - target[0]) / (len(target) - 1) + 1e-3 * base_seconds / len(target)
    num_model = sum(offer.uses_model for offer in offers)
    pass_price = passes[num_model] / num_model if num_model else 0.0
    units = []
    for index, offer in enumerate(offers):
        uses_model = offer.uses_model
        scale = -1.0 / (row_price + (pass_price if uses_model else 0.0))
        for depth, survival in enumerate(offer.survivals):
            if survival < _NEGLIGIBLE:
                break
            units.append((survival * scale, depth, index, survival, uses_model))
    units.sort()
    return units
