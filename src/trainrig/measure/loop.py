"""The one timing loop: warm up, calibrate, sample until tight or out of time.

A sample is the time of a batch of calls divided by their number; the batch is
sized once (`_calibrate`), so that a sample is long against the clock's step.
Sampling ends when the half-width of the median's 95 % interval is under the
target, or when the time is out.  A tight interval is not a true value: that is
why `worker` takes each point in two fresh processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trainrig.measure.clock import Clock
from trainrig.stats import Interval, median, median_interval

TARGET_HALF_WIDTH = 0.02

# Below six samples the order-statistic interval cannot reach 95 %; ten leave room for one
# straggler on either side.
_MIN_SAMPLES = 10
_MAX_SAMPLES = 2000

# A sample lasts this long where the time allows: 1000 steps of a microsecond clock, and long
# enough that a timer tick inside it (a few µs) is below 1 %.
_SAMPLE_TIME = 1e-3
_STEPS_PER_SAMPLE = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How long a case may take."""

    max_time: float
    """Seconds for everything: warm-up, calibration, samples.  One call always runs."""
    warmup_time: float | None = None
    """Seconds of warm-up; a tenth of max_time unless given (sustained runs give more)."""
    target: float = TARGET_HALF_WIDTH
    """Half-width of the interval, as a share of the median, at which sampling stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """What the loop saw."""

    times: tuple[float, ...]
    """Seconds a call, one value a sample, in order."""
    calls_per_sample: int
    interval: Interval
    stop: str
    """``converged``, ``time`` or ``samples``."""

    @property
    def median(self) -> float:
        """Seconds a call."""
        return median(self.times)


def sample(clock: Clock, call: Callable[[], object], settings: Settings) -> Samples:
    """Time ``call`` until its median is known well enough or the time is out."""
    deadline = clock.now() + settings.max_time
    per_call = _warm_up(clock, call, settings)
    count = _calibrate(clock, call, per_call, deadline)
    times: list[float] = []
    while True:
        times.append(clock.time(call, count) / count)
        stop = _why_stop(times, clock.now() + times[-1] * count > deadline, settings.target)
        if stop is not None:
            break
    return Samples(
        times=tuple(times), calls_per_sample=count, interval=median_interval(times), stop=stop
    )


def _warm_up(clock: Clock, call: Callable[[], object], settings: Settings) -> float:
    """Call until caches, clocks and lazy set-up have settled; seconds of the last call."""
    wanted = settings.max_time / 10.0 if settings.warmup_time is None else settings.warmup_time
    start = clock.now()
    latest = clock.time(call, 1)
    while clock.now() - start + latest < wanted:
        latest = clock.time(call, 1)
    return latest


def _calibrate(
    clock: Clock, call: Callable[[], object], per_call: float, deadline: float
) -> int:
    """How many calls make one sample long enough, with room for _MIN_SAMPLES of them."""
    wanted = max(_SAMPLE_TIME, _STEPS_PER_SAMPLE * clock.resolution)
    count = 1
    while per_call * count < wanted and clock.now() + 2.0 * per_call * count < deadline:
        count *= 2
        per_call = clock.time(call, count) / count
    room = max(deadline - clock.now(), 0.0) / _MIN_SAMPLES
    while count > 1 and per_call * count > room:
        count //= 2
    return count


def _why_stop(times: list[float], out_of_time: bool, target: float) -> str | None:
    if out_of_time:
        return "converged" if _is_tight(times, target) else "time"
    if len(times) >= _MAX_SAMPLES:
        return "samples"
    # Checking after every sample would stop on the first lucky streak.
    if len(times) % _MIN_SAMPLES == 0 and _is_tight(times, target):
        return "converged"
    return None


def _is_tight(times: list[float], target: float) -> bool:
    if len(times) < _MIN_SAMPLES:
        return False
    return median_interval(times).half_width(median(times)) <= target
