"""Attempts of each task so far: whether they suffice, and how long others will take.

A wrong answer is, and a quiet value that says whether its device does what is expected.  What
failed, timed out, was noisy or decides nothing is still open: also in a run that is resumed.

`Pace` goes by the nearest smaller case of the same kind: that overstates cases that launches bound,
and is close where it matters, at the large ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from trainrig.analysis.judge import behind_siblings
from trainrig.analysis.rows import join
from trainrig.benchmarks.spec import Ability, Role, ability, role_of
from trainrig.measure.aggregate import ScatterClass, point_records, scatters
from trainrig.process.worker import Reply
from trainrig.record import Case, Record, Status, dtype_of
from trainrig.runner.plan import Task
from trainrig.scatter import Scatter
from trainrig.stats import median

Key = tuple[object, ...]


def _identity(
    device: str | None, index: int | None, count: int, name: str, case: Case
) -> tuple[object, ...]:
    """Return the key that attempts at one task share, whatever the order of its case's fields."""
    return (device, index, count, name, *sorted(case.items()))


def key_of(task: Task) -> Key:
    """Return the key of a task that its attempts share."""
    device_key = (task.target.name, task.target.index, task.count)
    return _identity(*device_key, task.benchmark, task.case)


def identity_of(point: Record) -> Key:
    """Return the key that a point shares with its task."""
    device_key = (point.device, point.device_index, point.num_devices)
    return _identity(*device_key, point.benchmark, point.case)


class Attempts:
    """The attempts at each task, in their order; of a training its points."""

    def __init__(self, expected: Mapping[Any, Record]) -> None:
        """``expected`` is by key and device of a point."""
        self.expected = expected
        self._found: dict[Key, list[Record]] = defaultdict(list)
        self._scatters: dict[ScatterClass, Scatter] | None = None
        self._num_added = 0

    def resume_from(self, records: Iterable[Record]) -> None:
        """Go on from the records of a run that was cut off; probes of a search are skipped."""
        for record in records:
            is_whole_step = record.metric == "time" and role_of(record.benchmark) is Role.STEP
            if (record.attempt is not None or is_whole_step) and "search" not in record.conditions:
                self._found[identity_of(record)].append(record)
        self._scatters = None

    def at(self, task: Task) -> Sequence[Record]:
        """Return a task's attempts in order."""
        return self._found[key_of(task)]

    def add(self, task: Task, record: Record) -> None:
        """Keep what one more worker found of a task; of a training its point."""
        self._found[key_of(task)].append(record)
        self._num_added += 1
        self._scatters = None

    def points(self, task: Task) -> tuple[Record, ...]:
        """Combine the attempts at a task into points, by the workers' scatter known so far."""
        scatter_by_class = self._scatters
        if scatter_by_class is None:
            num_seen = self._num_added
            groups = [group for group in list(self._found.values()) if group]
            scatter_by_class = scatters(group for group in groups if group[-1].attempt is not None)
            if num_seen == self._num_added:  # devices are measured side by side, each by a thread
                self._scatters = scatter_by_class
        return point_records(self.at(task), scatter_by_class)

    def have_value(self, task: Task | None = None) -> bool:
        """Return whether any worker measured ``task``, or any task at all if None."""
        measured = chain(*self._found.values()) if task is None else self.at(task)
        return any(record.status is Status.OK for record in measured)

    def expected_of(self, point: Record) -> Record | None:
        """Return the prediction written before the task was measured."""
        return self.expected.get((point.key, point.device_index))

    def are_over(self, task: Task) -> bool:
        """Return whether a task is finished: a wrong answer, or a quiet and decided value."""
        attempts = self.at(task)
        if any(record.is_wrong_answer for record in attempts):
            return True
        if not self.have_value(task):
            return False
        point = attempts[-1]  # a training's record is its point
        if point.attempt is not None:
            point = self.points(task)[0]
        return point.disturbed is None and not self.are_undecided(task)

    def are_undecided(self, task: Task) -> bool:
        """Return whether a task has a value too uncertain to compare with its expected band.

        Where nothing is expected, it is enough that as many workers answered as make a point.
        """
        attempts = self.at(task)
        if not self.have_value(task) or attempts[-1].attempt is None:
            return False
        point = self.points(task)[0]
        expected = self.expected_of(point)
        if expected is None or expected.interval is None:
            return sum(r.status is Status.OK for r in attempts) < task.num_workers
        return ability(point, expected.interval) is Ability.UNDECIDED

    def seem_below(self, task: Task) -> bool:
        """Return whether a task's point is quiet and below its band after one round alone."""
        attempts = self.at(task)
        if not self.have_value(task) or attempts[-1].attempt is None:
            return False
        point = self.points(task)[0]
        expected = self.expected_of(point)
        band = expected.interval if expected is not None else None
        return point.is_usable and point.is_below(band) and (point.rounds or 1) < 2

    def behind_siblings(self, tasks: Iterable[Task]) -> list[Task]:
        """Return tasks that, after one round alone, put a device behind others of its model."""
        device_points = [
            task
            for task in tasks
            if task.target.is_gpu
            and task.count == 1
            and self.have_value(task)
            and self.at(task)[-1].attempt is not None
        ]
        points = [point for task in device_points for point in self.points(task)]
        behind = behind_siblings(join(points), chain(*map(self.at, device_points)))
        laggards = {
            _identity(row.device, row.index, row.count, row.benchmark, row.case)
            for _, row in chain(*behind.values())
        }
        return [
            t for t in device_points if key_of(t) in laggards and len(self.at(t)) <= t.num_workers
        ]


# ---- how long cases take

# Before anything is known: work units (FLOPs or bytes) a second, as a modest device has them.  A
# guess that is too slow would skip a case for nothing; one too fast costs its hard time limit.
_FIRST_GUESS = {False: 4e10, True: 2e13}
# Before any layer or step was seen: it reaches this share of its dtype's products.
_OF_PRODUCTS = 0.5


class Pace:
    """Learns the speed of each kind of case on each device."""

    def __init__(self) -> None:
        """Start knowing nothing."""
        self._seen: dict[tuple[str, ...], list[tuple[float, float]]] = {}

    def learn(self, task: Task, reply: Reply) -> None:
        """Remember how long one call of a case took."""
        if reply.samples:
            self._seen.setdefault(_kind(task), []).append((_units(task), median(reply.samples)))

    def call_time(self, task: Task) -> float:
        """Return the projected seconds of one call."""
        units = _units(task)
        call_times = sorted(self._seen.get(_kind(task), ()))
        smaller = [pair for pair in call_times if pair[0] <= units] or call_times[:1]
        if not smaller:
            return units / self._guess(task)
        known_units, seconds = smaller[-1]
        return seconds * max(units / known_units, 1.0)

    def _guess(self, task: Task) -> float:
        """Estimate the work units per second of a kind of task not measured yet."""
        if task.spec.role in (Role.BLOCK, Role.STEP):
            device, dtype = task.target.torch_device, str(dtype_of(task.case))
            rates = [
                units / seconds
                for (device_name, name, kind, *_), call_times in list(self._seen.items())
                if (device_name, kind) == (device, dtype) and role_of(name) is Role.PRODUCT
                for units, seconds in call_times
            ]
            if rates:
                return _OF_PRODUCTS * max(rates)
        return _FIRST_GUESS[task.target.is_gpu]

    def overhead(self, task: Task) -> float:
        """Projected seconds of everything but the sampling: operands, checks, first calls."""
        spec, cost = task.spec, task.spec.cost
        if spec.role is Role.STEP:
            return spec.launch_seconds
        fill = spec.memory(task.case) / cost.fill[task.target.is_gpu]
        calls = cost.calls * self.call_time(task) if cost.calls else 0.0
        return cost.fixed + cost.first_case(task.case) + fill + calls


def _kind(task: Task) -> tuple[str, ...]:
    """Cases whose speeds resemble each other."""
    words = [str(task.case.get(name)) for name in ("op", "direction", "memory", "code")]
    return (task.target.torch_device, task.benchmark, str(dtype_of(task.case)), *words)


def _units(task: Task) -> float:
    work = task.spec.work(task.case)
    return float(max(work.flops, work.num_bytes))
