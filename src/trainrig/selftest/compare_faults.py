"""Comparisons of two runs: changes that must be called, and what two runs differ by anyway.

Runs of twelve cases with three workers each, whose rates are known.  What is looked at is what
`compare` answers: better, worse, or neither, and its exit code.  A change stands a tenth beyond the
margin of its class (run_to_run.toml) and what the scatter of workers adds, or a tenth inside it.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from trainrig.analysis.compare import compare_runs
from trainrig.analysis.run_to_run import RunClass, run_to_run
from trainrig.benchmarks.matmul import BENCHMARK as MATMUL
from trainrig.benchmarks.matmul import matmul_case
from trainrig.benchmarks.storage import BENCHMARK as STORAGE
from trainrig.benchmarks.storage import storage_case
from trainrig.measure.aggregate import Subject, attempt_record, point_records
from trainrig.process.worker import Reply, Request
from trainrig.record import Case, Record, RunView, Status
from trainrig.selftest.registry import TENTH, Fault, Scene, threshold_fault
from trainrig.stats import SMALLEST_CHANGE, Change

TAKES_S = 4.0
_SCATTER = 1e-3
_BEYOND_SCATTER = 0.006
"""Logarithm that the scatter of three workers adds to a margin before a change is called."""
_CARDS, _CASES = 8, 12
Factor = Callable[[int, int], float]
"""(number of a case, index of a card) → its rate over the nominal one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Two runs, and the runs before them."""

    old: RunView
    new: RunView
    earlier: tuple[RunView, ...] = ()


def faults() -> Iterator[Fault]:
    """Yield a change beyond each class's margin, a card behind the others, a learned margin."""
    for run_class in run_to_run().classes:
        if run_class.name == "sibling":
            continue
        yield _fault(f"a slower run: {run_class.name}", "exit 1 worse", _changed(run_class, -1.0))
        yield _fault(f"a faster run: {run_class.name}", "exit 0 better", _changed(run_class, 1.0))
    for name, says, scene in (
        ("one card of eight that fell behind the others", "exit 1 worse", _fell_behind),
        ("a slower run beyond what was learned", "exit 1 worse", _beyond_learned),
        ("longer times of the same work", "exit 1 worse", _longer_times),
        ("a few workers of which one is slow", "exit 3 not judged", _one_worker),
        ("a noisy point that was slower", "exit 3 not judged", _noisy),
    ):
        yield _fault(name, says, scene)


def _fault(name: str, says: str, scene: Scene) -> Fault:
    return threshold_fault(name, "compare.runs", says, scene, _compared)


def _compared(pair: _Pair) -> Iterable[str]:
    comparison = compare_runs(pair.old, pair.new, pair.earlier)
    code = 1 if comparison.is_worse else 0 if comparison.has_compared else 3
    if not comparison.has_compared:
        return [f"exit {code} not judged: {comparison.unjudged[0].reason}"]
    return [
        f"exit {code} {judged.change}: {judged.comparison.ratio:.3f}"
        for judged in comparison.judged
        if judged.change in (Change.BETTER, Change.WORSE)
    ]


def _run(
    name: str,
    factor: Factor,
    kind: str = "gpu",
    cards: int = 1,
    cases: int = _CASES,
    workers: int = 3,
    disturbed: str | None = None,
) -> RunView:
    """Return a run whose workers lie a thousandth apart."""
    records: list[Record] = []
    for number in range(cases):
        for card in range(cards):
            index = card if kind == "gpu" else None
            subject = Subject(device="simulated", index=index, count=1, environment="e")
            benchmark, case = _case(kind, number)
            request = Request(benchmark=benchmark, case=case, settings={}, timeout=1.0)
            attempts = []
            for worker in range(workers):
                call = 0.01 / factor(number, card) * (1.0 + _SCATTER * (worker - 1))
                samples = tuple(call * (1.0 + 1e-4 * step) for step in range(-5, 6))
                reply = Reply(status=Status.OK, samples=samples, stop="converged", duration=1.0)
                reply = dataclasses.replace(reply, disturbed=disturbed)
                attempts.append(attempt_record(request, reply, subject, worker + 1))
            records += [*attempts, *point_records(attempts)]
    return RunView(name=name, records=tuple(record.replace(run=name) for record in records))


def _case(kind: str, number: int) -> tuple[str, Case]:
    if kind == "disk":
        return STORAGE.name, {**storage_case("read", "fio"), "bytes": (number + 1) << 28}
    return MATMUL.name, matmul_case("bf16", 8192, n=1024 * (number + 1))


def _nominal(_: int, __: int) -> float:
    return 1.0


def _step(margin: float, towards: float) -> float:
    """Return the logarithm of a change a tenth beyond a margin, or a tenth inside it."""
    size = max(margin, math.log1p(SMALLEST_CHANGE)) * (1.0 + towards * TENTH)
    return size + max(towards, 0.0) * _BEYOND_SCATTER


def _changed(run_class: RunClass, sign: float) -> Scene:
    """Return a scene in which one case of twelve changes, or all of them."""

    def scene(places: random.Random, towards: float) -> _Pair:
        size = math.exp(sign * _step(math.log1p(run_class.margin), towards))
        changed = set(places.sample(range(_CASES), k=places.choice((1, _CASES))))
        kind = run_class.name
        return _Pair(
            old=_run("old", _nominal, kind),
            new=_run("new", lambda number, _: size if number in changed else 1.0, kind),
        )

    return scene


def _fell_behind(places: random.Random, towards: float) -> _Pair:
    """A whole run that is shifted inside its margin, and one card that is so beyond the others'."""
    fallen, shift = places.randrange(_CARDS), places.uniform(0.99, 1.01)
    size = math.exp(-_step(run_to_run().margin_of("sibling"), towards))
    return _Pair(
        old=_run("old", _nominal, cards=_CARDS, cases=2),
        new=_run(
            "new",
            lambda _, card: shift * (size if card == fallen else 1.0),
            cards=_CARDS,
            cases=2,
        ),
    )


def _beyond_learned(places: random.Random, towards: float) -> _Pair:
    """Runs that went up and down by 4 %: 3 % more says nothing there, and a fifth does."""
    count = run_to_run().least_runs + 4
    shifts = [0.04 * (place % 2) + places.uniform(-0.002, 0.002) for place in range(count)]
    before = tuple(
        _run(f"{place:03d}", lambda _, __, shift=shift: math.exp(shift))  # type: ignore[misc]
        for place, shift in enumerate(shifts)
    )
    size = 0.8 if towards > 0.0 else 0.97
    return _Pair(old=_run("old", _nominal), new=_run("new", lambda _, __: size), earlier=before)


def _longer_times(places: random.Random, towards: float) -> _Pair:
    """Return points that are times: there more is worse."""
    pair = _changed(run_to_run().classes[0], -1.0)(places, towards)
    return _Pair(old=_as_times(pair.old), new=_as_times(pair.new))


def _as_times(view: RunView) -> RunView:
    records = tuple(
        record.replace(
            metric="time",
            unit="s",
            value=1.0 / record.value if record.value else None,
            interval=record.interval and (1.0 / record.interval[1], 1.0 / record.interval[0]),
        )
        if record.is_point
        else record
        for record in view.records
    )
    return dataclasses.replace(view, records=records)


def _one_worker(places: random.Random, towards: float) -> _Pair:
    """Return a single worker shows nothing; two do."""
    workers = 1 if towards > 0.0 else 2
    return _Pair(
        old=_run("old", _nominal, workers=workers), new=_run("new", _nominal, workers=workers)
    )


def _noisy(places: random.Random, towards: float) -> _Pair:
    """Return a point whose workers were disturbed is judged neither worse nor the same."""
    if towards < 0.0:
        return _Pair(old=_run("old", _nominal), new=_run("new", _nominal))
    slower = places.uniform(0.5, 0.9)
    words = "other processes used 40 % of the processors"
    return _Pair(old=_run("old", _nominal), new=_run("new", lambda _, __: slower, disturbed=words))
