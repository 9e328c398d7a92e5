"""What two runs of one machine differ by anyway: learned from its earlier runs, else by class.

`validation.run_to_run` simulates the rule: false calls, what is found, and what cannot be told.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import ConfigDict

from trainrig.analysis.machine_key import machine_key
from trainrig.benchmarks.spec import Role, role_of
from trainrig.record import Record, RunView, began, read_by, read_toml

PATH = Path(__file__).parent / "run_to_run.toml"
_PAIRS = 1.96 * math.sqrt(2.0)
"""Nineteen pairs in twenty of normal values lie within so many standard deviations."""
_LEARNED = 2.6 * math.sqrt(2.0)
"""Of a scatter that is learned of a few runs: it is a guess itself."""
_MEDIAN_STEP = 0.6745 * math.sqrt(2.0)
"""The median difference of two normal values that follow each other, in standard deviations: one
that fell for good adds one large step to many, which does not move the median."""
_CONFIG = ConfigDict(extra="forbid")


@read_by(_CONFIG)
class RunClass:
    """What kind of measurement, and by how much its runs differ."""

    name: str
    margin: float
    source: str


@read_by(_CONFIG)
class RunToRun:
    """The whole file."""

    least_runs: int
    weight: float
    most_runs: int
    classes: tuple[RunClass, ...]

    def margin_of(self, kind: str) -> float:
        """Return the logarithm of the factor by which two runs of a class differ."""
        own = next(each for each in self.classes if each.name == kind)
        return math.log1p(own.margin)


@cache
def run_to_run() -> RunToRun:
    """Return what run_to_run.toml says."""
    return read_toml(PATH, RunToRun, PATH.name)


def kind_of(record: Record) -> str:
    """``gpu``, ``cpu`` or ``disk``: the class of what a record measured."""
    if role_of(record.benchmark) is Role.DISK:
        return "disk"
    return "cpu" if record.device_index is None else "gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMargin:
    """The logarithm of what two runs differ by anyway, and where that is known from."""

    value: float
    runs: int = 0
    """Of how many earlier runs it was learned; 0: stated for the class."""

    @property
    def text(self) -> str:
        """``6 %, of 4 earlier runs of this machine``."""
        share = f"{math.expm1(self.value):.1%}"
        return f"{share}, of {self.runs} earlier runs" if self.runs else f"{share}, presumed"


def margin_for(record: Record, earlier: Sequence[float] = ()) -> RunMargin:
    """Return the margin of a case.

    Args:
        record: the case; its class decides where too little was measured before.
        earlier: its values in earlier runs of this machine, one a run in their order, above 0.
    """
    rules, kind = run_to_run(), kind_of(record)
    stated = rules.margin_of(kind)
    values = [math.log(value) for value in earlier if value > 0.0]
    if len(values) < rules.least_runs:
        return RunMargin(value=stated)
    freedom = len(values) - 1
    steps = [abs(new - old) for old, new in itertools.pairwise(values)]
    own = freedom * (statistics.median(steps) / _MEDIAN_STEP) ** 2
    prior = rules.weight * (stated / _PAIRS) ** 2
    spread = math.sqrt((own + prior) / (freedom + rules.weight))
    return RunMargin(value=_LEARNED * spread, runs=len(values))


def runs_to_learn_from(
    old: RunView, new: RunView, others: Sequence[RunView]
) -> tuple[RunView, ...]:
    """Return the runs of the machine of ``new`` that are not later than ``old``, in their order.

    ``old`` is one of them where it is of that machine.  What came after it may have what the
    comparison is to find, and would hide it.
    """
    machine = machine_key(new.machine)
    before = [run for run in others if run.name not in (old.name, new.name)]
    found = [
        run
        for run in (*before, old)
        if machine_key(run.machine) == machine and _began(run) <= _began(old)
    ]
    return tuple(sorted(found, key=_began))


def _began(run: RunView) -> tuple[str, str]:
    return began(run.config, run.name)


def earlier_values(runs: Sequence[RunView]) -> dict[tuple[object, ...], list[float]]:
    """Return each case and device with its quiet values in earlier runs, one a run."""
    found: dict[tuple[object, ...], list[float]] = {}
    for run in runs[-run_to_run().most_runs :]:
        own = {
            (record.key, record.device_index): record.value
            for record in run.records
            if record.is_point and record.is_usable and record.disturbed is None and record.value
        }
        for key, value in own.items():
            found.setdefault(key, []).append(value)
    return found
