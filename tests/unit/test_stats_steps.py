"""What the steps of one process know of its speed: false calls stay rare where steps are alike."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from trainrig import stats
from trainrig.stats import by_t, compare_steps, middle, steady

PAIRS = 250


def test_the_value_is_the_mean_of_the_middle_half() -> None:
    times = [5.0, 1.0, 1.1, 0.9, 1.2, 0.8, 1.0, 0.1]
    assert middle(times) == [0.9, 1.0, 1.0, 1.1]
    assert steady(times).value == pytest.approx(fmean([0.9, 1.0, 1.0, 1.1]))


def test_the_error_is_yuens() -> None:
    """By hand: of eight independent values the outer four are pulled in to 2 and 5."""
    times = [4.0, 2.0, 5.0, 1.0, 6.0, 3.0, 2.0, 5.0]  # neighbours are against each other
    pulled = [4.0, 2.0, 5.0, 2.0, 5.0, 3.0, 2.0, 5.0]
    mean = fmean(pulled)
    square = sum((each - mean) ** 2 for each in pulled)
    found = steady(times)
    assert found.value == fmean([2.0, 3.0, 4.0, 5.0])
    assert found.error == pytest.approx(math.sqrt(square / (4 * 3)) / found.value)
    assert found.freedom == 3.0


def test_steps_that_are_alike_are_worth_fewer() -> None:
    apart, alike = [1.0, 1.1] * 20, [1.0] * 20 + [1.1] * 20
    assert steady(alike).error > 5.0 * steady(apart).error
    assert steady(alike).freedom < steady(apart).freedom
    assert steady([1.0] * 5).error == 1e-3  # no clock knows better


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
        steps = compare_steps(*sides, amount=1.0)
        widened = by_t(
            math.log(steps.ratio), steps.error, steps.freedom, stats.apart(device)
        ).interval
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
    assert false_calls(17, 0.1, 0.9, 0.03, "cuda") > 0.05  # a margin that is made for GPUs
    independent: Callable[[object], float] = lambda _values: 0.0  # noqa: E731
    monkeypatch.setattr(stats, "_alike", independent)
    assert false_calls(17, 0.1, 0.9, 0.03, "cpu") > 0.05


def test_a_difference_that_is_there_is_seen() -> None:
    rng, seen = random.Random(1), 0
    for _ in range(100):
        old, new = (noise(rng, 40, 0.05, 0.6, 0.02) for _ in range(2))
        found = compare_steps(old, [time / 1.6 for time in new], amount=1.0)
        low = by_t(
            math.log(found.ratio), found.error, found.freedom, stats.apart("cpu")
        ).interval.low
        seen += low > 1.0
    assert seen >= 80
