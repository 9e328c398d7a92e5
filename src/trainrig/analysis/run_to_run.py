"""How far two runs of one machine lie apart though nothing changed: learned, else stated by class.

The new run is held against the level of the baseline: the mean of the baseline and of those earlier
runs that are on its level, since one run is shifted as far as the next.  `validation.run_to_run`
simulates the rule: false calls, what is found, and what cannot be told.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from pydantic import ConfigDict

from trainrig.analysis.machine_key import machine_key
from trainrig.benchmarks.spec import Role, role_of
from trainrig.record import Record, RunView, began, read_by, read_toml
from trainrig.scatter import SMALLEST_SCATTER, student
from trainrig.stats import CONFIDENCE, Comparison, grouped, p_beyond

PATH = Path(__file__).parent / "run_to_run.toml"
_PAIRS = 1.96 * math.sqrt(2.0)
"""Standard deviations of one run within which nineteen of twenty pairs of runs lie."""
_MOST_FREEDOM = 1000.0
"""Degrees of freedom beyond which Student's t is the normal distribution."""
_LEAST_DIRECT = 0.5
"""Share of the margin of two single runs by which the new run differs from the baseline itself, and
not only from the mean of its level: the baseline may be the first run after a change."""
_LEAST_ALIKE = 3
"""Fewest cases of which can be said that they moved alike."""
_CONFIG = ConfigDict(extra="forbid")


@read_by(_CONFIG)
class RunClass:
    """Margin of one class of measurements (``gpu``, ``cpu``, ``disk``, ``sibling``)."""

    name: str
    margin: float
    source: str


@read_by(_CONFIG)
class RunToRun:
    """The whole file."""

    least_runs: int
    step_chance: float
    most_runs: int
    classes: tuple[RunClass, ...]

    def margin_of(self, kind: str) -> float:
        """Return the logarithm of the factor by which two runs of a class differ."""
        run_class = next(candidate for candidate in self.classes if candidate.name == kind)
        return math.log1p(run_class.margin)


@cache
def run_to_run() -> RunToRun:
    """Return what run_to_run.toml says."""
    return read_toml(PATH, RunToRun, PATH.name)


def kind_of(record: Record) -> str:
    """Return the class of a measurement: ``gpu``, ``cpu`` or ``disk``."""
    if role_of(record.benchmark) is Role.DISK:
        return "disk"
    return "cpu" if record.device_index is None else "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMargin:
    """Spread of one case between runs of a machine that did not change, and where it is known from.

    All values are natural logarithms.
    """

    spread: float
    """Standard deviation of one run."""
    freedom: float = _MOST_FREEDOM
    """Degrees of freedom of the spread."""
    level: float | None = None
    """Mean of the runs on the baseline's level; None: the baseline alone."""
    num_level: int = 1
    """Number of runs in that mean."""
    runs: int = 0
    """Number of earlier runs that the spread was learned from; 0: stated for the class."""

    @property
    def value(self) -> float:
        """Distance from the level within which nineteen of twenty unchanged runs lie."""
        error = self.spread * math.sqrt(1.0 + 1.0 / self.num_level)
        return student(self.freedom, CONFIDENCE) * error

    def shift_of_level(self, old: float) -> float:
        """Return how far the level lies above the baseline's own value."""
        return self.level - math.log(old) if self.level is not None else 0.0

    def p_value(self, comparison: Comparison, level_shift: float) -> float:
        """Return the p-value of a change beyond what runs and workers differ by.

        Args:
            comparison: new over old run, by their workers.
            level_shift: distance of the level above the baseline.
        """
        direct = math.log(comparison.ratio)
        pairs = student(self.freedom, CONFIDENCE) * math.sqrt(2.0) * self.spread
        if direct * (direct - level_shift) <= 0.0 or abs(direct) < _LEAST_DIRECT * pairs:
            return 1.0
        return p_beyond(comparison, level_shift, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCase:
    """One case of two runs with its margin."""

    record: Record
    comparison: Comparison
    """New over old run, by their workers."""
    margin: RunMargin
    old: float
    """Value of the baseline, above 0."""


def p_values(cases: Sequence[ComparedCase]) -> list[float]:
    """Return each case's p-value of a change beyond what runs and workers differ by.

    Where all cases of a class moved alike on a device, as far as their workers can tell (Cochran's
    Q), the run moved as a whole: their mean is held against the margins.  It is known better than
    any case, and of many cases one is always far out by chance.
    """
    values = [1.0] * len(cases)
    places = range(len(cases))
    groups = grouped(places, lambda at: (kind_of(cases[at].record), cases[at].record.device_index))
    for group in groups.values():
        comparisons = [cases[at].comparison for at in group]
        level_shifts = [cases[at].margin.shift_of_level(cases[at].old) for at in group]
        if _moved_alike(comparisons):
            mean = _mean_of(comparisons)
            comparisons = [mean] * len(group)
            level_shifts = [statistics.fmean(level_shifts)] * len(group)
        for at, comparison, level_shift in zip(group, comparisons, level_shifts, strict=True):
            values[at] = cases[at].margin.p_value(comparison, level_shift)
    return values


def _moved_alike(comparisons: Sequence[Comparison]) -> bool:
    """Return whether three and more changes differ by no more than their errors explain."""
    freedom = len(comparisons) - 1
    if freedom < _LEAST_ALIKE - 1:
        return False
    shifts = [math.log(comparison.ratio) for comparison in comparisons]
    mean = statistics.fmean(shifts)
    square = sum(
        ((shift - mean) / comparison.error) ** 2
        for shift, comparison in zip(shifts, comparisons, strict=True)
    )
    width = 2.0 / (9.0 * freedom)  # the quantile of chi-square after Wilson and Hilferty (1931)
    quantile = statistics.NormalDist().inv_cdf(CONFIDENCE)
    return square <= freedom * (1.0 - width + quantile * math.sqrt(width)) ** 3


def _mean_of(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the mean change of cases that moved alike; its interval is the first one's."""
    shifts = [math.log(comparison.ratio) for comparison in comparisons]
    square = statistics.fmean(comparison.error**2 for comparison in comparisons)
    return replace(
        comparisons[0],
        ratio=math.exp(statistics.fmean(shifts)),
        error=math.sqrt(square / len(comparisons)),
        freedom=min(comparison.freedom for comparison in comparisons),
    )


def margins_for(cases: Sequence[tuple[Record, Sequence[float]]]) -> list[RunMargin]:
    """Return the margin of each case.

    Where too few runs measured a case, its spread is the stated one of its class.  Otherwise it is
    that of the earlier runs about their mean, by Student's t; about two means where the runs show
    a step, so that a change of the past neither widens the margin nor moves the level.  No case is
    presumed calmer than half of its class: a few runs are close together by chance, too.

    Args:
        cases: each with its values in earlier runs of this machine, in their order, the baseline
            last; none where the baseline is of another machine.
    """
    margins = [_margin_alone(record, values) for record, values in cases]
    kinds = [kind_of(record) for record, _ in cases]
    learned: dict[str, list[float]] = {}
    for kind, margin in zip(kinds, margins, strict=True):
        if margin.runs:
            learned.setdefault(kind, []).append(margin.spread)
    usual = {kind: statistics.median(spreads) for kind, spreads in learned.items()}
    return [
        replace(margin, spread=max(margin.spread, usual[kind] if margin.runs else 0.0))
        for kind, margin in zip(kinds, margins, strict=True)
    ]


def _margin_alone(record: Record, values: Sequence[float]) -> RunMargin:
    rules = run_to_run()
    logs = [math.log(value) for value in values if value > 0.0]
    if len(logs) < rules.least_runs:
        return RunMargin(spread=rules.margin_of(kind_of(record)) / _PAIRS)
    step = _latest_step(logs, rules.step_chance)
    parts = [part for part in (logs[:step], logs[step:]) if part]
    return RunMargin(
        spread=max(_spread_within(parts), SMALLEST_SCATTER),
        freedom=len(logs) - len(parts),
        level=statistics.fmean(parts[-1]),
        num_level=len(parts[-1]),
        runs=len(logs),
    )


def _latest_step(logs: Sequence[float], chance: float) -> int:
    """Return where the runs after a step begin; 0 where no step is seen.

    The step is where two means are furthest apart by Student's t, if further than unchanged runs
    are with probability ``chance``, corrected for the number of places.
    """
    places = range(1, len(logs))
    far = student(len(logs) - 2, 1.0 - chance / len(places))

    def distance(place: int) -> float:
        before, after = logs[:place], logs[place:]
        error = max(_spread_within((before, after)), SMALLEST_SCATTER)
        error *= math.sqrt(1.0 / len(before) + 1.0 / len(after))
        return abs(statistics.fmean(after) - statistics.fmean(before)) / error

    furthest = max(places, key=distance)
    return furthest if distance(furthest) > far else 0


def _spread_within(parts: Sequence[Sequence[float]]) -> float:
    """Return the standard deviation within the parts, each about its own mean."""
    squares = sum((value - statistics.fmean(part)) ** 2 for part in parts for value in part)
    return math.sqrt(squares / (sum(map(len, parts)) - len(parts)))


def runs_to_learn_from(
    old: RunView, new: RunView, others: Sequence[RunView]
) -> tuple[RunView, ...]:
    """Return the runs of the machine of ``new`` that are not later than ``old``, in their order.

    ``old`` is one of them where it is of that machine.  What came after it may have what the
    comparison is to find, and would hide it.
    """
    machine = machine_key(new.machine)
    before = [run for run in others if run.name not in (old.name, new.name)]
    machine_runs = [
        run
        for run in (*before, old)
        if machine_key(run.machine) == machine and _began(run) <= _began(old)
    ]
    return tuple(sorted(machine_runs, key=_began))


def _began(run: RunView) -> tuple[str, str]:
    return began(run.config, run.name)


def earlier_values(runs: Sequence[RunView]) -> dict[tuple[object, ...], list[float]]:
    """Return each case and device with its quiet values in earlier runs, one a run."""
    values_by_case: dict[tuple[object, ...], list[float]] = {}
    for run in runs[-run_to_run().most_runs :]:
        run_values = {
            (record.key, record.device_index): record.value
            for record in run.records
            if record.is_point and record.is_usable and record.disturbed is None and record.value
        }
        for key, value in run_values.items():
            values_by_case.setdefault(key, []).append(value)
    return values_by_case
