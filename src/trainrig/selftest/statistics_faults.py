"""Statistics: data whose truth is known, a tenth beyond what the rules allow and a tenth inside.

Workers that disagree, a worker whose clock is broken, too few of them; many comparisons of equal
things, of which none may be called; and intervals, whose stated 95 % are counted on simulated data:
an interval that is honest of independent samples is not of samples that lean on each other, and the
count must tell the two apart.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainrig.scatter import Scatter, shared_scatter, student
from trainrig.selftest.registry import TENTH, Fault, Scene, threshold_fault
from trainrig.stats import (
    AGREEMENT,
    CONFIDENCE,
    SMALLEST_CHANGE,
    Attempt,
    Change,
    Comparison,
    Interval,
    combine_attempts,
    compare,
    judge_changes,
    mean_step,
    median_interval,
)

TAKES_S = 2.0
_LEAST_HELD, _MOST_HELD = 0.92, 0.995
_ROWS = 400


def faults() -> Iterator[Fault]:
    """Yield faults of workers' agreement, of changes and of intervals."""
    of_workers: tuple[tuple[str, str, Scene], ...] = (
        ("workers that disagree", "disagree by", _disagreeing),
        ("one worker ahead of all others", "less time than all others", _ahead),
        ("a worker too few", "only 2 of 3 workers", _too_few),
        ("workers whose intervals are wide", "% wide", _wide),
    )
    for name, says, scene in of_workers:
        yield threshold_fault(name, "statistics.workers", says, scene, _combined)
    of_changes: tuple[tuple[str, str, Scene], ...] = (
        ("a change beyond the smallest of interest", "worse", _small_change),
        ("one true change among forty equal things", "worse", _among_many),
        ("a faster time", "better", _less_is_better),
    )
    for name, says, scene in of_changes:
        yield threshold_fault(name, "statistics.changes", says, scene, _called)
    of_intervals: tuple[tuple[str, Scene], ...] = (
        ("the interval of a median, of samples that lean on each other", _medians),
        ("the interval of a mean step, of steps that wander for longer than the row", _steps),
        ("the interval of a ratio, of workers with a bias in common", _ratios),
    )
    for name, scene in of_intervals:
        yield threshold_fault(name, "statistics.intervals", "dishonest", scene, _counted)


# ---- workers


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workers:
    attempts: Sequence[Attempt]
    required: int = 2


def _combined(workers: _Workers) -> Iterable[str]:
    disturbed = combine_attempts(workers.attempts, workers.required).disturbed
    return [] if disturbed is None else [disturbed]


def _attempt(value: float, width: float = 0.001) -> Attempt:
    interval = Interval(low=value * (1.0 - width), high=value * (1.0 + width), confidence=0.96)
    return Attempt(value=value, interval=interval)


def _disagreeing(places: random.Random, towards: float) -> _Workers:
    slower = 1.0 / (1.0 - AGREEMENT * (1.0 + towards * TENTH))
    # A second pair inside the threshold agrees; their interval of two values has no level.
    values = [1.0, slower]
    places.shuffle(values)
    return _Workers(attempts=[_attempt(value) for value in values])


def _ahead(places: random.Random, towards: float) -> _Workers:
    """Three that agree, and one that is faster by more than workers differ."""
    faster = 1.0 - AGREEMENT * (1.0 + towards * TENTH)
    values = [1.0, 1.0, 1.0, faster]
    places.shuffle(values)
    return _Workers(attempts=[_attempt(value) for value in values])


def _too_few(_: random.Random, towards: float) -> _Workers:
    return _Workers(attempts=[_attempt(1.0)] * (2 if towards > 0.0 else 3), required=3)


def _wide(places: random.Random, towards: float) -> _Workers:
    width = 2.0 * AGREEMENT * (1.0 + towards * TENTH)
    wide = [_attempt(1.0, width)] * 2
    return _Workers(attempts=[*wide, *[_attempt(1.0)] * places.randrange(0, 2)])


# ---- changes


def _called(comparisons: Sequence[tuple[Comparison, bool]]) -> Iterable[str]:
    return [
        change
        for change, _ in judge_changes(comparisons)
        if change in (Change.BETTER, Change.WORSE)
    ]


_KNOWN = Scatter(variance=1e-6, freedom=100.0)
_TRUE = (1.0 - 1e-3, 1.0, 1.0 + 1e-3)


def _pair(factor: float) -> Comparison:
    return compare(_TRUE, [factor * value for value in _TRUE], _KNOWN)


def _small_change(_: random.Random, towards: float) -> list[tuple[Comparison, bool]]:
    """Return one change, whose own error a call has to exceed, too."""
    size = math.log1p(SMALLEST_CHANGE) * (1.0 + towards * TENTH) + max(towards, 0.0) * 0.002
    return [(_pair(math.exp(-size)), True)]


def _among_many(places: random.Random, towards: float) -> list[tuple[Comparison, bool]]:
    """Forty p-values of 0.03 are what chance gives to one in thirty: none may be called by that."""
    equal = [(_with_p(0.03 if n == 0 else places.uniform(0.1, 1.0)), True) for n in range(40)]
    if towards > 0.0:
        equal[places.randrange(40)] = (_pair(0.95), True)
    return equal


def _with_p(p_value: float) -> Comparison:
    interval = Interval(low=0.9, high=1.05, confidence=CONFIDENCE)
    return Comparison(ratio=0.98, interval=interval, p_value=p_value, error=0.02, freedom=4.0)


def _less_is_better(places: random.Random, towards: float) -> list[tuple[Comparison, bool]]:
    return [(_pair(places.uniform(0.8, 0.95) if towards > 0.0 else 1.0), False)]


# ---- intervals


Draw = Callable[[random.Random], tuple[float, float]]
"""An interval of data that are drawn anew, whose true value is 0."""


def _counted(draws: tuple[random.Random, Draw]) -> Iterable[str]:
    places, draw = draws
    share_held = (
        sum(low <= 0.0 <= high for low, high in (draw(places) for _ in range(_ROWS))) / _ROWS
    )
    is_honest = _LEAST_HELD <= share_held <= _MOST_HELD
    return [] if is_honest else [f"dishonest: the stated 95 % hold the truth in {share_held:.1%}"]


def _leaning(places: random.Random, count: int, correlation: float) -> list[float]:
    """Normal values of standard deviation 1, each leaning on the one before."""
    values = [places.gauss(0.0, 1.0)]
    innovation = math.sqrt(1.0 - correlation**2)
    while len(values) < count:
        values.append(correlation * values[-1] + innovation * places.gauss(0.0, 1.0))
    return values


def _medians(places: random.Random, towards: float) -> tuple[random.Random, Draw]:
    correlation = 0.8 if towards > 0.0 else 0.0

    def draw(rng: random.Random) -> tuple[float, float]:
        interval = median_interval(_leaning(rng, 21, correlation))
        return interval.low, interval.high

    return places, draw


def _steps(places: random.Random, towards: float) -> tuple[random.Random, Draw]:
    """Steps that lean on the one before are allowed for; a bias of the whole row is not."""
    bias = 0.02 if towards > 0.0 else 0.0

    def draw(rng: random.Random) -> tuple[float, float]:
        shift = rng.gauss(0.0, bias)
        row = mean_step([math.exp(0.01 * v + shift) for v in _leaning(rng, 100, 0.5)])
        reach = student(row.freedom, CONFIDENCE) * row.error
        middle = math.log(row.value)
        return middle - reach, middle + reach

    return places, draw


def _ratios(places: random.Random, towards: float) -> tuple[random.Random, Draw]:
    bias = 0.01 if towards > 0.0 else 0.0

    def draw(rng: random.Random) -> tuple[float, float]:
        def side(shift: float) -> list[float]:
            return [math.exp(rng.gauss(shift, 0.005)) for _ in range(3)]

        others = shared_scatter([(side(0.0), side(0.0)) for _ in range(6)])
        comparison = compare(side(0.0), side(rng.gauss(0.0, bias)), others)
        return math.log(comparison.interval.low), math.log(comparison.interval.high)

    return places, draw
