"""Shuffling and chance without state: every number is a function of its seed and its counters.

A sample's place in the order, and which of its tokens are masked, follow from
(seed, epoch or sample, position) alone.  So a run can be resumed at any step at no
cost, ranks agree without talking, and nothing depends on numpy's version, whose own
generators may change their streams between releases.

The mixing function is splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom
number generators, OOPSLA 2014).  The permutation is a Feistel network over the next
power of four; values outside the range are mapped again until they fall into it
(Black, Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002).  Good enough to
shuffle; it keeps no secrets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bits: TypeAlias = NDArray[np.uint64]
    Ints: TypeAlias = NDArray[np.int64]

_ROUNDS = 4
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _mix(values: Bits) -> Bits:
    values = values + _STEP
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    return values ^ (values >> np.uint64(31))


def random_bits(seed: int, *counters: Ints | int) -> Bits:
    """64 random bits for each combination of the counters, which broadcast and are >= 0."""
    state = _mix(np.array([seed % 2**64], dtype=np.uint64))
    for counter in counters:
        state = _mix(state ^ np.atleast_1d(np.asarray(counter)).astype(np.uint64))
    return state


def random_below(limit: int, bits: Bits) -> Ints:
    """Return whole numbers in [0, limit) from random bits; the bias is below limit / 2**64."""
    return (bits % np.uint64(limit)).astype(np.int64)


def random_shares(bits: Bits) -> NDArray[np.float64]:
    """Return numbers in [0, 1) from the upper 53 of the random bits."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def permute(places: Ints, count: int, seed: int, epochs: Ints) -> Ints:
    """Map positions of epochs to samples; for one epoch a permutation of range(count)."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    permuted = _feistel(places.astype(np.uint64), half, seed, epochs)
    outside = permuted >= count
    while outside.any():
        permuted[outside] = _feistel(permuted[outside], half, seed, epochs[outside])
        outside = permuted >= count
    return permuted.astype(np.int64)


def _feistel(values: Bits, half: int, seed: int, epochs: Ints) -> Bits:
    """Return a permutation of range(4 ** half), another one for each epoch."""
    shift, low = np.uint64(half), np.uint64(2**half - 1)
    left, right = values >> shift, values & low
    for number in range(_ROUNDS):
        key = random_bits(seed, epochs, number)
        left, right = right, left ^ (_mix(key ^ right) & low)
    return (left << shift) | right
