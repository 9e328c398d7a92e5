"""What the steps of one process, or of one team of ranks, know of its speed.

The value is the mean of the steps without their fastest and slowest quarters, as everywhere.  Its
error is Yuen's (1974, doi:10.1093/biomet/61.1.165): the scatter of the steps with those quarters
pulled in to their edges.  Steps follow each other on one machine, so that a slow one comes with
others: with r the correlation of neighbouring steps, corrected for its bias in short rows (Kendall
1954), n steps know as much as n (1 - r) / (1 + r) independent ones.  What wanders more slowly than
the whole row is not seen by it: `DIFFER` stands for that, and for what fresh processes differ by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, variance

from trainrig.stats import AGREEMENT, CONFIDENCE, Comparison, Interval

DIFFER = {"cpu": 0.15}
"""By what factor two trainings of one experiment differ at different times, by the kind of device:
on processors that others use as well, nineteen pairs in twenty; elsewhere what two workers may."""
LEAST = 4
"""Fewer steps know nothing of their scatter."""
_MOST_ALIKE = 0.95
_SMALLEST_ERROR = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """The mean time of a row of steps and how well it is known."""

    value: float
    error: float
    """Relative."""
    freedom: float


def middle(times: Sequence[float]) -> list[float]:
    """Without the fastest and slowest quarters."""
    ordered, quarter = sorted(times), len(times) // 4
    return ordered[quarter : len(ordered) - quarter]


def steady(times: Sequence[float]) -> Steady:
    """Of at least `LEAST` times above 0, in the order in which they were taken."""
    kept, count = middle(times), len(times)
    value = fmean(kept)
    pulled = [min(max(time, kept[0]), kept[-1]) / value for time in times]
    alike = _alike(pulled)
    worth = (1.0 + alike) / (1.0 - alike)
    square = (count - 1) * variance(pulled) * worth / (len(kept) * (len(kept) - 1))
    return Steady(
        value=value,
        error=max(math.sqrt(square), _SMALLEST_ERROR),
        freedom=max((len(kept) - 1) / worth, 1.0),
    )


def _alike(values: Sequence[float]) -> float:
    """The correlation of neighbours, 0 where it is none or against each other."""
    mean, count = fmean(values), len(values)
    apart = [value - mean for value in values]
    whole = sum(each * each for each in apart)
    if whole <= 0.0:
        return 0.0
    seen = sum(a * b for a, b in pairwise(apart)) / whole
    return min(max(seen + (1.0 + 3.0 * seen) / count, 0.0), _MOST_ALIKE)


def compare_steps(old: Sequence[float], new: Sequence[float], amount: float) -> Comparison:
    """The ratio of two rates from the steps' times; ``amount`` of work of ``new`` over ``old``'s.

    Welch's t: either side has an error of its own.  `apart` adds what processes differ by.
    """
    before, after = steady(old), steady(new)
    square = before.error**2 + after.error**2
    freedom = square**2 / sum(each.error**4 / each.freedom for each in (before, after))
    shift = math.log(amount * before.value / after.value)
    return by_t(shift, math.sqrt(square), freedom, 0.0)


def apart(device: str) -> float:
    """The logarithm of the factor by which two trainings differ that took no turns."""
    return math.log1p(DIFFER.get(device, AGREEMENT))


def by_t(shift: float, error: float, freedom: float, beyond: float) -> Comparison:
    """The interval, widened by ``beyond`` either way, and how likely a shift is no larger."""
    from scipy.special import stdtr, stdtrit

    reach = float(stdtrit(freedom, (1.0 + CONFIDENCE) / 2.0)) * error + beyond
    return Comparison(
        ratio=math.exp(shift),
        interval=Interval(
            low=math.exp(shift - reach), high=math.exp(shift + reach), confidence=CONFIDENCE
        ),
        p_value=min(1.0, 2.0 * float(stdtr(freedom, -(abs(shift) - beyond) / error))),
        error=error,
        freedom=freedom,
    )
