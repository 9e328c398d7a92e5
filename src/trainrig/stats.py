"""Medians, their intervals, and the rules by which numbers agree or differ.

Times are skewed (something is sometimes slow, nothing is ever too fast), so the
location is the median and its interval is distribution-free: the order
statistics that enclose the median with the wanted probability under the
binomial distribution.  It assumes independent samples.  Samples taken inside
one process are not independent of that process (its memory layout, its thread
placement), which is why a point needs two fresh workers (`settle`) and why runs
are compared by their workers' medians, never by pooled samples (`compare`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

CONFIDENCE = 0.95

# Two workers agree when their medians lie within this share of the larger one.
AGREEMENT = 0.05

# A change smaller than this is of no interest, however well it is resolved.
SMALLEST_CHANGE = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval of a median: in the samples' unit, with the confidence it really has."""

    low: float
    high: float
    confidence: float

    def half_width(self, value: float) -> float:
        """Half the width as a share of ``value``; infinite for a value of zero."""
        return (self.high - self.low) / 2.0 / abs(value) if value else math.inf


def median(samples: Sequence[float]) -> float:
    """The median; the mean of the middle two for an even number of samples."""
    return statistics.median(samples)


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """The narrowest symmetric order-statistic interval of the median.

    The interval between the k-th smallest and k-th largest of n samples holds
    the median with probability 1 - 2·P(Binomial(n, 1/2) < k).  Below six samples
    95 % cannot be reached: the whole range is returned with what it has.
    """
    ordered = sorted(samples)
    rank, reached = _median_rank(len(ordered), confidence)
    return Interval(low=ordered[rank - 1], high=ordered[-rank], confidence=reached)


@lru_cache(maxsize=4096)
def _median_rank(count: int, confidence: float) -> tuple[int, float]:
    """The largest rank k whose interval reaches ``confidence``, and what it reaches.

    Sums the lower tail from k = 0 upwards in whole numbers; beyond 1000 samples the
    normal approximation is exact to well under one rank.  Remembered, because the
    timing loop asks between samples.
    """
    if count > 1000:
        quantile = statistics.NormalDist().inv_cdf((1.0 + confidence) / 2.0)
        return max(1, math.floor((count - quantile * math.sqrt(count)) / 2.0)), confidence
    whole = 2**count
    tail = 0  # ways to see fewer than `rank` samples below the median
    rank, ways = 0, 1  # ways = comb(count, rank)
    while 2 * (tail + ways) <= (1.0 - confidence) * whole:
        tail += ways
        ways = ways * (count - rank) // (rank + 1)
        rank += 1
    if rank == 0:
        return 1, 1.0 - 2.0 / whole
    return rank, 1.0 - 2.0 * tail / whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One worker's view of a point: its median, interval, and whether the machine was busy."""

    value: float
    interval: Interval
    disturbed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What several workers say together."""

    value: float
    interval: Interval
    disturbed: str | None
    used: tuple[int, ...]
    """Indexes of the attempts that the value rests on."""


def settle(attempts: Sequence[Attempt], required: int = 2) -> Settled:
    """One value from several fresh workers, or the reason why it must not be judged.

    The quiet attempts (machine not busy) are grouped around their median.  The
    point is settled when at least ``required`` quiet attempts, and more than half
    of them, agree within AGREEMENT.  Otherwise the value is still reported, over
    all attempts, and `disturbed` says why.  The interval is the hull of the
    intervals it rests on: two workers that differ widen it.

    Raises ValueError without attempts.
    """
    quiet = [index for index, attempt in enumerate(attempts) if attempt.disturbed is None]
    agreeing = _largest_agreement(attempts, quiet)
    if len(agreeing) >= required and 2 * len(agreeing) > len(quiet):
        return _merge(attempts, agreeing, None)
    everything = list(range(len(attempts)))
    return _merge(attempts, everything, _why_disturbed(attempts, quiet, required))


def _largest_agreement(attempts: Sequence[Attempt], indexes: Sequence[int]) -> list[int]:
    """The largest group of attempts that all lie within AGREEMENT of its fastest member."""
    ordered = sorted(indexes, key=lambda index: attempts[index].value)
    best: list[int] = []
    for start, first in enumerate(ordered):
        ceiling = attempts[first].value / (1.0 - AGREEMENT)
        group = [index for index in ordered[start:] if attempts[index].value <= ceiling]
        if len(group) > len(best):
            best = group
    return sorted(best)


def _why_disturbed(attempts: Sequence[Attempt], quiet: Sequence[int], required: int) -> str:
    if len(attempts) < required:
        return f"only {len(attempts)} of {required} workers measured it"
    if len(quiet) < required:
        reasons = [attempt.disturbed for attempt in attempts if attempt.disturbed is not None]
        return reasons[-1]
    values = [attempts[index].value for index in quiet]
    spread = 1.0 - min(values) / max(values)
    return f"{len(quiet)} workers disagree by {spread * 100.0:.0f} %"


def _merge(attempts: Sequence[Attempt], used: Sequence[int], disturbed: str | None) -> Settled:
    chosen = [attempts[index] for index in used]
    return Settled(
        value=median([attempt.value for attempt in chosen]),
        interval=Interval(
            low=min(attempt.interval.low for attempt in chosen),
            high=max(attempt.interval.high for attempt in chosen),
            confidence=min(attempt.interval.confidence for attempt in chosen),
        ),
        disturbed=disturbed,
        used=tuple(used),
    )


class Change(StrEnum):
    """What can be said of two measurements."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """New over old, with the interval of the ratio and what the data could have shown."""

    ratio: float
    interval: Interval
    p_value: float
    """Two-sided, of the ratio being 1."""
    smallest_visible: float
    """The smallest relative change that these data could have told from none."""


def compare(old: Sequence[float], new: Sequence[float]) -> Comparison:
    """The ratio of two points from their workers' values, by Student's t on logarithms.

    ``old`` and ``new`` hold one value a fresh worker (its median), in any unit,
    the same for both.  Values of workers scatter by a factor, not an amount, so
    the logarithms are compared; the variance between workers is pooled over both
    sides, with len(old) + len(new) - 2 degrees of freedom.

    Raises ValueError with fewer than two workers on a side or a value not above 0.
    """
    from scipy.special import stdtr, stdtrit

    if min(len(old), len(new)) < 2 or min(*old, *new) <= 0.0:
        raise ValueError("two positive values a side at the least")
    logs_old, logs_new = [math.log(value) for value in old], [math.log(value) for value in new]
    freedom = len(old) + len(new) - 2
    squares = sum((x - statistics.fmean(side)) ** 2 for side in (logs_old, logs_new) for x in side)
    error = math.sqrt(squares / freedom * (1.0 / len(old) + 1.0 / len(new)))
    shift = statistics.fmean(logs_new) - statistics.fmean(logs_old)
    reach = float(stdtrit(freedom, (1.0 + CONFIDENCE) / 2.0)) * error
    if error > 0.0:
        p_value = 2.0 * float(stdtr(freedom, -abs(shift) / error))
    else:
        p_value = 1.0 if shift == 0.0 else 0.0
    return Comparison(
        ratio=math.exp(shift),
        interval=Interval(
            low=math.exp(shift - reach), high=math.exp(shift + reach), confidence=CONFIDENCE
        ),
        p_value=p_value,
        smallest_visible=max(SMALLEST_CHANGE, math.expm1(reach)),
    )


def judge_change(comparison: Comparison, *, higher_is_better: bool) -> Change:
    """Better or worse when the whole interval lies beyond SMALLEST_CHANGE, same when within it."""
    low, high = comparison.interval.low, comparison.interval.high
    floor, ceiling = 1.0 - SMALLEST_CHANGE, 1.0 + SMALLEST_CHANGE
    if low >= floor and high <= ceiling:
        return Change.SAME
    if low > ceiling:
        return Change.BETTER if higher_is_better else Change.WORSE
    if high < floor:
        return Change.WORSE if higher_is_better else Change.BETTER
    return Change.CANNOT_TELL
