"""Counter-based noise: the published test vectors, independence of purposes, exact races."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy import stats

from paceline.sampling import native
from paceline.sampling.draws import inverse_cdf, race
from paceline.sampling.randomness import Purpose, _philox, exponentials, uniforms
from paceline.sampling.rows import Rows
from tests.reference import chi_square

if TYPE_CHECKING:
    from tests.reference import Law


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        (0, (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            0xFFFFFFFFFFFFFFFF,
            (0xFFFFFFFF,) * 4,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            0x299F31D0A4093822,
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(key: int, counter: tuple[int, ...], words: tuple[int, ...]) -> None:
    """Vectors of the Random123 library for philox4x32-10."""
    made = _philox(np.uint64(key), *(np.uint64(word) for word in counter))
    assert tuple(int(word) for word in made) == words


def test_no_two_keys_of_a_sequence_share_noise() -> None:
    positions, rounds = np.arange(40)[:, None, None], np.arange(40)[None, :, None]
    made = uniforms(7, positions, rounds, np.array(list(Purpose)))
    assert len(np.unique(made)) == made.size
    assert ((made >= 0) & (made < 1)).all()


@pytest.mark.parametrize("shape", [(1,), (3, 1), (3, 4)])
def test_without_a_compiler_the_noise_is_the_same(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(5)
    seeds = generator.integers(0, 2**64, shape, dtype=np.uint64)
    positions, rounds = generator.integers(0, 2**32, shape), generator.integers(0, 2**61, shape)
    purposes = np.array([Purpose.ACCEPT, Purpose.DRAFT, Purpose.BONUS, Purpose.TARGET])
    ours = uniforms(seeds, positions, rounds, purposes)
    monkeypatch.setattr(native, "_library", lambda: None)
    assert np.array_equal(ours, uniforms(seeds, positions, rounds, purposes))


def test_noise_does_not_depend_on_what_is_drawn_beside_it() -> None:
    seeds = np.arange(50, dtype=np.uint64)
    together = uniforms(seeds, seeds + np.uint64(3), 2, Purpose.ACCEPT)
    assert together[17] == uniforms(17, 20, 2, Purpose.ACCEPT)
    times = exponentials(seeds, seeds, Purpose.TARGET, 9)
    assert np.array_equal(times[17], exponentials(17, 17, Purpose.TARGET, 9)[0])
    assert np.array_equal(times[:, :5], exponentials(seeds, seeds, Purpose.TARGET, 5))


def test_times_are_exponential() -> None:
    times = exponentials(np.arange(5000, dtype=np.uint64), 0, Purpose.TARGET, 8)
    assert stats.kstest(times.ravel(), "expon").pvalue > 1e-6
    assert np.abs(np.asarray(np.corrcoef(times.T))[0, 1:]).max() < 0.1


def weights(width: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(width)
    row = torch.exp(torch.randn(width, generator=generator) * 2)
    row[torch.rand(width, generator=generator) < 0.3] = 0
    row[-1] = 1.0
    return row


@pytest.mark.parametrize("width", [1, 5, 700])
def test_races_follow_the_weights(width: int) -> None:
    """One lap (small vocabulary) and two, on whole rows and on their survivors."""
    number = 40_000
    row = weights(width)
    law: Law = {(token,): float(row[token] / row.double().sum()) for token in range(width)}
    kept = row.nonzero()[:, 0].flip(0)
    seeds = np.arange(number, dtype=np.uint64)
    whole = Rows.of(row.expand(number, -1))
    some = Rows(row[kept].expand(number, -1), whole.totals, kept.expand(number, -1))
    drawn = race(whole, seeds, 11, width)
    assert torch.equal(drawn, race(some, seeds, 11, width))
    ids, counts = np.unique(drawn.numpy(), return_counts=True)
    observed: dict[tuple[int, ...], int] = {
        (int(token),): int(count) for token, count in zip(ids, counts, strict=True)
    }
    assert chi_square(observed, law) > 1e-6
    other: Law = {key: (probability + 1 / width) / 2 for key, probability in law.items()}
    assert width == 1 or chi_square(observed, other) < 1e-6


def test_close_rows_draw_the_same_token_mostly() -> None:
    """What makes a draft of a seeded request match: shared noise, not luck."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2000, 1000, generator=generator) * 3
    other = logits + torch.randn(2000, 1000, generator=generator) * 0.3
    target, draft = torch.softmax(logits, -1), torch.softmax(other, -1)
    seeds = np.arange(2000, dtype=np.uint64)
    shared = race(Rows.of(target), seeds, 5, 1000) == race(Rows.of(draft), seeds, 5, 1000)
    apart = race(Rows.of(target), seeds, 5, 1000) == race(Rows.of(draft), seeds, 6, 1000)
    overlap = float(torch.minimum(target, draft).sum(-1).mean())
    assert float(apart.double().mean()) < 0.5 * overlap
    # One race reaches (1 - TV) / (1 + TV); two laps lose a little of it.
    assert float(shared.double().mean()) > 0.9 * overlap / (2 - overlap)


def test_inverse_cdf_hits_every_cell_and_nothing_else() -> None:
    for width in (1, 3, 256, 700):
        row = weights(width).double()
        cdf = row.cumsum(0) / row.sum()
        inside = (cdf - row / row.sum() / 2)[row > 0]
        drawn = inverse_cdf(row.float().expand(len(inside), -1), inside)
        assert torch.equal(drawn, row.nonzero()[:, 0])
        ends = torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)
        assert (row[inverse_cdf(row.float().expand(2, -1), ends)] > 0).all()
