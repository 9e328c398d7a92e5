"""The timing loop under a clock that is wound by hand: samples that must not pass as converged.

What is looked at is what a worker reports of its samples: why the loop stopped, how wide the
interval is, how much of the time that passed the samples tell.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from trainrig.analysis.watched_rules import watch_rules
from trainrig.measure.timing import (
    TARGET_HALF_WIDTH,
    Samples,
    Settings,
    from_another_loop,
    sample,
)
from trainrig.selftest.registry import TENTH, Fault, threshold_fault

_CALL_S = 1e-5
Cost = Callable[[int, float], float]
"""(number of the call, moment) → seconds that it takes."""


class _WoundClock:
    """Time passes while calls run; ``told``: what it says of that, as a share."""

    name = "wound by hand"
    resolution = 1e-9

    def __init__(self, cost: Cost, told_share: float, overhead: float) -> None:
        self.overhead = overhead
        self._cost = cost
        self._told = told_share
        self._moment = 0.0
        self._calls = 0

    def time(self, call: Callable[[], object], count: int) -> float:
        start = self._moment
        for _ in range(count):
            call()
            self._moment += self._cost(self._calls, self._moment)
            self._calls += 1
        return (self._moment - start) * self._told

    def now(self) -> float:
        return self._moment


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """Samples of the timing loop, and a call's true time."""

    samples: Samples
    true_s: float


def faults() -> Iterator[Fault]:
    """Yield samples that agree too little; a clock that is off, whatever else happens meanwhile."""
    for name, scene in (
        ("halves of samples that drift apart", _drift),
        ("samples that scatter", _scatter),
        ("too few samples", _few),
    ):
        yield threshold_fault(name, "timing.samples", "not converged", scene, _looked_at)
    for nuisance, name in (
        (_Nuisance(), "a clock that tells less or more than passed"),
        (_Nuisance(setup_calls=1), "such a clock after a first call that sets things up"),
        (_Nuisance(lucky_s=0.05), "such a clock after a lucky beginning"),
        (_Nuisance(disturbed=True), "such a clock between stretches that others disturbed"),
        (_Nuisance(overhead=1e-5), "such a clock that is costly to read"),
    ):
        scene = partial(_clock_off, nuisance)
        yield threshold_fault(name, "timing.loop", "clock off", scene, _looked_at)


def _looked_at(timed: _Timed) -> Iterable[str]:
    samples = timed.samples
    if samples.stop != "converged":
        return [f"not converged: {samples.stop}"]
    accounted_share = samples.accounted_share
    if accounted_share is not None and abs(accounted_share - 1.0) > watch_rules().samples_apart:
        return [f"clock off: its samples tell {accounted_share:.2f} of the time"]
    if abs(samples.median / timed.true_s - 1.0) > TARGET_HALF_WIDTH:
        return [f"wrong value: {samples.median / timed.true_s:.3f} of the true time"]
    return []


# ---- samples


def _judged(times: list[float]) -> _Timed:
    samples = from_another_loop(times, 1, TARGET_HALF_WIDTH, {})
    return _Timed(samples=samples, true_s=samples.median)


def _drift(places: random.Random, towards: float) -> _Timed:
    """Return the medians of the halves lie apart by the target and a tenth."""
    halves_ratio, half = TARGET_HALF_WIDTH * (1.0 + towards * TENTH), places.randrange(10, 40)
    halves_ratio *= 1.0 + halves_ratio / 2.0  # the target is a share of the median between them
    return _judged([_CALL_S] * half + [_CALL_S * (1.0 + halves_ratio)] * half)


def _scatter(places: random.Random, towards: float) -> _Timed:
    """Fast and slow samples in turn: the median's interval holds both."""
    width = TARGET_HALF_WIDTH * (1.0 + towards * TENTH)
    pair = [_CALL_S * (1.0 - width), _CALL_S * (1.0 + width)]
    return _judged(pair * (2 * places.randrange(5, 20)))


def _few(_: random.Random, towards: float) -> _Timed:
    return _judged([_CALL_S] * (9 if towards > 0.0 else 10))


# ---- the loop


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nuisance:
    """Disturbance of a sound measurement, which must not change its value."""

    setup_calls: int = 0
    lucky_s: float = 0.0
    """Seconds in which calls take half of their time."""
    disturbed: bool = False
    """Five sixths of the time calls take three times as long, since others are there."""
    overhead: float = 1e-6

    def is_disturbed(self, moment: float) -> bool:
        """Return whether others are there at a moment."""
        return self.disturbed and int(moment * 25.0) % 6 > 0

    def cost(self, number: int, moment: float) -> float:
        """Return the seconds of a call."""
        slower = 3.0 if self.is_disturbed(moment) else 1.0
        slower = 1000.0 if number < self.setup_calls else slower
        return _CALL_S * slower * (0.5 if moment < self.lucky_s else 1.0)


def _clock_off(nuisance: _Nuisance, places: random.Random, towards: float) -> _Timed:
    share_off = watch_rules().samples_apart * (1.0 + towards * TENTH)
    told_share = 1.0 + places.choice((-1.0, 1.0)) * share_off
    clock = _WoundClock(nuisance.cost, told_share, nuisance.overhead)
    last_asked_s = 0.0

    def is_quiet() -> bool:
        nonlocal last_asked_s
        stretch_start_s, last_asked_s = last_asked_s, clock.now()
        return not (nuisance.is_disturbed(stretch_start_s) or nuisance.is_disturbed(last_asked_s))

    samples = sample(clock, lambda: None, Settings(max_time=2.0), is_quiet)
    return _Timed(samples=samples, true_s=_CALL_S * told_share)
