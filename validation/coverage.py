"""How often stated 95 % intervals of few workers hold the truth: simulated, and on recorded runs.

    python -m validation.coverage
    python -m validation.coverage --runs FOLDER [FOLDER ...]

Simulated: classes of points, each measured by two to six fresh workers.  A worker has a bias of
its own (standard deviation 0 to 2 %) and takes samples that lean on the one before (autocorrelation
0 to 0.9); its value is their median.  `combine_attempts` makes the point, by what the class has
shown.  The truth is what infinitely many workers would have in the median.

Recorded: every case that several runs in FOLDER measured.  The truth is the pooled median of all
quiet workers of all of those runs; counted is how often the interval that one run states holds it.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from trainrig.measure.aggregate import point_records, scatters
from trainrig.record import Record, Status
from trainrig.scatter import Sides, shared_scatter
from trainrig.stats import Attempt, Interval, combine_attempts, grouped, median
from trainrig.store import find_runs, read_run

BIASES = (0.0, 0.005, 0.01, 0.02)
WORKERS = (2, 3, 4, 5, 6)
CORRELATIONS = (0.0, 0.5, 0.9)
CLASSES = (2, 4, 30)
"""Points of a class."""
LEAST, MOST = 0.93, 0.97
POINTS = 4000
"""Points for each line of the table."""
_SAMPLES = 30
_WITHIN = 0.01
"""Standard deviation of one sample."""


@dataclass(slots=True, kw_only=True)
class Counted:
    """Points of one kind, and how many intervals held the truth."""

    name: str
    stated: int = 0
    held: int = 0
    noisy: int = 0
    unstated: int = 0
    widths: list[float] = field(default_factory=list)

    def count(self, stated: bool, noisy: bool, held: bool, width: float) -> None:
        """One more point; ``width``: half of it, as a share."""
        self.noisy += noisy
        self.unstated += not stated and not noisy
        if stated:
            self.stated += 1
            self.held += held
            self.widths.append(width)

    @property
    def coverage(self) -> float:
        """Share of the stated intervals that held the truth."""
        return self.held / self.stated if self.stated else math.nan

    @property
    def line(self) -> str:
        """As the table has it."""
        width = statistics.median(self.widths) if self.widths else math.nan
        return (
            f"{self.name:46s} {self.coverage:7.1%} of {self.stated:6d}, ±{width:5.2%}; "
            f"{self.unstated} without a level, {self.noisy} noisy"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What is simulated."""

    bias: float
    workers: int
    correlation: float
    points: int
    mixed: bool = False
    """True if points of a class differ in their bias: from an eighth of it to twice as much."""

    @property
    def name(self) -> str:
        """As the table has it."""
        mixed = ", mixed" if self.mixed else ""
        return (
            f"bias {self.bias:.1%}{mixed}, {self.workers} workers, r {self.correlation}, "
            f"{self.points} points"
        )


def worker_logs(kind: Kind, rng: np.random.Generator, classes: int) -> np.ndarray:
    """Logarithms of workers' values around a truth of 0: classes × points × workers."""
    shape = (classes, kind.points, kind.workers)
    state = rng.normal(0.0, 1.0, shape)
    samples = [state]
    for _ in range(_SAMPLES - 1):
        fresh = rng.normal(0.0, 1.0, shape)
        state = kind.correlation * state + math.sqrt(1.0 - kind.correlation**2) * fresh
        samples.append(state)
    biases: np.ndarray | float = kind.bias
    if kind.mixed:
        biases = (
            kind.bias * np.exp(rng.uniform(-math.log(8.0), math.log(2.0), shape[:2]))[..., None]
        )
    middles = np.median(np.stack(samples), axis=0) * _WITHIN
    logs: np.ndarray = middles + rng.normal(0.0, 1.0, shape) * biases
    return logs


def simulate(kind: Kind, *, points: int = POINTS, seed: int = 1) -> Counted:
    """Of many points of one kind, how many intervals held the truth."""
    rng = np.random.default_rng(seed)
    counted = Counted(name=kind.name)
    for logs in worker_logs(kind, rng, max(1, points // kind.points)):
        values = np.exp(logs).tolist()
        sides: list[Sides] = [(own,) for own in values]
        prior = shared_scatter(sides)
        for own in values:
            combined = combine_attempts([_attempt(value) for value in own], prior=prior)
            interval = combined.interval
            counted.count(
                interval.confidence > 0.0 and combined.disturbed is None,
                combined.disturbed is not None,
                interval.low <= 1.0 <= interval.high,
                interval.half_width(combined.value),
            )
    return counted


def _attempt(value: float) -> Attempt:
    interval = Interval(low=value * 0.999, high=value * 1.001, confidence=0.95)
    return Attempt(value=value, interval=interval)


def kinds() -> Iterator[Kind]:
    """Every line of the table."""
    for bias in BIASES:
        for workers in WORKERS:
            for correlation in CORRELATIONS:
                yield Kind(bias=bias, workers=workers, correlation=correlation, points=10)
            for points in CLASSES:
                yield Kind(bias=bias, workers=workers, correlation=0.5, points=points)
    for bias in BIASES[1:]:
        for workers in WORKERS:
            yield Kind(bias=bias, workers=workers, correlation=0.5, points=30, mixed=True)


# ---- recorded runs


Place = tuple[object, ...]


def _place(record: Record) -> Place:
    case = tuple(sorted(record.case.items()))
    return record.benchmark, case, record.device, record.device_index, record.num_devices


def recorded(runs: Sequence[Sequence[Record]]) -> tuple[Counted, list[str]]:
    """Return how often what one run states holds the pooled median of all, and what it missed."""
    attempts = [
        grouped([r for r in run if r.attempt is not None and r.status is Status.OK], _place)
        for run in runs
    ]
    counted, missed = Counted(name=f"{len(runs)} recorded runs"), []
    for own in attempts:
        known = scatters(own.values())
        for place, group in own.items():
            others = [other[place] for other in attempts if place in other]
            quiet = [r.value for g in others for r in g if r.value and r.disturbed is None]
            if len(others) < 2 or len(quiet) < 4:
                continue
            point = point_records(group, known)[0]
            if point.value is None or point.interval is None:
                continue
            pooled = _as_metric(group[0], median(quiet), point)
            low, high = point.interval
            stated = point.confidence is not None and point.disturbed is None
            is_inside = low <= pooled <= high
            width = (high - low) / 2.0 / point.value
            counted.count(stated, point.disturbed is not None, is_inside, width)
            if stated and not is_inside:
                off = point.value / pooled - 1.0
                missed.append(f"{place[0]} {dict(group[0].case)}: {off:+.1%}, ±{width:.1%}")
    return counted, missed


def _as_metric(attempt: Record, seconds: float, point: Record) -> float:
    """A time in the metric of a point."""
    from trainrig.benchmarks.spec import benchmark

    found = benchmark(attempt.benchmark).metric(attempt.case, point.metric)
    assert found is not None
    return found.of(seconds)


def main(words: list[str] | None = None) -> int:
    """Print the table; 1 where an interval that is stated holds too rarely or too often."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", nargs="+", type=Path, help="folders with runs of one machine")
    options = parser.parse_args(words)
    if options.runs:
        folders = [run for parent in options.runs for run in find_runs(parent)]
        counted, missed = recorded([read_run(folder).records for folder in folders])
        print(counted.line, *missed, sep="\n")
        return 0
    wrong = 0
    for kind in kinds():
        counted = simulate(kind)
        is_wrong = counted.stated > 0 and not LEAST <= counted.coverage <= MOST
        wrong += is_wrong
        print("WRONG" if is_wrong else "     ", counted.line, flush=True)
    print(f"{wrong} lines outside {LEAST:.0%} to {MOST:.0%}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
