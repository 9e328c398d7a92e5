"""Scatter between fresh workers: learned from many points, applied to a few workers.

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
from functools import lru_cache

SMALLEST_SCATTER = 1e-3
"""No worker's value is known better than to a tenth of a per cent, even where two of them agree to
the last digit by chance or by a coarse clock."""
_SURE = 0.75
"""Weight of what few points show: it is itself a guess."""
LEAST_FREEDOM = 3.0
"""Degrees of freedom below which an interval states no level: Student's t of two workers that only
know each other is 12.7, and their interval would say nothing."""

# Standard deviation of the median of so many normal values, of standard deviation 1 each (the
# tables of order statistics, e.g. David and Nagaraja 2003); beyond them the limit sqrt(pi / 2n).
_MEDIAN_ERROR = {1: 1.0, 2: 0.7071, 3: 0.6698, 4: 0.5461, 5: 0.5356, 6: 0.4634, 7: 0.4587}
_FREEDOMS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 1024.0)
_ROUNDS = 40
_MOST_TERMS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Scatter between fresh workers, learned from many points: a prior for each of them."""

    variance: float
    """Variance of the logarithms of workers' values."""
    freedom: float
    """Its weight, in degrees of freedom; 0 where nothing was learned."""


NO_PRIOR = Scatter(variance=0.0, freedom=0.0)

Sides = Sequence[Sequence[float]]
"""Values of a point's workers, above 0: one side, or several whose means differ."""


def variance_within(sides: Sides) -> tuple[float, int]:
    """Return the variance of the logarithms within sides, and its degrees of freedom."""
    freedom = sum(len(side) - 1 for side in sides)
    squares = 0.0
    for side in sides:
        logs = [math.log(value) for value in side]
        mean = statistics.fmean(logs)
        squares += sum((value - mean) ** 2 for value in logs)
    return max(squares / freedom, SMALLEST_SCATTER**2) if freedom else 0.0, freedom


def shared_scatter(points: Iterable[Sides]) -> Scatter:
    """Return the scatter of workers, from many points.

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
    """Return a variance averaged with the prior's, and the degrees of freedom of both."""
    both = freedom + prior.freedom
    return (freedom * variance + prior.freedom * prior.variance) / both, both


@lru_cache(maxsize=1024)
def student(freedom: float, confidence: float) -> float:
    """Return the standard errors that an interval of that confidence reaches either way."""
    wanted = math.log((1.0 - confidence) / 2.0)
    t = statistics.NormalDist().inv_cdf((1.0 + confidence) / 2.0)
    # Newton's steps on both logarithms: the tail falls along a concave line there, so that they
    # close in from above, whatever the degrees of freedom.
    for _ in range(_ROUNDS):
        tail = student_tail(t, freedom)
        step = (math.log(tail) - wanted) * tail / (t * _student_density(t, freedom))
        t *= math.exp(step)
        if abs(step) < 1e-13:
            break
    return t


def student_tail(t: float, freedom: float) -> float:
    """Return the probability that Student's t with these degrees of freedom is above ``t``."""
    if t < 0.0:
        return 1.0 - student_tail(-t, freedom)
    square = t * t
    return _incomplete_beta(freedom / (freedom + square), square / (freedom + square), freedom) / 2


def _student_density(t: float, freedom: float) -> float:
    half = (freedom + 1.0) / 2.0
    scale = math.lgamma(half) - math.lgamma(freedom / 2.0) - math.log(freedom * math.pi) / 2.0
    return math.exp(scale - half * math.log1p(t * t / freedom))


def _incomplete_beta(x: float, complement: float, freedom: float) -> float:
    """Return the regularised incomplete beta function of ``x`` with a = freedom / 2 and b = 1/2.

    ``rest`` is 1 - x, given since a small one is lost in x.  By its continued fraction (DLMF
    8.17.22), of whichever of x and 1 - x it converges faster for (8.17.4).  scipy.special has it,
    too, and takes a quarter of a second to load: half of what a report may cost.
    """
    a, b = freedom / 2.0, 0.5
    if x <= 0.0 or complement <= 0.0:
        return 0.0 if x <= 0.0 else 1.0
    log_x = math.log(x) if x < 0.5 else math.log1p(-complement)
    front = (
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * log_x + b * math.log(complement)
    )
    if x < (a + 1.0) / (a + b + 2.0):
        return math.exp(front) / (a * _beta_fraction(x, a, b))
    return 1.0 - math.exp(front) / (b * _beta_fraction(complement, b, a))


def _beta_fraction(x: float, a: float, b: float) -> float:
    """1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function, from its front (Lentz 1976)."""
    value, ratio, inverse = 1.0, 1.0, 0.0
    for n in range(1, _MOST_TERMS):
        m = n // 2
        above = m * (b - m) if n % 2 == 0 else -(a + m) * (a + b + m)
        term = above * x / ((a + n - 1.0) * (a + n))
        inverse = 1.0 / (1.0 + term * inverse)
        ratio = 1.0 + term / ratio
        value *= ratio * inverse
        if abs(ratio * inverse - 1.0) < 1e-15:
            break
    return value


def reach_of_workers(values: Sequence[float], prior: Scatter, confidence: float) -> float | None:
    """Return the half width of the interval of the workers' median, as a logarithm.

    ``values``: one a fresh worker, above 0.  None where too little is known of the scatter.
    """
    variance, within = variance_within((values,))
    if within + prior.freedom < LEAST_FREEDOM:
        return None
    variance, freedom = moderated(variance, within, prior)
    if within == 1:  # that two agree may be chance
        variance = max(variance, prior.variance)
    count = len(values)
    error = _MEDIAN_ERROR.get(count) or math.sqrt(math.pi / 2.0 / count)
    return student(freedom, confidence) * error * math.sqrt(variance)
