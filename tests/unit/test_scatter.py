"""How far workers scatter: what points share, and what is stated of a few workers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy.stats import t as students_t
from validation.coverage import LEAST, MOST, Kind, simulate

from trainrig.scatter import (
    NO_PRIOR,
    Scatter,
    reach_of_workers,
    shared_scatter,
    student,
    student_tail,
)
from trainrig.stats import Attempt, Combined, Interval, combine_attempts, compare, smallest_visible


def test_points_that_scatter_alike_share_what_they_know() -> None:
    rng = np.random.default_rng(5)
    points = [tuple(np.exp(rng.normal(0.0, 0.02, (2, 2))).tolist()) for _ in range(200)]
    scatter = shared_scatter(points)
    assert math.sqrt(scatter.variance) == pytest.approx(0.02, rel=0.15)
    assert scatter.freedom > 20.0
    alone, together = compare(*points[0]), compare(*points[0], scatter)
    assert smallest_visible(together, 1e-3) < smallest_visible(alone, 1e-3) / 3.0


def test_points_that_scatter_unlike_share_little() -> None:
    rng = np.random.default_rng(6)
    sds = np.exp(rng.uniform(math.log(1e-3), math.log(0.3), 200))
    points = [tuple(np.exp(rng.normal(0.0, sd, (2, 2))).tolist()) for sd in sds]
    assert shared_scatter(points).freedom < 3.0


def test_a_prior_weighs_no_more_than_what_was_seen() -> None:
    point = ([1.0, 1.01], [1.0, 1.01])
    assert shared_scatter([]) == NO_PRIOR
    assert shared_scatter([point]) == NO_PRIOR
    assert shared_scatter([point] * 5).freedom == 6.0
    for seed in range(40):
        few = np.exp(np.random.default_rng(seed).normal(0.0, 0.02, (4, 2, 2))).tolist()
        assert shared_scatter(few).freedom <= 4.5


@pytest.mark.parametrize("freedom", [1.0, 1.5, 2.0, 3.7, 12.3, 64.0, 1024.0, 1e5])
def test_students_t_is_scipys(freedom: float) -> None:
    for t in (-50.0, -1.0, 0.0, 1e-9, 0.1, 1.0, 5.0, 20.0):
        theirs = float(students_t.sf(t, freedom))
        assert student_tail(t, freedom) == pytest.approx(theirs, rel=1e-9, abs=1e-300)
    for confidence in (0.5, 0.8, 0.95, 0.9999):
        theirs = float(students_t.ppf((1.0 + confidence) / 2.0, freedom))
        assert student(freedom, confidence) == pytest.approx(theirs, rel=1e-9)


# ---------------------------------------------------------------- what a few workers say


def combined(values: Sequence[float], prior: Scatter = NO_PRIOR, busy: bool = False) -> Combined:
    return combine_attempts(
        [
            Attempt(
                value=value,
                interval=Interval(low=value * 0.999, high=value * 1.001, confidence=0.95),
                disturbed="busy" if busy else None,
            )
            for value in values
        ],
        prior=prior,
    )


def test_four_workers_that_nobody_helps_are_students() -> None:
    values = [1.0, 1.01, 1.005, 1.02]
    logs = np.log(values)
    error = logs.std(ddof=1) * 0.5461  # of the median of four
    assert reach_of_workers(values, NO_PRIOR, 0.95) == pytest.approx(
        students_t.ppf(0.975, 3) * error
    )


def test_two_workers_that_nobody_helps_state_no_level() -> None:
    assert combined([1.0, 1.01]).interval.confidence == 0.0
    assert combined([1.0, 1.01], Scatter(variance=1e-4, freedom=10.0)).interval.confidence == 0.95


def test_that_two_agree_may_be_chance() -> None:
    prior = Scatter(variance=0.01**2, freedom=20.0)
    alike, apart = combined([1.0, 1.0], prior), combined([1.0, 1.03], prior)
    assert alike.interval.half_width(1.0) > 0.012
    assert apart.interval.half_width(1.0) > alike.interval.half_width(1.0)


def test_what_is_noisy_states_no_level() -> None:
    prior = Scatter(variance=0.01**2, freedom=20.0)
    assert combined([1.0, 1.01], prior, busy=True).interval.confidence == 0.0
    assert combined([1.0, 2.0], prior).interval.confidence == 0.0


def test_quiet_workers_that_were_outvoted_widen_the_interval_towards_them() -> None:
    prior = Scatter(variance=0.01**2, freedom=20.0)
    three, outvoted = combined([1.0, 1.01, 1.02], prior), combined([1.0, 1.01, 1.02, 1.07], prior)
    assert outvoted.value == three.value
    assert outvoted.used == three.used
    assert outvoted.interval.low == three.interval.low
    assert outvoted.interval.high > three.interval.high


def test_a_value_that_says_little_is_noisy_whatever_it_is_of() -> None:
    wide = Attempt(value=1.0, interval=Interval(low=0.4, high=3.62, confidence=0.95))
    words = combine_attempts([wide], required=1).disturbed
    assert words == "its interval is more than twice as wide as its value"
    narrower = Attempt(value=1.0, interval=Interval(low=0.4, high=1.6, confidence=0.95))
    assert combine_attempts([narrower], required=1).disturbed == "its interval is ±60 % wide"
    assert combine_attempts([wide, wide], agreement=0.25).disturbed is not None
    loose = Scatter(variance=0.08**2, freedom=20.0)
    assert "wide" in (combined([1.0, 1.0], loose).disturbed or "")
    assert (
        combined([1.0, 1.0, 1.0, 1.0, 1.0, 1.0], Scatter(variance=0.03**2, freedom=20.0)).disturbed
        is None
    )


# ---------------------------------------------------------------- how often it holds the truth


@pytest.mark.parametrize(
    "kind",
    [
        Kind(bias=0.0, workers=2, correlation=0.9, points=10),
        Kind(bias=0.005, workers=2, correlation=0.5, points=30),
        Kind(bias=0.01, workers=2, correlation=0.5, points=10),
        Kind(bias=0.02, workers=3, correlation=0.0, points=10),
        Kind(bias=0.02, workers=4, correlation=0.9, points=10),
        Kind(bias=0.02, workers=6, correlation=0.5, points=30),
        Kind(bias=0.01, workers=2, correlation=0.5, points=30, mixed=True),
    ],
    ids=lambda kind: kind.name,
)
def test_stated_intervals_hold_the_truth_as_often_as_they_say(kind: Kind) -> None:
    counted = simulate(kind, points=2000)
    assert counted.stated > 1500
    noise = 2.0 * math.sqrt(0.05 * 0.95 / counted.stated)
    assert LEAST - noise < counted.coverage < MOST + noise


def test_a_class_of_two_points_with_two_workers_states_nothing() -> None:
    counted = simulate(Kind(bias=0.01, workers=2, correlation=0.5, points=2), points=200)
    assert counted.stated == 0
