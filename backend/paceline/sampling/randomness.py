"""Counter-based random numbers: a pure function of a key, so nobody's draw depends on anybody else.

Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), over
all draws of a step at once, by our own library where there is one and else by numpy. The key is the
sequence's seed, the counter is
(position, round, purpose): two draws of one sequence never share a counter unless their purpose,
their position and their round are all equal.

The samples of a seeded request depend on (seed, position) alone, so that its text is the same
however it was drafted; their counter has no round.

The round counts the steps in which a sequence drew anything and never goes back, not even at
preemption. Under the block rule a rejected draft's noise has influenced the output, so reusing it
at the same position in the next step would bias the law; the round in the key prevents that.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

from paceline.sampling.native import uniforms_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Integers = npt.ArrayLike
    Doubles = npt.NDArray[np.float64]

_MULTIPLIER_0 = np.uint64(0xD2511F53)
_MULTIPLIER_1 = np.uint64(0xCD9E8D57)
_WEYL_0 = np.uint64(0x9E3779B9)
_WEYL_1 = np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_SHIFT = np.uint64(32)


class Purpose(IntEnum):
    """What a random number decides. Part of the counter, so purposes never share noise.

    DRAFT: a drafted token. ACCEPT: whether one is accepted. RESIDUAL, BONUS: the token after a
    rejection, and after a full acceptance. TARGET: the target's own sample of a seeded request,
    which its drafts try to guess with the same noise.
    """

    DRAFT = 0
    ACCEPT = 1
    RESIDUAL = 2
    BONUS = 3
    TARGET = 4


def uniforms(seeds: Integers, positions: Integers, rounds: Integers, purpose: Integers) -> Doubles:
    """Independent uniforms in [0, 1) with 53 random bits.

    Args:
        seeds: 64-bit keys, one a draw; broadcast with the rest.
        positions: index in the sequence of the token to be decided, below 2**32.
        rounds: the sequence's round counter, below 2**61.
        purpose: `Purpose`.

    Returns:
        float64 of the broadcast shape.
    """
    made = uniforms_of(seeds, positions, rounds, purpose)
    if made is not None:
        return made
    round_ = np.asarray(rounds, dtype=np.uint64)
    words = _philox(seeds, positions, round_ & _LOW, round_ >> _SHIFT, purpose)
    bits = ((words[0] << _SHIFT) | words[1]) >> np.uint64(11)
    result: Doubles = bits.astype(np.float64) * 2.0**-53
    return result


def exponentials(seeds: Integers, positions: Integers, purpose: Integers, count: int) -> Doubles:
    """Independent standard exponential times, a function of (seed, position) and index alone.

    Args:
        seeds, positions, purpose: as for `uniforms`, each [N] or a single one.
        count: how many for each.

    Returns:
        float64 [N, count], above 0, made of 32 random bits each: enough for a race, where only the
        order of times counts.
    """
    index = np.arange(-(-count // 4), dtype=np.uint64)
    key = np.atleast_1d(np.asarray(seeds, dtype=np.uint64))[:, None]
    position = np.atleast_1d(np.asarray(positions, dtype=np.uint64))[:, None]
    words = np.stack(_philox(key, position, index, 0, purpose), -1)
    words = words.reshape(len(words), -1)[:, :count]
    return -np.log((words.astype(np.float64) + 0.5) * 2.0**-32)


def _philox(
    seeds: Integers, c0: Integers, c1: Integers, c2: Integers, c3: Integers
) -> tuple[npt.NDArray[np.uint64], ...]:
    """Four random 32-bit words (in 64-bit integers) of the counter (c0, c1, c2, c3)."""
    key = np.asarray(seeds, dtype=np.uint64)
    counter = (np.asarray(word, dtype=np.uint64) for word in (c0, c1, c2, c3))
    x0, x1, x2, x3 = np.broadcast_arrays(*counter)
    k0, k1 = key & _LOW, key >> _SHIFT
    for _ in range(10):
        product_0 = _MULTIPLIER_0 * x0
        product_1 = _MULTIPLIER_1 * x2
        x0, x1, x2, x3 = (
            (product_1 >> _SHIFT) ^ x1 ^ k0,
            product_1 & _LOW,
            (product_0 >> _SHIFT) ^ x3 ^ k1,
            product_0 & _LOW,
        )
        k0 = (k0 + _WEYL_0) & _LOW
        k1 = (k1 + _WEYL_1) & _LOW
    return x0, x1, x2, x3
