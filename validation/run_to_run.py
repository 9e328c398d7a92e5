"""How often `compare` calls a difference that is none, and finds one that is there: simulated.

    python -m validation.run_to_run            the table; exit 1 where a line misses what is asked
    python -m validation.run_to_run --count N  of so many comparisons a line (default 1000)

A run measures twelve cases with three fresh workers each, which lie 0.4 % apart (standard
deviation).  A whole run is shifted by a factor of its own: normal, 2 or 5 %, drawn anew for each
run, for the two that are compared and for those before them.  The real `compare_runs` judges.

    false calls    pairs of runs with nothing changed, of which any case is called better or worse
    found          pairs of which the new run is 10 % slower, and most cases are called worse
    cannot tell    the same pairs, of which most cases are called neither better nor worse

The last lines count how often the stated 95 % interval of `mean_step` holds the truth where steps
lean on the one before.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from trainrig.analysis.compare import compare_runs
from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.benchmarks.matmul import matmul_case
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.process.worker import Reply, Request
from trainrig.record import Record, RunView, Status
from trainrig.scatter import student
from trainrig.stats import CONFIDENCE, Change, mean_step

CASES, WORKERS = 12, 3
SCATTER = 0.004
TRUE = 1.0 / 1.1
COUNT = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table: what is compared, and what is right."""

    kind: str
    """``gpu`` or ``cpu``: the class whose margin is stated where too little was learned."""
    shift: float
    history: int
    most_false: float = 0.05
    least_found: float = 0.0
    least_unsure: float = 0.0

    @property
    def name(self) -> str:
        """``gpu, 2 % shift, 5 earlier runs``."""
        return f"{self.kind}, {self.shift:.0%} shift, {self.history} earlier runs"


LINES = (
    Line(kind="gpu", shift=0.0, history=0, least_found=0.9),
    *(Line(kind="gpu", shift=0.02, history=num, least_found=0.9) for num in (0, 3, 8)),
    *(Line(kind="gpu", shift=0.05, history=num, least_unsure=0.5) for num in (3, 8)),
    *(Line(kind="cpu", shift=0.05, history=num, least_unsure=0.5) for num in (0, 3, 8)),
)
"""What is asked of the rule, and not what it reaches: a line that falls short is MISSED.  Of three
earlier runs and the old one no rule finds more than 85 % at 2 % shift with 5 % of false calls at 2
and at 5 % (Neyman and Pearson's test on mean, scatter and new run; docs/log.md)."""


def run_of(name: str, factor: float, kind: str, rng: random.Random) -> RunView:
    """A run of all cases, whose rates are a factor of the nominal ones."""
    index = 0 if kind == "gpu" else None
    subject = Subject(device="simulated", index=index, count=1, environment="e")
    records: list[Record] = []
    for number in range(CASES):
        case = matmul_case("bf16", 8192, n=1024 * (number + 1))
        request = Request(benchmark=MATMUL.name, case=case, settings={}, timeout=1.0)
        attempts = []
        for worker in range(WORKERS):
            call = 0.01 / factor * math.exp(rng.gauss(0.0, SCATTER))
            samples = tuple(call * (1.0 + 1e-4 * step) for step in range(-5, 6))
            reply = Reply(status=Status.OK, samples=samples, stop="converged", duration=1.0)
            attempts.append(attempt_record(request, reply, subject, worker + 1))
        records += [*attempts, *point_records(attempts)]
    return RunView(name=name, records=tuple(record.replace(run=name) for record in records))


def counted(line: Line, count: int = COUNT) -> tuple[float, float, float]:
    """Shares of comparisons: with a false call, in which 10 % is found, that cannot tell."""
    rng = random.Random(1)
    false = found = unsure = 0

    def shifted(name: str, factor: float = 1.0) -> RunView:
        return run_of(name, factor * math.exp(rng.gauss(0.0, line.shift)), line.kind, rng)

    for _ in range(count):
        earlier = [shifted(f"{place:03d}") for place in range(line.history)]
        old, same, slower = shifted("old"), shifted("new"), shifted("new", TRUE)
        changes = [one.change for one in compare_runs(old, same, earlier).judged]
        false += any(change in (Change.BETTER, Change.WORSE) for change in changes)
        changes = [one.change for one in compare_runs(old, slower, earlier).judged]
        worse = sum(change is Change.WORSE for change in changes)
        found += worse > len(changes) / 2
        unsure += sum(change in (Change.CANNOT_TELL, Change.SAME) for change in changes) > (
            len(changes) / 2
        )
    return false / count, found / count, unsure / count


# ---- steps that lean on the one before


STEPS = ((20, 0.0), (20, 0.5), (50, 0.5), (50, 0.9), (200, 0.5), (200, 0.9))
LEAST_HELD = 0.93


def held(num: int, correlation: float, count: int = COUNT) -> float:
    """How often the stated interval of so many steps holds their true mean."""
    rng, inside = random.Random(2), 0
    for _ in range(count):
        found = mean_step(_steps(rng, num, correlation))
        reach = student(found.freedom, CONFIDENCE) * found.error
        inside += abs(math.log(found.value)) <= reach
    return inside / count


def _steps(rng: random.Random, num: int, correlation: float) -> Sequence[float]:
    """Times of steps about 1 s, 3 % apart."""
    state, own = rng.gauss(0.0, 1.0), math.sqrt(1.0 - correlation**2)
    found = []
    for _ in range(num):
        state = correlation * state + own * rng.gauss(0.0, 1.0)
        found.append(math.exp(0.03 * state))
    return found


def lines(count: int) -> Iterator[tuple[str, bool]]:
    """Yield the table line by line, and whether each is what is asked."""
    for line in LINES:
        false, found, unsure = counted(line, count)
        right = false <= line.most_false and found >= line.least_found
        right = right and unsure >= line.least_unsure
        text = f"{line.name:32s} {false:7.1%} false calls, {found:7.1%} found, {unsure:7.1%} unsure"
        yield text, right
    for num, correlation in STEPS:
        share = held(num, correlation, 3 * count)
        name = f"mean of {num} steps, correlation {correlation:g}"
        yield f"{name:40s} {share:7.1%} of stated 95 % hold", share >= LEAST_HELD


def main(words: list[str] | None = None) -> int:
    """Print the table; return 1 where a line misses what is asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=COUNT, help="comparisons for each line")
    count = parser.parse_args(words).count
    num_missed = 0
    for text, right in lines(count):
        num_missed += not right
        print(f"{'' if right else 'MISSED':6s} {text}", flush=True)
    return 1 if num_missed else 0


if __name__ == "__main__":
    sys.exit(main())
