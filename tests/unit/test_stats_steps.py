"""What the steps of one process know of its speed: false calls stay rare where steps are alike."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest
from scipy.stats import ttest_ind

from trainrig import stats
from trainrig.stats import compare_steps, mean_step, run_to_run_margin, trimmed

PAIRS = 250


def test_the_value_is_the_mean_of_the_middle_half() -> None:
    times = [5.0, 1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 0.1]
    assert trimmed(times) == [0.9, 1.0, 1.0, 1.1]
    assert mean_step(times).value == pytest.approx(fmean([0.9, 1.0, 1.0, 1.1]))


def test_the_error_is_scipys_yuen_of_independent_steps() -> None:
    old, new = [4.0, 2.0, 5.0, 1.0, 6.0, 3.0, 2.0, 5.0], [5.0, 2.5, 6.0, 1.5, 7.0, 3.5, 3.0, 6.0]
    sides = [mean_step(times) for times in (old, new)]
    error = math.hypot(*(side.error * side.value for side in sides))
    theirs = ttest_ind(old, new, equal_var=False, trim=0.25)
    assert (sides[0].value - sides[1].value) / error == pytest.approx(theirs.statistic)


def test_the_error_is_yuens() -> None:
    """By hand: of eight independent values the outer four are pulled in to 2 and 5."""
    times = [4.0, 2.0, 5.0, 1.0, 6.0, 3.0, 2.0, 5.0]  # neighbours are against each other
    pulled = [4.0, 2.0, 5.0, 2.0, 5.0, 3.0, 2.0, 5.0]
    mean = fmean(pulled)
    square = sum((each - mean) ** 2 for each in pulled)
    found = mean_step(times)
    assert found.value == fmean([2.0, 3.0, 4.0, 5.0])
    assert found.error == pytest.approx(math.sqrt(square / (4 * 3)) / found.value)
    assert found.freedom == 3.0


def test_steps_that_are_alike_are_worth_fewer() -> None:
    apart, alike = [1.0, 1.1] * 20, [1.0] * 20 + [1.1] * 20
    assert mean_step(alike).error > 5.0 * mean_step(apart).error
    assert mean_step(alike).freedom < mean_step(apart).freedom
    assert mean_step([1.0] * 5).error == 1e-3  # no clock knows better


def noise(
    rng: random.Random, count: int, scatter: float, alike: float, process: float
) -> list[float]:
    """Times around 1: each step leans on the one before, and the process has a mood of its own."""
    mood, state, times = rng.gauss(0.0, process), rng.gauss(0.0, 1.0), []
    for _ in range(count):
        state = alike * state + math.sqrt(1.0 - alike * alike) * rng.gauss(0.0, 1.0)
        times.append(math.exp(mood + scatter * state))
    return times


def false_calls(count: int, scatter: float, alike: float, process: float, device: str) -> float:
    """Of two equal experiments, how often the interval leaves 1 out."""
    rng, called = random.Random(count), 0
    for _ in range(PAIRS):
        sides = [noise(rng, count, scatter, alike, process) for _ in range(2)]
        widened = compare_steps(*sides, 1.0, run_to_run_margin(device)).interval
        called += not widened.low <= 1.0 <= widened.high
    return called / PAIRS


@pytest.mark.parametrize("count", [5, 17, 40])
@pytest.mark.parametrize(
    ("scatter", "alike", "process", "device"),
    [(0.1, 0.7, 0.05, "cpu"), (0.1, 0.9, 0.03, "cpu"), (0.02, 0.5, 0.01, "cuda")],
)
def test_equal_experiments_are_seldom_called_different(
    count: int, scatter: float, alike: float, process: float, device: str
) -> None:
    assert false_calls(count, scatter, alike, process, device) <= 0.05


def test_without_its_two_parts_the_rule_calls_what_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert false_calls(17, 0.1, 0.7, 0.06, "cuda") > 0.05  # a margin that is made for GPUs
    independent: Callable[[object], float] = lambda _values: 0.0  # noqa: E731
    monkeypatch.setattr(stats, "_autocorrelation", independent)
    assert false_calls(17, 0.1, 0.9, 0.03, "cpu") > 0.05


def test_a_difference_that_is_there_is_seen() -> None:
    rng, seen = random.Random(1), 0
    for _ in range(100):
        old, new = (noise(rng, 40, 0.05, 0.6, 0.02) for _ in range(2))
        found = compare_steps(old, [t / 1.6 for t in new], 1.0, run_to_run_margin("cpu"))
        seen += found.interval.low > 1.0
    assert seen >= 80
