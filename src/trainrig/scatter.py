"""How far fresh workers lie apart: learned from many points, and what it makes of a few workers.

Two workers know their own scatter badly, and the other points of the class know it better.  A
point's variance is its own, averaged with that of the class, each weighted by its degrees of
freedom (the moderated t of Smyth 2004, doi:10.2202/1544-6115.1027).

A worker's value is the median of its samples.  Whatever makes workers differ is in their scatter:
where their memory lies, what the machine did meanwhile, and how badly few or correlated samples
know their median.  So nothing is assumed of the samples, least of all that they are independent.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SMALLEST_SCATTER = 1e-3
"""No worker's value is known better than to a tenth of a per cent, even where two of them agree to
the last digit by chance or by a coarse clock."""
_SURE = 0.75
"""What is learned of few points is itself a guess: it weighs so much of what they saw."""
LEAST_FREEDOM = 3.0
"""Degrees of freedom below which an interval states no level: Student's t of two workers that only
know each other is 12.7, and their interval would say nothing."""

# Standard deviation of the median of so many normal values, of standard deviation 1 each (the
# tables of order statistics, e.g. David and Nagaraja 2003); beyond them the limit sqrt(pi / 2n).
_MEDIAN_ERROR = {1: 1.0, 2: 0.7071, 3: 0.6698, 4: 0.5461, 5: 0.5356, 6: 0.4634, 7: 0.4587}
_FREEDOMS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 1024.0)
_ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """How far fresh workers lie apart, learned from many points: a prior for each of them."""

    variance: float
    """Of the logarithms of workers' values."""
    freedom: float
    """Its weight, in degrees of freedom; 0 where nothing was learned."""


NO_PRIOR = Scatter(variance=0.0, freedom=0.0)

Sides = Sequence[Sequence[float]]
"""Values of a point's workers, above 0: one side, or several whose means differ."""


def variance_within(sides: Sides) -> tuple[float, int]:
    """The variance of the logarithms within sides, and its degrees of freedom."""
    freedom = sum(len(side) - 1 for side in sides)
    squares = 0.0
    for side in sides:
        logs = [math.log(value) for value in side]
        mean = statistics.fmean(logs)
        squares += sum((value - mean) ** 2 for value in logs)
    return max(squares / freedom, SMALLEST_SCATTER**2) if freedom else 0.0, freedom


def shared_scatter(points: Iterable[Sides]) -> Scatter:
    """How far workers scatter, from many points.

    Fits a scaled inverse chi-square to the points' variances (the model of Smyth 2004, section 4),
    each number of degrees of freedom weighted by its likelihood: points that scatter alike give
    each other many, points that differ few, and one that is far out moves the others little.  The
    weight is held to what the other points saw.

    Points whose workers disagree belong in here, though they are never judged: to
    leave them out would make those that happened to agree look better known than
    they are.
    """
    known = [(variance, d) for variance, d in map(variance_within, points) if d]
    if len(known) < 2:
        return NO_PRIOR
    fits = [_fit(known, freedom) for freedom in _FREEDOMS]
    best = max(likelihood for likelihood, _ in fits)
    weights = [math.exp(likelihood - best) for likelihood, _ in fits]
    whole = sum(weights)
    variance = sum(w * scale for w, (_, scale) in zip(weights, fits, strict=True)) / whole
    freedom = whole / sum(w / f for w, f in zip(weights, _FREEDOMS, strict=True))
    others = sum(d for _, d in known) * (1.0 - 1.0 / len(known))
    return Scatter(variance=variance, freedom=min(freedom, _SURE * others))


def _fit(known: Sequence[tuple[float, int]], freedom: float) -> tuple[float, float]:
    """Log-likelihood and scale of variances with so many degrees of freedom in common."""
    scale = math.exp(statistics.fmean(math.log(variance) for variance, _ in known))
    for _ in range(_ROUNDS):  # expectation and maximisation: the precisions, then their mean
        precisions = [(d + freedom) / (d * v + freedom * scale) for v, d in known]
        scale, before = 1.0 / statistics.fmean(precisions), scale
        if abs(scale - before) < 1e-4 * before:
            break
    half = freedom / 2.0
    total = 0.0
    for variance, d in known:
        total += math.lgamma(d / 2.0 + half) - math.lgamma(half) - math.lgamma(d / 2.0)
        total += half * math.log(freedom * scale) + (d / 2.0 - 1.0) * math.log(variance)
        total -= (d / 2.0 + half) * math.log(freedom * scale + d * variance)
        total += d / 2.0 * math.log(d)
    return total, scale


def moderated(variance: float, freedom: float, prior: Scatter) -> tuple[float, float]:
    """A variance averaged with the prior's, and the degrees of freedom of both."""
    both = freedom + prior.freedom
    return (freedom * variance + prior.freedom * prior.variance) / both, both


def student(freedom: float, confidence: float) -> float:
    """How many standard errors an interval of that confidence reaches either way."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1.0 + confidence) / 2.0))


def reach_of_workers(values: Sequence[float], prior: Scatter, confidence: float) -> float | None:
    """How far the interval of their median reaches either way, as a logarithm.

    ``values``: one a fresh worker, above 0.  None where too little is known of the scatter.
    """
    variance, own = variance_within((values,))
    if own + prior.freedom < LEAST_FREEDOM:
        return None
    variance, freedom = moderated(variance, own, prior)
    if own == 1:  # that two agree may be chance
        variance = max(variance, prior.variance)
    count = len(values)
    error = _MEDIAN_ERROR.get(count) or math.sqrt(math.pi / 2.0 / count)
    return student(freedom, confidence) * error * math.sqrt(variance)
