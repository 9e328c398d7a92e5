"""Medians, their intervals, and the rules by which numbers agree or differ.

Times are skewed (something is sometimes slow, nothing is ever too fast), so the
location is the median and its interval is distribution-free: the order
statistics that enclose the median with the wanted probability under the
binomial distribution.  It assumes independent samples.  Samples taken inside
one process are not independent of that process (its memory layout, its thread
placement), which is why a point needs two fresh workers (`combine_attempts`) and why runs
are compared by their workers' medians, never by pooled samples (`compare`).

Steps of one training follow each other on one machine, so that a slow one comes with others: n of
them know as much as n (1 - r) / (1 + r) independent ones, r the correlation of neighbouring steps,
corrected for its bias in short rows (Kendall 1954).  What wanders more slowly than the whole row is
not seen by it: `run_to_run_margin` stands for that, and for what fresh processes differ by.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from typing import TypeVar

from trainrig.scatter import (
    LEAST_FREEDOM,
    NO_PRIOR,
    SMALLEST_SCATTER,
    Scatter,
    moderated,
    reach_of_workers,
    student,
    student_tail,
    variance_within,
)

Item = TypeVar("Item")
Key = TypeVar("Key")

CONFIDENCE = 0.95
AGREEMENT = 0.05
"""Two workers agree when their medians lie within this share of the larger one."""
SMALLEST_CHANGE = 0.01
"""A change smaller than this is of no interest, however well it is resolved."""
FLAT = 0.10
FLAT_GROWTH = 4
"""A row of times is flat when none is a share of FLAT above another while the work grows by this
factor."""
_LARGEST_SAME = math.log1p(SMALLEST_CHANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """An interval of a median: in the samples' unit, with the confidence it really has."""

    low: float
    high: float
    confidence: float
    """0 where no level is stated."""

    def half_width(self, value: float) -> float:
        """Half the width as a share of ``value``; infinite for a value of zero."""
        return (self.high - self.low) / 2.0 / abs(value) if value else math.inf


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by their key, in the order in which they come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def median(samples: Sequence[float]) -> float:
    """Return the median; the mean of the middle two for an even number of samples."""
    return statistics.median(samples)


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the narrowest symmetric order-statistic interval of the median.

    The interval between the k-th smallest and k-th largest of n samples holds
    the median with probability 1 - 2·P(Binomial(n, 1/2) < k).  Below six samples
    95 % cannot be reached: the whole range is returned with what it has.
    """
    ordered = sorted(samples)
    rank, reached = _median_rank(len(ordered), confidence)
    return Interval(low=ordered[rank - 1], high=ordered[-rank], confidence=reached)


@lru_cache(maxsize=4096)
def _median_rank(count: int, confidence: float) -> tuple[int, float]:
    """Return the largest rank k whose interval reaches ``confidence``, and what it reaches.

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
    """A time: less is faster."""
    interval: Interval
    disturbed: str | None = None
    round: int = 1
    """Workers of one round ran side by side or in turn; those of another at another time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """One value from several workers."""

    value: float
    interval: Interval
    disturbed: str | None
    """Reason that the device may be faster than the value; None where quiet workers agree."""
    used: tuple[int, ...]
    """Indexes of the attempts that the value rests on."""
    rounds: int
    """Number of rounds of fresh workers."""
    reached: float | None
    """Value that as many workers as are required reached, each at the slow end of its interval."""


def combine_attempts(
    attempts: Sequence[Attempt],
    required: int = 2,
    agreement: float = AGREEMENT,
    *,
    two_sided: bool = False,
    prior: Scatter = NO_PRIOR,
) -> Combined:
    """Return one value from several fresh workers.

    Noise only slows: the value is the median of the fastest that agree, noisy or not; where enough
    of them are quiet, of those.  These are ``required`` at least, all within ``agreement`` of
    their fastest.  One that is faster than they
    are is no value, for its clock may be broken, but it keeps theirs from being the last word;
    where two or more are, the fastest ``required`` stand for what nobody agrees on.

    ``two_sided`` is for what caches make too fast as well as others too slow: there the largest
    group of quiet workers counts, if it is more than half of them, else all workers.

    The interval is Student's t on the workers that the value rests on, their scatter averaged with
    ``prior``.  Where nothing is the last word, each worker knows little (fewer than six samples),
    or too little is known of their scatter, it is the hull of the workers' own and states no level.

    A value whose interval reaches further than twice ``agreement`` either way is noisy, too,
    whatever it is of.  Raises ValueError without attempts.
    """
    if not attempts:
        raise ValueError("no attempt, no value")
    choose = _largest_agreement if two_sided else _fastest_agreement
    used, disturbed = choose(attempts, required, agreement)
    if len(attempts) < required:
        disturbed = f"only {len(attempts)} of {required} workers measured it"
    chosen = [attempts[index] for index in used]
    value = median([attempt.value for attempt in chosen])
    interval = _hull(chosen)
    reach = reach_of_workers([attempt.value for attempt in chosen], prior, CONFIDENCE)
    knows_itself = min(attempt.interval.confidence for attempt in chosen) >= CONFIDENCE
    if disturbed is None and knows_itself and reach is not None:
        # Those that were outvoted, and quiet, may know better: the interval holds both medians.
        middle = median([attempt.value for attempt in attempts if attempt.disturbed is None])
        low = min(value, middle) * math.exp(-reach)
        high = max(value, middle) * math.exp(reach)
        interval = Interval(low=low, high=high, confidence=CONFIDENCE)
    disturbed = disturbed or _too_wide(interval, value, 2.0 * agreement)
    believed = chosen if two_sided else attempts
    slow_ends = sorted(attempt.interval.high for attempt in believed)
    if two_sided and disturbed is not None:
        slow_ends = []
    return Combined(
        value=value,
        interval=interval,
        disturbed=disturbed,
        used=tuple(sorted(used)),
        rounds=len({attempt.round for attempt in chosen}),
        reached=slow_ends[required - 1] if len(slow_ends) >= required else None,
    )


def _hull(attempts: Sequence[Attempt]) -> Interval:
    """Return the span of some attempts' intervals; its confidence level is not known."""
    low = min(attempt.interval.low for attempt in attempts)
    high = max(attempt.interval.high for attempt in attempts)
    return Interval(low=low, high=high, confidence=0.0)


def _too_wide(interval: Interval, value: float, most: float) -> str | None:
    """Return in words that an interval is too wide for its value; None where it is not."""
    share = interval.half_width(value)
    if share <= most:
        return None
    if share == math.inf:
        return "it took no time"
    if share > 1.0:
        return "its interval is more than twice as wide as its value"
    return f"its interval is ±{share * 100.0:.0f} % wide"


_Group = tuple[list[int], str | None]
"""Indexes of attempts, and why their value is not the last word."""


def _fastest_agreement(attempts: Sequence[Attempt], required: int, agreement: float) -> _Group:
    ordered = sorted(range(len(attempts)), key=lambda index: attempts[index].value)
    for first in (0, 1):
        group = _agreeing(attempts, ordered[first:], agreement)
        if len(group) >= required:
            break
    else:
        group = ordered[:required]
        return group, _noise_of(attempts, group) or _disagreement(attempts, ordered)
    ahead = 1.0 - attempts[ordered[0]].value / attempts[group[0]].value
    lone = f"one worker took {ahead * 100.0:.0f} % less time than all others" if first else None
    clean = [index for index in group if attempts[index].disturbed is None]
    if len(clean) >= required:
        return clean, lone
    return group, _noise_of(attempts, group) or lone


def _largest_agreement(attempts: Sequence[Attempt], required: int, agreement: float) -> _Group:
    everyone = range(len(attempts))
    clean = [index for index in everyone if attempts[index].disturbed is None]
    clean.sort(key=lambda index: attempts[index].value)
    groups = [_agreeing(attempts, clean[start:], agreement) for start in range(len(clean))]
    best = max(groups, key=len, default=[])  # the faster of two that are as large
    if len(best) >= required and 2 * len(best) > len(clean):
        return best, None
    noise = _noise_of(attempts, everyone) if len(clean) < required else None
    return list(everyone), noise or _disagreement(attempts, clean)


def _agreeing(attempts: Sequence[Attempt], ordered: Sequence[int], agreement: float) -> list[int]:
    """Return the first of some attempts in order, and those within ``agreement`` of it."""
    if not ordered:
        return []
    ceiling = attempts[ordered[0]].value / (1.0 - agreement)
    return [index for index in ordered if attempts[index].value <= ceiling]


def _noise_of(attempts: Sequence[Attempt], indexes: Iterable[int]) -> str | None:
    """Return the noise of the last noisy one of some attempts."""
    reasons = [attempts[index].disturbed for index in indexes if attempts[index].disturbed]
    return reasons[-1] if reasons else None


def _disagreement(attempts: Sequence[Attempt], ordered: Sequence[int]) -> str:
    spread = 1.0 - attempts[ordered[0]].value / attempts[ordered[-1]].value
    return f"{len(ordered)} workers disagree by {spread * 100.0:.0f} %"


def launch_bound(work: Mapping[int, float]) -> tuple[int, int] | None:
    """Return the sizes between which a time does not grow, first and last; None where it does.

    ``work`` maps a size that the work is proportional to (a batch) to its time, in
    any unit.  At least three neighbouring sizes, the last at least FLAT_GROWTH times
    the first, must lie within FLAT of each other: something other than the work takes
    the time, and on a GPU that is the host, which launches the kernels.  Of several such
    rows the one that grows most counts.
    """
    sizes = sorted(work)
    bounds: tuple[int, int] | None = None
    for start, first in enumerate(sizes):
        for stop in range(start + 2, len(sizes)):
            times = [work[size] for size in sizes[start : stop + 1]]
            if min(times) <= 0.0 or max(times) > (1.0 + FLAT) * min(times):
                break
            grown = sizes[stop] / first
            if grown >= FLAT_GROWTH and (bounds is None or grown > bounds[1] / bounds[0]):
                bounds = (first, sizes[stop])
    return bounds


class Change(StrEnum):
    """The outcome of a comparison of two measurements."""

    BETTER = "better"
    WORSE = "worse"
    SAME = "same"
    CANNOT_TELL = "cannot tell"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """New over old, with the interval of the ratio and what is needed to judge it."""

    ratio: float
    interval: Interval
    p_value: float
    """Two-sided, of the change being no larger than SMALLEST_CHANGE."""
    error: float
    """Standard error of the logarithm of the ratio."""
    freedom: float


def compare(
    old: Sequence[float],
    new: Sequence[float],
    prior: Scatter = NO_PRIOR,
    margin: float = 0.0,
) -> Comparison:
    """Return the ratio of two points from their workers' values, by Student's t on logarithms.

    ``old`` and ``new`` hold one value a fresh worker (its median), in any unit,
    the same for both.  Values of workers scatter by a factor, not an amount, so
    the logarithms are compared.  The variance between workers is pooled over both
    sides (len(old) + len(new) - 2 degrees of freedom) and with ``prior``, weighted
    by their degrees of freedom: with two workers a side the pair's own variance is
    little more than a guess, and the other points know better (`scatter`).
    ``margin`` is the logarithm of what two runs differ by anyway (`run_to_run_margin`).

    One worker a side is enough where ``prior`` knows how far workers scatter.

    Raises ValueError with fewer workers on a side or a value not above 0.
    """
    least = 1 if prior.freedom >= LEAST_FREEDOM else 2
    if min(len(old), len(new)) < least or min(*old, *new) <= 0.0:
        raise ValueError("two positive values a side at the least")
    variance, freedom = moderated(*variance_within((old, new)), prior)
    error = math.sqrt(variance * (1.0 / len(old) + 1.0 / len(new)))
    return _t_interval(_mean_log(new) - _mean_log(old), error, freedom, margin)


def compare_pairs(old: Sequence[float], new: Sequence[float]) -> Comparison:
    """Return ratio of two interleaved ones, by Student's t on the logarithms of each pair's ratio.

    ``old`` and ``new`` hold a value for each round, in the same order, above 0: what the machine
    did to both in one round is in neither ratio.  Raises ValueError with fewer than two rounds.
    """
    if len(old) != len(new) or len(old) < 2:
        raise ValueError(f"{len(old)} and {len(new)} rounds: as many of both, and two at least")
    shifts = [math.log(after / before) for before, after in zip(old, new, strict=True)]
    scatter = max(statistics.stdev(shifts), SMALLEST_SCATTER)
    error = scatter / math.sqrt(len(shifts))
    return _t_interval(statistics.fmean(shifts), error, len(shifts) - 1)


def compare_steps(
    old: Sequence[float], new: Sequence[float], amount: float, margin: float = 0.0
) -> Comparison:
    """Return the ratio of two rates from the times of two trainings' steps, by Welch's t.

    ``amount`` is the work of a step of ``new`` over that of ``old``; either side has an error of
    its own (`mean_step`).
    """
    before, after = mean_step(old), mean_step(new)
    square = before.error**2 + after.error**2
    freedom = square**2 / sum(side.error**4 / side.freedom for side in (before, after))
    shift = math.log(amount * before.value / after.value)
    return _t_interval(shift, math.sqrt(square), freedom, margin)


def _t_interval(shift: float, error: float, freedom: float, margin: float = 0.0) -> Comparison:
    """Return a shift of logarithms, its standard error and degrees of freedom, by Student's t.

    The interval is widened by ``margin`` either way, and the p-value is of a shift beyond it.
    """
    reach = student(freedom, CONFIDENCE) * error + margin
    beyond = abs(shift) - max(margin, _LARGEST_SAME)
    return Comparison(
        ratio=math.exp(shift),
        interval=Interval(
            low=math.exp(shift - reach), high=math.exp(shift + reach), confidence=CONFIDENCE
        ),
        p_value=min(1.0, 2.0 * student_tail(beyond / error, freedom)),
        error=error,
        freedom=freedom,
    )


def p_beyond(comparison: Comparison, shift: float, margin: float) -> float:
    """Return the p-value of a change that differs from ``shift`` by more than ``margin``.

    Both are logarithms.
    """
    distance = math.log(comparison.ratio) - shift
    return _t_interval(distance, comparison.error, comparison.freedom, margin).p_value


def _mean_log(values: Sequence[float]) -> float:
    return statistics.fmean(math.log(value) for value in values)


def adjust_for_many(p_values: Sequence[float]) -> tuple[float, ...]:
    """Benjamini and Hochberg's step-up: of all changes called at 5 %, at most 5 % are none."""
    count = len(p_values)
    adjusted = [1.0] * count
    smallest = 1.0
    falling = sorted(range(count), key=lambda place: p_values[place], reverse=True)
    for rank, place in zip(range(count, 0, -1), falling, strict=True):
        smallest = min(smallest, p_values[place] * count / rank)
        adjusted[place] = smallest
    return tuple(adjusted)


def judge_change(comparison: Comparison, adjusted_p: float, *, higher_is_better: bool) -> Change:
    """Better, worse, same or cannot tell.

    Better or worse when ``adjusted_p`` (of a change beyond SMALLEST_CHANGE, corrected
    for the number of comparisons) is at most 1 - CONFIDENCE; same when the whole
    interval lies within SMALLEST_CHANGE.
    """
    if adjusted_p <= 1.0 - CONFIDENCE:
        return Change.BETTER if (comparison.ratio > 1.0) == higher_is_better else Change.WORSE
    floor, ceiling = 1.0 / (1.0 + SMALLEST_CHANGE), 1.0 + SMALLEST_CHANGE
    if floor <= comparison.interval.low and comparison.interval.high <= ceiling:
        return Change.SAME
    return Change.CANNOT_TELL


def judge_changes(
    comparisons: Sequence[tuple[Comparison, bool]],
) -> list[tuple[Change, float]]:
    """Judge many comparisons together: each one's change and adjusted p-value.

    Each comparison comes with whether a higher value of it is better.
    """
    adjusted = adjust_for_many([comparison.p_value for comparison, _ in comparisons])
    return [
        (judge_change(comparison, p, higher_is_better=higher_is_better), p)
        for (comparison, higher_is_better), p in zip(comparisons, adjusted, strict=True)
    ]


def smallest_visible(
    comparison: Comparison, level: float = 1.0 - CONFIDENCE, margin: float = 0.0
) -> float:
    """Return the smallest relative change that these data could have shown, beyond ``margin``.

    ``level`` is the p-value it would have had to reach: smaller where many points
    are compared.
    """
    reach = student(comparison.freedom, 1.0 - level) * comparison.error
    return math.expm1(max(margin, _LARGEST_SAME) + reach)


RUN_TO_RUN = {"cpu": 0.15}
"""By what factor two trainings of one experiment differ at different times, by the kind of device:
on processors that others use as well, nineteen pairs in twenty; elsewhere what two workers may."""
LEAST_STEPS = 4
"""Fewer steps know nothing of their scatter."""
_MOST_CORRELATED = 0.99
_CORRELATION_ERRORS = 1.0
"""A correlation that is seen is presumed larger by so many of its standard errors: short rows that
wander show less of it than there is (`validation.run_to_run` counts how often the level holds)."""


def run_to_run_margin(device: str) -> float:
    """Return logarithm of the factor by which two trainings differ that were not interleaved."""
    return math.log1p(RUN_TO_RUN.get(device, AGREEMENT))


def trimmed(times: Sequence[float]) -> list[float]:
    """In order, without the fastest and slowest quarters."""
    ordered, quarter = sorted(times), len(times) // 4
    return ordered[quarter : len(ordered) - quarter]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanStep:
    """The trimmed mean of a row of steps' times and how well it is known."""

    value: float
    error: float
    """Relative."""
    freedom: float


def mean_step(times: Sequence[float]) -> MeanStep:
    """Estimate the mean of at least `LEAST_STEPS` step times, in the order of measuring.

    The error is Yuen's (1974, doi:10.1093/biomet/61.1.165), as `scipy.stats.ttest_ind` has it with
    ``trim=0.25``: the scatter of the steps with the outer quarters pulled in to their edges; here
    of as many independent steps as the correlated ones are worth.
    """
    middle = trimmed(times)
    value = statistics.fmean(middle)
    pulled = [min(max(time, middle[0]), middle[-1]) / value for time in times]
    correlation = _autocorrelation(pulled)
    worth = (1.0 + correlation) / (1.0 - correlation)
    square = (len(times) - 1) * statistics.variance(pulled) * worth
    return MeanStep(
        value=value,
        error=max(math.sqrt(square / (len(middle) * (len(middle) - 1))), SMALLEST_SCATTER),
        freedom=max((len(middle) - 1) / worth, 1.0),
    )


def _autocorrelation(values: Sequence[float]) -> float:
    """Return the correlation of neighbours, corrected for short rows.

    0 where it is none or negative.
    """
    mean, count = statistics.fmean(values), len(values)
    deviations = [value - mean for value in values]
    total = sum(deviation * deviation for deviation in deviations)
    if total <= 0.0:
        return 0.0
    observed = sum(a * b for a, b in pairwise(deviations)) / total
    corrected = observed + (1.0 + 3.0 * observed) / count
    if corrected > 2.0 / math.sqrt(count):  # else none is seen that chance does not give
        corrected += _CORRELATION_ERRORS * math.sqrt(max(1.0 - corrected * corrected, 0.0) / count)
    return min(max(corrected, 0.0), _MOST_CORRELATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSummary:
    """Errors of a group of predictions; fields are the keys of ``ledger --json``."""

    name: str
    count: int
    median_error: float
    """Median of the absolute errors."""
    p90_error: float
    """Value that nine of ten absolute errors are not above."""
    worst_error: float
    """The error that is furthest from zero, with its sign."""
    bias: float
    """Median of the errors themselves."""
    coverage: float | None
    """Share of the measured values inside their interval; None where none had one."""


def summarise_errors(name: str, errors: Sequence[float], inside: Sequence[bool]) -> ErrorSummary:
    """Return summary of relative errors, one or more; ``inside``: of those that had an interval."""
    import numpy as np

    sizes = [abs(error) for error in errors]
    return ErrorSummary(
        name=name,
        count=len(errors),
        median_error=statistics.median(sizes),
        p90_error=float(np.quantile(sizes, 0.9)),
        worst_error=max(errors, key=abs),
        bias=statistics.median(errors),
        coverage=sum(inside) / len(inside) if inside else None,
    )
