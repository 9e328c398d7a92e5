"""Two runs compared: better, worse, same, or cannot tell; and first what differs about them.

Points meet by `Record.key`: benchmark, version, case, metric, device model and
device count; where a run measured several devices of one model, index meets
index, so that one card of eight that got slower is seen and not averaged away.
What is compared are the medians of the fresh workers that each point rests on
(`stats.compare`), never pooled samples.  Trainings meet by name, their trials
are rounds or steps (`compare_training`).  Noisy, failed and skipped points and
those that only one run has are listed with the reason and never judged.

It says whether two runs differ, not why: `differences` lists how machines, settings
and software differ, to be read first.  A difference is listed where both runs know the
value; what one of them could not read is none.  What changes between any two runs
(temperature, a neighbour's load) is part of the result.  docs/definitions.md states
the rule in full.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from trainrig.analysis.compare_training import TrainingComparison, compare_trainings
from trainrig.analysis.patterns import Pattern, find_patterns
from trainrig.analysis.rows import attempts, reason_not_judged, rows
from trainrig.analysis.run_to_run import (
    ComparedCase,
    RunMargin,
    earlier_values,
    margins_for,
    p_values,
    run_to_run,
    runs_to_learn_from,
)
from trainrig.analysis.training_results import BENCHMARK
from trainrig.benchmarks.spec import Role, role_of
from trainrig.record import Record, RunView, less_is_better
from trainrig.scatter import Scatter, shared_scatter
from trainrig.stats import (
    CONFIDENCE,
    Change,
    Comparison,
    compare,
    grouped,
    judge_changes,
    median,
    p_beyond,
    smallest_visible,
)
from trainrig.units import format_memory, format_quantity, format_time

# A point needs this many fresh workers on each side, or nothing is known of their scatter.
_WORKERS = 2

# Seconds that a call can take: a file may hold any number, and logarithms have an end.
_PLAUSIBLE_TIMES = (1e-15, 1e12)

_Identity = tuple[object, ...]
_Fact = tuple[Any, ...]
"""Description, and the values in the old and in the new run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One case in both runs, or in one of them."""

    old: Record | None
    new: Record | None
    reason: str = ""
    """Reason that the pair is not judged; empty where it is."""

    @property
    def record(self) -> Record:
        """Either side, for what both share: benchmark, case, metric, unit."""
        record = self.new or self.old
        assert record is not None
        return record

    @property
    def ratio(self) -> float | None:
        """New over old value; None where one has none."""
        if self.old is None or self.new is None or not self.old.value or not self.new.value:
            return None
        ratio = self.new.value / self.old.value
        return ratio if math.isfinite(ratio) else None

    @property
    def is_on_disk(self) -> bool:
        """True where a disk was measured."""
        return role_of(self.record.benchmark) is Role.DISK

    @property
    def more_is_better(self) -> bool:
        """True where a larger value is an improvement."""
        return not less_is_better(self.record.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedCase:
    """A case that was compared, and what came of it."""

    pair: Pair
    change: Change
    comparison: Comparison
    adjusted_p: float
    """The p-value, corrected for the number of comparisons."""
    smallest_visible: float
    """The smallest relative change that would have been called here."""
    margin: RunMargin
    """Margin by which two runs of this case differ though nothing changed."""
    behind_siblings: float | None = None
    """Change of this GPU over the median change of the others, where that is what made it worse."""

    @property
    def decisive_ratio(self) -> float:
        """New over old value; against the siblings' change where that was judged."""
        return self.comparison.ratio if self.behind_siblings is None else self.behind_siblings

    @property
    def gain(self) -> float:
        """Factor by which it is better: above 1 for a higher rate and for a shorter time."""
        return self.decisive_ratio if self.pair.more_is_better else 1.0 / self.decisive_ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One fact in which two runs differ, in words."""

    what: str
    old: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """The comparison of two runs."""

    old: str
    """Name of the run that is compared with."""
    new: str
    differences: tuple[Difference, ...]
    """Differences of machines, settings and software."""
    judged: tuple[JudgedCase, ...]
    """The largest change first; then what cannot be judged, then what stayed the same."""
    unjudged: tuple[Pair, ...]
    side_by_side: tuple[Pair, ...]
    """A case on different device models: shown, never judged."""
    patterns: tuple[tuple[str, Pattern], ...] = ()
    """Explanations of the numbers of ``old``, ``new`` or ``both``."""
    trainings: TrainingComparison | None = None
    """Comparison of the experiments; None where the runs have none."""

    @property
    def is_worse(self) -> bool:
        """True where a case or an experiment got worse."""
        return self.count(Change.WORSE) > 0

    @property
    def has_compared(self) -> bool:
        """True where at least one case or experiment was judged."""
        trained = self.trainings.compared if self.trainings is not None else ()
        return bool(self.judged) or any(speedup.is_judged for speedup in trained)

    def count(self, change: Change) -> int:
        """Return the number of cases and experiments with this change."""
        trained = self.trainings.count(change) if self.trainings is not None else 0
        return trained + sum(case.change is change for case in self.judged)


def compare_runs(old: RunView, new: RunView, earlier: Sequence[RunView] = ()) -> RunComparison:
    """Judge ``new`` against ``old``, point by point, and experiment by experiment.

    ``earlier``: other runs; from those of the machine of ``new`` that are not later than ``old`` it
    is learned what two runs differ by anyway.

    Raises DataError for damaged experiments, and where only one run has any.
    """
    trainings, unlike = compare_trainings(old, new), differences(old, new)
    if trainings is not None:  # compared as such, not number by number
        old, new = (
            replace(view, records=tuple(r for r in view.records if r.benchmark != BENCHMARK))
            for view in (old, new)
        )
    values = _WorkerValues(old), _WorkerValues(new)
    pairs = [replace(pair, reason=_why_not(pair, *values)) for pair in _pairs(old, new)]
    fair = _one_pair_per_time(pair for pair in pairs if not pair.reason)
    history = earlier_values(runs_to_learn_from(old, new, earlier))
    sides = [(pair.record, pair.record.device_index) for pair in fair]
    margins = margins_for([(r, history.get((r.key, index), ())) for r, index in sides])
    judged = _judge(fair, margins, *values, _scatters(pairs, *values))
    unjudged_pairs = _other_versions([pair for pair in pairs if pair.reason])
    side_by_side = _side_by_side(unjudged_pairs)
    shown_ids = {id(record) for pair in side_by_side for record in (pair.old, pair.new)}
    # One entry a case and device: a case that failed has its first metric only.
    listed = list(
        {_case_and_device(pair.record): pair for pair in reversed(unjudged_pairs)}.values()
    )[::-1]
    return RunComparison(
        old=old.name,
        new=new.name,
        differences=unlike,
        judged=tuple(sorted(judged, key=lambda case: (_ORDER[case.change], -abs(case.gain - 1.0)))),
        unjudged=tuple(pair for pair in listed if id(pair.record) not in shown_ids),
        side_by_side=tuple(side_by_side),
        patterns=tuple(_patterns(find_patterns(old), find_patterns(new))),
        trainings=trainings,
    )


def _patterns(old: Sequence[Pattern], new: Sequence[Pattern]) -> Iterator[tuple[str, Pattern]]:
    """Yield each pattern once: one that both runs have in the same words is listed for both."""
    before = {(pattern.id, pattern.subject): pattern for pattern in old}
    for pattern in new:
        first = before.pop((pattern.id, pattern.subject), None)
        if first is not None and first.text == pattern.text:
            yield "both", pattern
            continue
        if first is not None:
            yield "old", first
        yield "new", pattern
    yield from (("old", pattern) for pattern in before.values())


# ---- which points meet


def _pairs(old: RunView, new: RunView) -> list[Pair]:
    """Return every measured case of either run, in the order of the new one."""
    sides = [_by_key(old), _by_key(new)]
    pairs: list[Pair] = []
    for key in dict.fromkeys([*sides[1], *sides[0]]):
        first, second = sides[0].get(key, {}), sides[1].get(key, {})
        if len(first) == len(second) == 1:  # one card each: it may sit in another slot
            pairs.append(Pair(old=next(iter(first.values())), new=next(iter(second.values()))))
            continue
        indexes = dict.fromkeys([*second, *first])
        pairs += [Pair(old=first.get(index), new=second.get(index)) for index in indexes]
    return pairs


def _by_key(view: RunView) -> dict[_Identity, dict[int | None, Record]]:
    records_by_key: dict[_Identity, dict[int | None, Record]] = {}
    for row in rows(view):
        if row.measured is not None:
            records_by_key.setdefault(row.key, {})[row.index] = row.measured
    return records_by_key


def _one_pair_per_time(pairs: Iterable[Pair]) -> list[Pair]:
    """Return one pair for all that rest on the same workers' times, as B/s and FLOP/s of a call."""
    first_pairs: dict[_Identity, Pair] = {}
    for pair in pairs:
        ids = [side.derived.ids for side in (pair.old, pair.new) if side and side.derived]
        first_pairs.setdefault(tuple(ids) or (pair.record.id,), pair)
    return list(first_pairs.values())


# ---- what the workers say


class _WorkerValues:
    """The fresh workers' values of a run's points: higher is more of the point's metric."""

    def __init__(self, view: RunView) -> None:
        self._attempts = attempts(view)
        clean = (
            attempt
            for attempt in self._attempts.values()
            if attempt.disturbed is None and "search" not in attempt.conditions
        )
        self._of_case = grouped(clean, _case_and_device)

    def used(self, point: Record) -> list[float]:
        """Return the values of the workers that the point names."""
        ids = point.derived.ids if point.derived is not None else ()
        used_attempts = [self._attempts[name] for name in ids if name in self._attempts]
        return _values(used_attempts, point)

    def clean(self, point: Record) -> list[float]:
        """Return the values of all workers that saw a quiet machine, outvoted ones included."""
        return _values(self._of_case.get(_case_and_device(point), ()), point)


def _case_and_device(record: Record) -> _Identity:
    """Return what the attempts at a point share with it: case and device."""
    case = tuple(sorted(record.case.items()))
    device = (record.device, record.device_count, record.device_index)
    return (record.benchmark, record.version, case, *device)


def _values(worker_attempts: Iterable[Record], point: Record) -> list[float]:
    """Return the workers' values: times, or 1/t for a rate, since the amount is the case's."""
    shortest, longest = _PLAUSIBLE_TIMES
    times = [
        attempt.value
        for attempt in worker_attempts
        if attempt.value and shortest < attempt.value < longest
    ]
    return times if point.metric == "time" else [1.0 / time for time in times]


def _scatters(pairs: Iterable[Pair], old: _WorkerValues, new: _WorkerValues) -> dict[bool, Scatter]:
    """Return the scatter of workers on disks (True) and elsewhere (False): disks wander far more.

    From every case that both runs measured twice, the noisy ones included.
    """
    points: dict[bool, list[tuple[list[float], list[float]]]] = {False: [], True: []}
    for pair in _one_pair_per_time(pairs):
        if pair.old is not None and pair.new is not None:
            values = old.clean(pair.old), new.clean(pair.new)
            if min(map(len, values)) >= _WORKERS:
                points[pair.is_on_disk].append(values)
    return {on_disk: shared_scatter(sides) for on_disk, sides in points.items()}


# ---- what is judged


def _why_not(pair: Pair, old: _WorkerValues, new: _WorkerValues) -> str:
    """Return why a pair must not be judged; empty where it may be."""
    if pair.old is None:
        return "only in the new run"
    if pair.new is None:
        return "only in the old run"
    for side, point, values in (("old", pair.old, old), ("new", pair.new, new)):
        if (note := reason_not_judged(point)) is not None:
            return f"{side}: {note}"
        num_workers = len(values.used(point))
        if num_workers < _WORKERS:
            return f"{side}: {num_workers} workers' values in the run, {_WORKERS} are needed"
    return ""


def _judge(
    pairs: Sequence[Pair],
    margins: Sequence[RunMargin],
    old: _WorkerValues,
    new: _WorkerValues,
    scatters: dict[bool, Scatter],
) -> list[JudgedCase]:
    comparisons = [
        compare(old.used(pair.old), new.used(pair.new), scatters[pair.is_on_disk])
        for pair in pairs
        if pair.old is not None and pair.new is not None
    ]
    better = [pair.more_is_better for pair in pairs]
    p_of_change = p_values(
        [
            ComparedCase(
                record=pair.record, comparison=comparison, margin=margin, old=pair.old.value
            )
            for comparison, margin, pair in zip(comparisons, margins, pairs, strict=True)
            if pair.old is not None and pair.old.value
        ]
    )
    behind = [_behind_siblings(place, pairs, comparisons) for place in range(len(pairs))]
    is_behind = [fallen.p_value < p for p, fallen in zip(p_of_change, behind, strict=True)]
    comparisons = [
        replace(comparison, p_value=min(p, fallen.p_value))  # its interval is of what was measured
        for comparison, p, fallen in zip(comparisons, p_of_change, behind, strict=True)
    ]
    decide = [
        replace(comparison, ratio=fallen.ratio) if falls else comparison
        for comparison, falls, fallen in zip(comparisons, is_behind, behind, strict=True)
    ]
    changes = judge_changes(list(zip(decide, better, strict=True)))
    called = sum(p <= 1.0 - CONFIDENCE for _, p in changes)
    # One more call would have needed this p-value at the most.
    level = (1.0 - CONFIDENCE) * min(called + 1, len(comparisons)) / max(len(comparisons), 1)
    return [
        JudgedCase(
            pair=pair,
            change=change,
            comparison=comparison,
            adjusted_p=p,
            smallest_visible=smallest_visible(comparison, level, margin.value),
            margin=margin,
            behind_siblings=fallen.ratio if falls and change is Change.WORSE else None,
        )
        for pair, margin, comparison, (change, p), falls, fallen in zip(
            pairs, margins, comparisons, changes, is_behind, behind, strict=True
        )
    ]


_SIBLINGS = 3
"""Other cards whose common change says by how much the whole run is shifted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Behind:
    """A card's change over that of the others of its run, where it fell behind them."""

    ratio: float = 1.0
    p_value: float = 1.0


def _behind_siblings(
    place: int, pairs: Sequence[Pair], comparisons: Sequence[Comparison]
) -> _Behind:
    """Return how far a GPU's change is behind the median change of the others of its model.

    The p-value counts twice, since it is a second look at the same card.
    """
    pair = pairs[place]
    others = [
        math.log(comparisons[other].ratio)
        for other, sibling in enumerate(pairs)
        if other != place and sibling.record.key == pair.record.key
    ]
    if pair.record.device_index is None or len(others) < _SIBLINGS:
        return _Behind()
    usual = median(others)
    ratio = comparisons[place].ratio / math.exp(usual)
    if (ratio > 1.0) == pair.more_is_better:
        return _Behind()
    p_value = 2.0 * p_beyond(comparisons[place], usual, run_to_run().margin_of("sibling"))
    return _Behind(ratio=ratio, p_value=min(1.0, p_value))


_ORDER = {Change.WORSE: 0, Change.BETTER: 1, Change.CANNOT_TELL: 2, Change.SAME: 3}
"""Worse before better before the rest."""


# ---- what is not


def _side_by_side(unjudged_pairs: Iterable[Pair]) -> list[Pair]:
    """Return values of one case on different device models, host beside host, GPU beside GPU.

    Of several devices of one model the first stands for all.
    """
    old: dict[_Identity, Record] = {}
    new: dict[_Identity, Record] = {}
    for pair in unjudged_pairs:
        if pair.old is None or pair.new is None:
            side = new if pair.old is None else old
            case = tuple(sorted(pair.record.case.items()))  # on whatever device
            kind = (pair.record.device_count, pair.record.device_index is None)
            named = (pair.record.benchmark, pair.record.version, pair.record.metric)
            side.setdefault((case, *kind, *named), pair.record)
    new_pairs = [Pair(old=old[case], new=record) for case, record in new.items() if case in old]
    return [p for p in new_pairs if p.ratio and p.old and p.new and p.old.device != p.new.device]


def _other_versions(unjudged_pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs; where benchmark versions differ, with that as the reason."""

    def place(pair: Pair) -> _Identity:
        return pair.record.metric, *_case_and_device(pair.record.replace(version=1))

    groups, explained_pairs = grouped(unjudged_pairs, place), []
    for pair in unjudged_pairs:
        versions = sorted({pair_of_case.record.version for pair_of_case in groups[place(pair)]})
        names = " and ".join(map(str, versions))
        why = f"version {names} of the benchmark: different versions are never compared"
        explained_pairs.append(replace(pair, reason=why) if len(versions) > 1 else pair)
    return explained_pairs


# ---- for JSON


def to_dict(comparison: RunComparison) -> dict[str, Any]:
    """Return the object that ``compare --json`` prints: everything, in base units."""
    trainings = comparison.trainings
    return {
        "old": comparison.old,
        "new": comparison.new,
        "result": "worse" if comparison.is_worse else "not worse",
        "counts": {change.value: comparison.count(change) for change in Change},
        "differences": [asdict(difference) for difference in comparison.differences],
        "judged": [
            {
                **_pair_dict(case.pair),
                "change": case.change.value,
                "ratio": case.comparison.ratio,
                "interval": [case.comparison.interval.low, case.comparison.interval.high],
                "confidence": case.comparison.interval.confidence,
                "p_value": case.comparison.p_value,
                "adjusted_p": case.adjusted_p,
                "smallest_visible": case.smallest_visible,
                "behind_siblings": case.behind_siblings,
            }
            for case in comparison.judged
        ],
        "side_by_side": [
            {**_pair_dict(pair), "ratio": pair.ratio} for pair in comparison.side_by_side
        ],
        "experiments": trainings
        and {
            "compared": [asdict(speedup) for speedup in trainings.compared],
            "alone": [{"name": name, "reason": reason} for name, reason in trainings.alone],
        },
        "patterns": [{"run": run, **asdict(pattern)} for run, pattern in comparison.patterns],
        "unjudged": [{**_pair_dict(pair), "reason": pair.reason} for pair in comparison.unjudged],
    }


_CASE_KEYS = ("benchmark", "version", "metric", "unit", "device_count")
_SIDE_KEYS = ("id", "value", "device", "device_index", "status", "disturbed")


def _pair_dict(pair: Pair) -> dict[str, Any]:
    record, sides = pair.record, (("old", pair.old), ("new", pair.new))
    return {
        **{key: getattr(record, key) for key in _CASE_KEYS},
        "case": dict(record.case),
        **{name: side and {key: getattr(side, key) for key in _SIDE_KEYS} for name, side in sides},
    }


# ---- what differs about machines, settings and software

# What bears on speed, in the order in which it is asked about.
_FACTS = {
    "host": ("host", "hostname"),
    "CPU": ("cpu", "model"),
    "threads allowed": ("cpu", "usable_threads"),
    "CPU quota": ("cpu", "quota_cpus"),
    "memory": ("memory", "total_bytes"),
    "container": ("host", "container"),
    "virtualization": ("host", "virtualization"),
    "OS": ("host", "os"),
    "kernel": ("host", "kernel"),
    "driver": ("software", "nvidia_driver"),
    "ROCm": ("software", "rocm"),
    "torch": ("software", "torch"),
    "torch's CUDA": ("software", "torch_cuda"),
    "torch's HIP": ("software", "torch_hip"),
    "cuDNN": ("software", "cudnn"),
    "NCCL": ("software", "nccl"),
    "Python": ("software", "python"),
}
_GPU_FACTS = {
    "GPU": ("name",),
    "power limit": ("power_limit_w",),
    "ECC": ("ecc",),
    "PCIe generation": ("link", "max_generation"),
    "PCIe lanes": ("link", "max_width"),
    "persistence": ("persistence",),
}
_UNKNOWN: Mapping[str, str] = {"missing": "not in the file"}


def differences(old: RunView, new: RunView) -> tuple[Difference, ...]:
    """Return the facts that differ, the machine first; the digest alone where no fact does."""
    sides, machines = (old, new), (old.machine, new.machine)
    facts: list[_Fact] = [("measured devices", *(_points(view, "device") for view in sides))]
    facts += [
        (fact_name, *(_fact_at(machine, *path) for machine in machines))
        for fact_name, path in _FACTS.items()
    ]
    gpus = [_fact_at(machine, "gpus") for machine in machines]
    if all(isinstance(gpu_list, list | tuple) for gpu_list in gpus):
        facts.append(("number of GPUs", *map(len, gpus)))
        pairs = list(zip(*gpus, strict=False))
        for fact_name, path in _GPU_FACTS.items():
            facts += [(fact_name, *(_fact_at(gpu, *path) for gpu in pair)) for pair in pairs]
    for kind, table in (("package", "packages"), ("variable", "environment")):
        first, second = (_fact_at(machine, "software", table) for machine in machines)
        if isinstance(first, Mapping) and isinstance(second, Mapping):
            facts += [  # one that only one run has is none in the other; torch has its own line
                (f"{kind} {name}", first.get(name), second.get(name))
                for name in dict.fromkeys([*first, *second])
                if name != "torch" and not _is_unknown(first) and not _is_unknown(second)
            ]
    for fact_name, key in (("trainrig", "trainrig"), ("budget", "budget_s")):
        facts.append((fact_name, *(_fact_at(view.config, key) for view in sides)))
    digests = ("environment digest", *(_points(view, "environment") for view in sides))
    return _different(facts) or _different([digests])


def is_same_run(old: RunView, new: RunView) -> bool:
    """Return whether both are one run, or copies of it: one of them may have been resumed since."""
    names = [view.config.get("name") for view in (old, new)]
    return names[0] is not None and names[0] == names[1]


def _points(view: RunView, field: str) -> str:
    """Return the values of a field of the run's points."""
    values = {getattr(record, field) for record in view.records if record.is_point}
    return ", ".join(sorted(value for value in values if value))


def _different(facts: Iterable[_Fact]) -> tuple[Difference, ...]:
    """Return the facts that both runs know and that differ; those of several GPUs once."""
    known_differences = [
        Difference(what=fact_name, old=_text(fact_name, old), new=_text(fact_name, new))
        for fact_name, old, new in facts
        if old != new and not _is_unknown(old) and not _is_unknown(new)
    ]
    return tuple(
        dict.fromkeys(
            difference for difference in known_differences if difference.old != difference.new
        )
    )


def _fact_at(value: object, *path: str) -> Any:
    """Return the value at ``path``; the mark of the unknown where there is none."""
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return _UNKNOWN
        value = value[name]
    return value


def _is_unknown(value: object) -> bool:
    return value == "" or (isinstance(value, Mapping) and "missing" in value)


def _text(fact_name: str, value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int | float):
        match fact_name:
            case "memory":
                return format_memory(value)
            case "budget":
                return format_time(value)
            case "power limit":
                return format_quantity(value, "W")
    return "none" if value is None else str(value)
