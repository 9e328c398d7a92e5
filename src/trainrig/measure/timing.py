"""The one timing loop: warm up, calibrate, sample until tight or out of time.

A sample is the time of a batch of calls divided by their number; the batch is
sized once, from the fastest batch of the warm-up, so that a sample is long
against the clock's step and overhead.  Sampling ends when the half-width of the
median's 95 % interval is under the target and the first and second half of the
samples agree (a chip that is still warming up drifts), or when the time is out.
A tight interval is not a true value: that is why `worker` takes each point in
two fresh processes and `noise` watches the machine meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from trainrig.errors import TrainrigError
from trainrig.measure.clock import Clock
from trainrig.process.child import first_line, is_unsupported
from trainrig.record import Case
from trainrig.stats import Interval, median, median_interval

TARGET_HALF_WIDTH = 0.02

# Below six samples the order-statistic interval cannot reach 95 %; ten leave room for one
# straggler on either side.
_MIN_SAMPLES = 10
_MAX_SAMPLES = 2000
# A stretch of samples lasts so long at the least before it is asked whether it was quiet: long
# against a timer tick and against the asking, short against what neighbours leave between bursts.
_STRETCH = 0.02
_LEAST_QUIET = 6
# Ten samples of a millisecond would be a glance: whatever the interval, look this long, or for
# this share of the time that is given.
_MIN_TIME = 0.1
_MIN_TIME_SHARE = 0.25

# A sample lasts this long where the time allows: 1000 steps of a microsecond clock, 500 times
# what a batch costs beyond its calls, and long enough that a timer tick inside it (a few µs) is
# below 1 %.
_SAMPLE_TIME = 1e-3
_STEPS_PER_SAMPLE = 1000.0
_OVERHEADS_PER_SAMPLE = 500.0
_WARM_UP_SHARE = 0.1


class Unsupported(TrainrigError):
    """This device or this torch has no such operation; the case is skipped with the reason."""


@contextmanager
def unsupported_as(words: str) -> Iterator[None]:
    """Turn torch's "unsupported" errors inside the body into `Unsupported` with ``words``."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if not is_unsupported(error):
            raise
        raise Unsupported(f"{words}: {first_line(error)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Time limits and target precision of a case."""

    max_time: float
    """Seconds for everything: warm-up, calibration, samples.  One call always runs."""
    warmup_time: float | None = None
    """Seconds of warm-up; a tenth of max_time unless given (sustained runs give more)."""
    target: float = TARGET_HALF_WIDTH
    """Half-width of the interval, as a share of the median, at which sampling stops."""
    extra_time: float = 0.0
    """Seconds beyond max_time, for as long as too few samples are of quiet stretches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Samples of the timing loop, with their interval and why it stopped."""

    times: tuple[float, ...]
    """Seconds a call, one value a sample, in order."""
    calls_per_sample: int
    interval: Interval
    stop: str
    """``converged``, ``time`` or ``samples``."""
    accounted_share: float | None = None
    """Median share of the wall time around a sample (host's clock) that the sample accounts for."""
    quiet_share: float = 1.0
    """Share of all samples taken that fell in quiet stretches and were kept; 1 where these are
    all of them."""
    conditions: Case = field(default_factory=dict)
    """Further conditions from a program that times itself; empty from the loop."""

    @property
    def median(self) -> float:
        """Return seconds a call."""
        return median(self.times)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A case ready to be timed in a worker."""

    call: Callable[[], object]
    """One operation; device work may still be in flight when it returns."""
    wrong: Callable[[], str | None]
    """Runs the operation once more and says what is wrong with the answer, or None."""
    conditions: Case = field(default_factory=dict)
    """Further conditions for its record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTimed:
    """A case that a program times which has its own loop: fio.

    The one timing loop cannot look into such a program, and starting it for each
    call would time the start.  So it runs once per worker and hands over its raw
    samples in the loop's own terms, seconds a call; all that follows (two workers,
    their agreement, the interval, noise) is the same for both.
    """

    sample: Callable[[Settings], Samples]
    """Runs the program within the time that is given."""
    wrong: Callable[[], str | None]
    """Returns what is wrong with the data it read or wrote, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warm:
    """Result of the warm-up, in seconds a call."""

    fastest: float
    latest: float


def sample(
    clock: Clock,
    call: Callable[[], object],
    settings: Settings,
    is_quiet: Callable[[], bool] = lambda: True,
) -> Samples:
    """Time ``call`` until its median is known well enough or the time is out.

    ``is_quiet`` is asked at the end of each stretch of samples whether the machine was; samples of
    other stretches are left out, unless those of quiet ones are too few.
    """
    start = clock.now()
    deadline = start + settings.max_time
    wanted = _sample_time(clock, settings)
    warm = _warm_up(clock, call, start + _warm_up_time(settings), wanted)
    left_s = deadline - clock.now()
    if warm.latest > left_s:  # a second call would not fit: the first one has to do
        return _result([warm.latest], 1, "time")
    count = _batch(warm, wanted, left_s)
    times: list[float] = []
    quiet: list[float] = []
    shares: list[float] = []
    judged = checked = 0
    is_quiet()  # the warm-up is over
    before = sampling = stretch = clock.now()
    while True:
        times.append(clock.time(call, count) / count)
        now = clock.now()
        shares.append(times[-1] * count / max(now - before, 1e-12))
        if len(times) == 1 and times[0] < warm.fastest / 2.0:  # that was still set-up
            warm = _Warm(fastest=times[0], latest=times[0])
            count, before = _batch(warm, wanted, deadline - now), now
            times.clear()
            continue
        out_of_time = now + (now - before) > deadline
        is_full = len(times) >= _MAX_SAMPLES
        if out_of_time or is_full or now - stretch >= _STRETCH:
            quiet += times[judged:] if is_quiet() else []
            judged, stretch = len(times), clock.now()
            is_short = len(quiet) < min(_MIN_SAMPLES, len(times))
            if out_of_time and is_short and now + (now - before) <= deadline + settings.extra_time:
                out_of_time = False
            # Checking after every sample would stop on the first lucky streak; every tenth of
            # them beyond a hundred keeps the checks themselves cheap.
            is_due = len(quiet) - checked >= max(_MIN_SAMPLES, len(quiet) // 10)
            checked = len(quiet) if is_due else checked
            least_s = min(_MIN_TIME, settings.max_time * _MIN_TIME_SHARE)
            is_due = is_due and now - sampling >= least_s
            stop = _why_stop(quiet, out_of_time, is_due, settings.target)
            if stop is not None or is_full:
                samples = _chosen(times, quiet, count, stop or "samples", settings.target)
                return replace(samples, accounted_share=median(shares))
        before = clock.now()


def _chosen(
    times: list[float], quiet: list[float], count: int, stop: str, target: float
) -> Samples:
    """Return the samples of quiet stretches if enough for a confidence level, else all."""
    if len(quiet) == len(times):
        return _result(times, count, stop)
    if len(quiet) >= _LEAST_QUIET:
        return replace(_result(quiet, count, stop), quiet_share=len(quiet) / len(times))
    stop = "converged" if _is_converged(times, target) else stop
    return _result(times, count, stop)


def from_another_loop(times: list[float], count: int, target: float, conditions: Case) -> Samples:
    """Return the samples that a program with a loop of its own took: judged as ours are."""
    stop = "converged" if _is_converged(times, target) else "time"
    samples = _result(times, count, stop)
    return replace(samples, conditions=conditions)


def _result(times: list[float], count: int, stop: str) -> Samples:
    return Samples(
        times=tuple(times), calls_per_sample=count, interval=median_interval(times), stop=stop
    )


def _warm_up_time(settings: Settings) -> float:
    if settings.warmup_time is None:
        return settings.max_time * _WARM_UP_SHARE
    return min(settings.warmup_time, settings.max_time)


def _sample_time(clock: Clock, settings: Settings) -> float:
    """Return the seconds that one sample (a batch of calls) lasts; longer in long runs."""
    return max(
        _SAMPLE_TIME,
        _STEPS_PER_SAMPLE * clock.resolution,
        _OVERHEADS_PER_SAMPLE * clock.overhead,
        settings.max_time / _MAX_SAMPLES,
    )


def _warm_up(clock: Clock, call: Callable[[], object], until: float, wanted: float) -> _Warm:
    """Call until caches, clocks and lazy set-up have settled, in batches that grow to a sample's.

    Batches, because a device that is waited for after each short call stays half idle.
    """
    count, fastest = 1, math.inf
    while True:
        before = clock.now()
        took = clock.time(call, count)
        fastest = min(fastest, took / count)
        now = clock.now()
        if now + (now - before) >= until:
            return _Warm(fastest=fastest, latest=took / count)
        if took < wanted / 2.0:
            count *= 2


def _batch(warm: _Warm, wanted: float, left_s: float) -> int:
    """Return the number of calls that make a sample long enough, leaving room for _MIN_SAMPLES.

    The fastest batch says how short a call can be; the latest one, slower where the
    machine is busy, what a sample will cost.
    """
    long_enough = round(wanted / max(warm.fastest, 1e-12))
    fits = math.floor(left_s / _MIN_SAMPLES / max(warm.latest, 1e-12))
    return max(1, min(long_enough, fits))


def _why_stop(times: list[float], out_of_time: bool, is_due: bool, target: float) -> str | None:
    if out_of_time:
        return "converged" if _is_converged(times, target) else "time"
    if is_due and _is_converged(times, target):
        return "converged"
    return None


def _is_converged(times: list[float], target: float) -> bool:
    """Return whether the interval is tight and the medians of both halves agree."""
    if len(times) < _MIN_SAMPLES:
        return False
    middle = median(times)
    if median_interval(times).half_width(middle) > target:
        return False
    half = len(times) // 2
    return abs(median(times[:half]) - median(times[half:])) <= target * middle
