"""The timing loop under a clock that the test winds by hand."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainrig.measure.clock import HostClock
from trainrig.measure.timing import Samples, Settings, sample

Cost = Callable[[int, float], float]


class FakeClock:
    """Time passes only while calls run: call number ``n`` at time ``t`` takes ``cost(n, t)``."""

    name = "fake"
    resolution = 1e-9
    overhead = 1e-6

    def __init__(self, cost: Cost) -> None:
        self._cost = cost
        self._now = 0.0
        self.calls = 0
        self.batches: list[int] = []

    def time(self, call: Callable[[], object], count: int) -> float:
        start = self._now
        for _ in range(count):
            self._now += self._cost(self.calls, self._now)
            self.calls += 1
        self.batches.append(count)
        return self._now - start

    def now(self) -> float:
        return self._now


def nothing() -> None:
    """The fake clock decides what a call costs."""


def run(cost: Cost, **given: float) -> tuple[Samples, FakeClock]:
    clock = FakeClock(cost)
    return sample(clock, nothing, Settings(**{"max_time": 1.0, **given})), clock


def steady(seconds: float) -> Cost:
    return lambda number, now: seconds


def noisy(seconds: float, sigma: float, seed: int = 0) -> Cost:
    source = random.Random(seed)
    return lambda number, now: seconds * source.lognormvariate(0.0, sigma)


def test_a_steady_call_converges_long_before_the_time_is_out() -> None:
    samples, clock = run(steady(1e-5))
    assert samples.stop == "converged"
    assert samples.median == pytest.approx(1e-5)
    assert clock.now() < 0.25


def test_a_sample_lasts_a_millisecond() -> None:
    samples, _ = run(steady(1e-5))
    assert samples.calls_per_sample == pytest.approx(100, abs=1)
    samples, _ = run(steady(0.005))
    assert samples.calls_per_sample == 1


def test_samples_are_long_against_a_costly_clock() -> None:
    clock = FakeClock(steady(1e-5))
    clock.overhead = 1e-5  # as an event's
    assert sample(clock, nothing, Settings(max_time=1.0)).calls_per_sample == pytest.approx(
        500, abs=1
    )
    clock = FakeClock(steady(1e-5))
    clock.resolution = 1e-4
    samples = sample(clock, nothing, Settings(max_time=10.0))
    assert samples.calls_per_sample == pytest.approx(10_000, abs=1)


def test_ten_lucky_samples_are_not_enough() -> None:
    """Ten samples of a millisecond agree; what comes after them is twice as slow."""
    samples, clock = run(lambda number, now: 1e-5 if now < 0.15 else 2e-5)
    assert clock.now() > 0.2
    assert len(samples.times) > 50


def test_a_long_run_takes_longer_samples_not_more_of_them() -> None:
    samples, _ = run(noisy(1e-3, 0.5), max_time=60.0, target=1e-4)
    assert samples.stop == "time"
    assert samples.calls_per_sample == pytest.approx(30, abs=20)


@given(
    call=st.floats(1e-6, 5.0),
    max_time=st.sampled_from([0.05, 0.4, 2.0]),
    sigma=st.sampled_from([0.0, 0.05, 0.5]),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_budget_is_kept(call: float, max_time: float, sigma: float) -> None:
    samples, clock = run(noisy(max(call, max_time * 1e-4), sigma), max_time=max_time)
    longest = max(call, max_time * 1e-4) * (8.0 if sigma else 1.0)
    assert clock.now() <= max(1.1 * max_time, max_time + longest)
    if longest < 0.01 * max_time:
        assert clock.now() <= 1.1 * max_time
    assert samples.times


def test_a_call_longer_than_the_budget_runs_once() -> None:
    samples, clock = run(steady(3.0))
    assert clock.calls == 1
    assert samples.times == (3.0,)
    assert samples.stop == "time"
    assert samples.interval.confidence < 0.95


def test_few_long_calls_never_converge() -> None:
    samples, _ = run(steady(0.3))
    assert len(samples.times) < 10
    assert samples.stop == "time"


def test_exact_samples_that_run_out_of_time_have_converged() -> None:
    samples, _ = run(steady(0.06))
    assert len(samples.times) >= 10
    assert samples.stop == "converged"


def test_a_warming_chip_is_waited_for() -> None:
    """Clocks sink by a fifth over three tenths of a second, then hold."""
    samples, clock = run(lambda number, now: 1e-4 * (1.0 + 0.2 * min(now / 0.3, 1.0)))
    assert samples.stop == "converged"
    assert clock.now() > 0.3


def test_a_drift_that_does_not_end_never_converges() -> None:
    """The interval of its median is tight, since the samples are many; its halves differ."""
    samples, _ = run(lambda number, now: 1e-5 * (1.0 + now), max_time=0.4)
    assert samples.interval.half_width(samples.median) < 0.02
    assert samples.stop == "time"


def test_two_speeds_in_turn_never_converge() -> None:
    source = random.Random(1)
    samples, _ = run(lambda number, now: 0.002 * source.choice([1.0, 2.0]), max_time=0.4)
    assert samples.stop == "time"


@pytest.mark.parametrize("first", [0.05, 0.5])
def test_a_slow_first_call_does_not_set_the_batch(first: float) -> None:
    samples, _ = run(lambda number, now: first if number == 0 else 1e-5)
    assert samples.calls_per_sample == pytest.approx(100, abs=1)
    assert samples.median == pytest.approx(1e-5)


def test_a_stall_in_the_warm_up_does_not_set_the_batch() -> None:
    """A thread that lost its processor makes some of the first batches a thousand times slower."""
    samples, _ = run(lambda number, now: 8e-3 if number in (1, 5, 40) else 6e-6, max_time=0.4)
    assert samples.calls_per_sample > 150


def test_a_machine_that_stays_slow_keeps_the_budget() -> None:
    """One fast call was seen; sized by it alone, one sample would take 1.3 s."""
    _, clock = run(lambda number, now: 6e-6 if number == 0 else 8e-3, max_time=0.4)
    assert clock.now() < 0.44


def test_calls_that_become_shorter_end_at_the_largest_number_of_samples() -> None:
    source = random.Random(2)
    samples, _ = run(
        lambda number, now: 1e-3 if now < 0.15 else 1e-4 * source.uniform(1, 4), target=1e-9
    )
    assert samples.stop == "samples"
    assert len(samples.times) == 2000


def test_warm_up_lasts_as_long_as_asked() -> None:
    """Slow until two seconds have passed: a warm-up of three sees none of it in the samples."""
    samples, _ = run(lambda number, now: 2e-3 if now < 2.0 else 1e-3, max_time=5.0, warmup_time=3.0)
    assert max(samples.times) == pytest.approx(1e-3)


def test_warm_up_leaves_the_budget_whole() -> None:
    _, clock = run(steady(1e-3), max_time=1.0, warmup_time=30.0)
    assert clock.now() < 1.1


def test_the_warm_up_works_in_batches() -> None:
    """A device that is waited for after each short call would stay half idle."""
    _, clock = run(steady(1e-6), max_time=1.0)
    assert clock.batches[0] == 1
    assert max(clock.batches[:12]) >= 512


@pytest.mark.parametrize("sigma", [0.01, 0.05, 0.15])
def test_a_converged_interval_holds_the_true_median(sigma: float) -> None:
    """95 % is promised for independent samples; looking repeatedly costs a little of it."""
    held = within = converged = 0
    for seed in range(200):
        samples, _ = run(noisy(6e-3, sigma, seed), max_time=5.0)
        assert samples.calls_per_sample == 1  # a mean of several has another median
        converged += samples.stop == "converged"
        held += samples.interval.low <= 6e-3 <= samples.interval.high
        within += abs(samples.median / 6e-3 - 1.0) <= 0.02
    assert converged >= 190
    assert held >= 180
    assert within >= 188


def test_the_host_clock_counts_and_measures() -> None:
    calls = []
    clock = HostClock()
    before = clock.now()
    seconds = clock.time(lambda: calls.append(1), 1000)
    assert len(calls) == 1000
    assert 0.0 < seconds <= clock.now() - before


class Neighbour:
    """Takes a third of every tenth of a second, in which calls are twice as slow."""

    def __init__(self, share: float = 1 / 3) -> None:
        self.share = share
        self.clock = FakeClock(lambda number, now: self.cost(now))
        self.call = 1e-5
        self.asked = 0.0

    def is_here(self, at: float) -> bool:
        return at % 0.1 < self.share * 0.1

    def cost(self, now: float) -> float:
        return self.call * (2.0 if self.is_here(now) else 1.0)

    def is_quiet(self) -> bool:
        """As threads that wait for a core tell it."""
        start, self.asked = self.asked, self.clock.now()
        steps = int((self.asked - start) / 1e-3) + 1
        return not any(self.is_here(start + step * 1e-3) for step in range(steps))

    def sample(self, **given: float) -> Samples:
        settings = Settings(**{"max_time": 0.4, "target": 1e-9, **given})
        return sample(self.clock, nothing, settings, self.is_quiet)


def test_samples_of_stretches_that_were_not_quiet_are_left_out() -> None:
    samples = Neighbour().sample()
    assert max(samples.times) == pytest.approx(1e-5)
    assert 0.2 < samples.quiet_share < 0.7
    everything = Neighbour()
    slowed = sample(everything.clock, nothing, Settings(max_time=0.4, target=1e-9))
    assert max(slowed.times) == pytest.approx(2e-5)


def test_a_machine_that_is_never_quiet_leaves_all_samples() -> None:
    busy = Neighbour(share=1.0)
    samples = busy.sample(extra_time=0.3)
    assert samples.quiet_share == 1.0
    assert samples.median == pytest.approx(2e-5)
    assert 0.65 < busy.clock.now() < 0.75  # the longer time was used


def test_calls_that_last_as_long_as_the_pauses_get_more_time() -> None:
    def long(**given: float) -> tuple[Samples, float]:
        neighbour = Neighbour()
        neighbour.call = 0.03
        return neighbour.sample(**given), neighbour.clock.now()

    short, _ = long()
    assert short.quiet_share == 1.0  # too few were quiet: all of them
    assert short.median > 0.03
    longer, took = long(extra_time=2.0)
    assert longer.median == pytest.approx(0.03)
    assert longer.quiet_share < 1.0
    assert took < 2.4


def test_a_quiet_machine_takes_no_extra_time() -> None:
    neighbour = Neighbour(share=0.0)
    assert neighbour.sample(target=0.02, extra_time=5.0).stop == "converged"
    assert neighbour.clock.now() < 0.25
