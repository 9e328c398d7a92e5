"""Medians, intervals and rules: exact where they can be, by simulation where not."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from trainrig.stats import (
    AGREEMENT,
    Attempt,
    Interval,
    Settled,
    median,
    median_interval,
    settle,
)

# ---------------------------------------------------------------- the interval of a median


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_the_interval_holds_the_median_and_ends_in_samples(samples: list[float]) -> None:
    interval = median_interval(samples)
    assert interval.low <= median(samples) <= interval.high
    assert {interval.low, interval.high} <= set(samples)


@pytest.mark.parametrize("count", [1, 2, 5, 6, 7, 8, 9, 20, 63, 100, 500, 1000])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_the_confidence_is_the_binomials_and_no_narrower_interval_reaches_it(
    count: int, confidence: float
) -> None:
    ordered = [float(number) for number in range(1, count + 1)]
    interval = median_interval(ordered, confidence)
    rank = int(interval.low)
    assert interval.high == count + 1 - rank  # symmetric: k-th smallest, k-th largest
    assert interval.confidence == pytest.approx(1.0 - 2.0 * binom.cdf(rank - 1, count, 0.5))
    whole_range = 1.0 - 2.0 * 0.5**count
    assert interval.confidence >= min(confidence, whole_range)
    assert 1.0 - 2.0 * binom.cdf(rank, count, 0.5) < confidence or 2 * rank >= count


def test_below_six_samples_the_whole_range_says_what_it_has() -> None:
    assert median_interval([3.0]) == Interval(low=3.0, high=3.0, confidence=0.0)
    assert median_interval([5.0, 1.0, 2.0, 4.0, 3.0]) == Interval(
        low=1.0, high=5.0, confidence=0.9375
    )
    assert median_interval([6.0, 5.0, 1.0, 2.0, 4.0, 3.0]).confidence == 0.96875


@pytest.mark.parametrize("count", [1001, 1234, 2000])
def test_many_samples_use_an_approximation_that_reaches_the_confidence(count: int) -> None:
    interval = median_interval([float(number) for number in range(1, count + 1)])
    reached = 1.0 - 2.0 * binom.cdf(interval.low - 1.0, count, 0.5)
    assert 0.95 <= reached < 0.96


@pytest.mark.parametrize("count", [6, 10, 17, 50, 200])
@pytest.mark.parametrize(
    ("draw", "true_median"),
    [
        (lambda rng, shape: rng.exponential(1.0, shape), math.log(2.0)),
        (lambda rng, shape: rng.normal(10.0, 1.0, shape), 10.0),
        (lambda rng, shape: rng.pareto(0.8, shape), 2.0**1.25 - 1.0),  # it has no mean
    ],
    ids=["exponential", "normal", "pareto"],
)
def test_the_interval_covers_whatever_the_distribution(
    count: int,
    draw: Callable[[np.random.Generator, tuple[int, int]], np.ndarray],
    true_median: float,
) -> None:
    trials = 4000
    rows = draw(np.random.default_rng(20260101), (trials, count))
    stated = median_interval(rows[0].tolist()).confidence
    rank = round(binom.ppf((1.0 - stated) / 2.0 + 1e-9, count, 0.5))
    ordered = np.sort(rows, axis=1)
    covered = (ordered[:, rank - 1] <= true_median) & (true_median <= ordered[:, count - rank])
    # The array code above must be the function under test, or it proves nothing.
    ours = median_interval(rows[1].tolist())
    assert (ours.low, ours.high) == (ordered[1, rank - 1], ordered[1, count - rank])
    noise = math.sqrt(stated * (1.0 - stated) / trials)
    assert abs(covered.mean() - stated) < 4.0 * noise
    assert covered.mean() > 0.94


def test_half_a_width_is_a_share_of_the_value() -> None:
    assert Interval(low=9.0, high=11.0, confidence=0.95).half_width(10.0) == pytest.approx(0.1)
    assert Interval(low=-1.0, high=1.0, confidence=0.95).half_width(0.0) == math.inf


# ---------------------------------------------------------------- what workers say together


def attempts(values: Sequence[float], busy: Sequence[int] = ()) -> list[Attempt]:
    return [
        Attempt(
            value=value,
            interval=Interval(low=value * 0.99, high=value * 1.01, confidence=0.95),
            disturbed="load 3.2 on 2 cores" if index in busy else None,
        )
        for index, value in enumerate(values)
    ]


def test_two_quiet_workers_that_agree_settle_a_point() -> None:
    settled = settle(attempts([1.0, 1.03125]))
    assert settled == Settled(
        value=1.015625,
        interval=Interval(low=0.99, high=1.03125 * 1.01, confidence=0.95),  # the hull of both
        disturbed=None,
        used=(0, 1),
    )


def test_agreement_ends_where_it_is_said_to() -> None:
    limit = 1.0 / (1.0 - AGREEMENT)
    assert settle(attempts([1.0, limit * 0.9999])).disturbed is None
    assert settle(attempts([1.0, limit * 1.0001])).disturbed == "2 workers disagree by 5 %"
    assert settle(attempts([limit * 1.0001, 1.0])).disturbed is not None


def test_tight_workers_that_differ_by_a_factor_of_a_thousand_are_never_judged() -> None:
    # Seen on a busy machine: 0.07 GB/s and 60 GB/s, each with an interval under 1 %.
    settled = settle(attempts([1 / 0.07, 1 / 60.0]))
    assert settled.disturbed == "2 workers disagree by 100 %"
    assert settled.used == (0, 1)


def test_two_of_three_outvote_the_odd_one() -> None:
    settled = settle(attempts([1 / 60.0, 1 / 0.07, 1 / 59.0]))
    assert settled.disturbed is None
    assert settled.used == (0, 2)
    assert 59.0 < 1.0 / settled.value < 60.0


def test_two_against_two_is_no_majority() -> None:
    assert "4 workers disagree" in (settle(attempts([1.0, 1.01, 2.0, 2.01])).disturbed or "")


def test_three_that_only_overlap_in_pairs_settle_on_the_pair() -> None:
    settled = settle(attempts([1.00, 1.04, 1.08]))
    assert settled.disturbed is None
    assert settled.used == (0, 1)  # 1.04 is within reach of both; the faster pair is taken


def test_busy_workers_do_not_vote() -> None:
    settled = settle(attempts([1.0, 1.01, 3.0, 3.0, 3.0], busy=[2, 3, 4]))
    assert (settled.disturbed, settled.used) == (None, (0, 1))


def test_all_busy_is_reported_and_not_judged() -> None:
    settled = settle(attempts([1.0, 1.0, 1.0], busy=[0, 1, 2]))
    assert settled.disturbed == "load 3.2 on 2 cores"
    assert settled.value == 1.0


def test_one_quiet_worker_is_not_enough() -> None:
    assert settle(attempts([1.0])).disturbed == "only 1 of 2 workers measured it"
    assert settle(attempts([1.0, 1.0], busy=[1])).disturbed == "load 3.2 on 2 cores"
    assert settle(attempts([1.0]), required=1).disturbed is None


def test_no_attempt_is_no_point() -> None:
    with pytest.raises(ValueError, match="median"):
        settle([])


@given(st.lists(st.tuples(st.floats(1e-6, 1e3), st.booleans()), min_size=1, max_size=7))
def test_a_settled_value_lies_in_its_interval_and_rests_on_who_it_names(
    workers: list[tuple[float, bool]],
) -> None:
    given_attempts = attempts(
        [value for value, _ in workers],
        [index for index, (_, is_busy) in enumerate(workers) if is_busy],
    )
    settled = settle(given_attempts)
    assert settled.interval.low <= settled.value <= settled.interval.high
    assert settled.value == statistics.median(workers[index][0] for index in settled.used)
    if settled.disturbed is None:
        values = [workers[index][0] for index in settled.used]
        assert min(values) >= max(values) * (1.0 - AGREEMENT) * (1.0 - 1e-12)
        assert not any(workers[index][1] for index in settled.used)
