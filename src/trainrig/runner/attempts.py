"""What a run has measured so far, by case and device, also of an earlier sitting.

A run that is resumed takes up the attempts on its disk.  What is settled is not
measured again; what failed, timed out or was disturbed is still open.
"""

from __future__ import annotations

from collections.abc import Iterable

from trainrig.measure.points import point_records
from trainrig.record import Record, Status
from trainrig.runner.plan import Task


class Attempts:
    """The attempts at each task of a run."""

    def __init__(self) -> None:
        """Start with none."""
        self._known: dict[tuple[object, ...], list[Record]] = {}

    def take_up(self, records: Iterable[Record]) -> None:
        """Count the attempts that an earlier sitting left; looks of a search are none."""
        for record in records:
            if record.attempt is not None and "search" not in record.conditions:
                self._known.setdefault(_identity_of(record), []).append(record)

    def of(self, task: Task) -> list[Record]:
        """The attempts at a task, in order; what is appended to the list is kept."""
        return self._known.setdefault(_identity(task), [])

    def has_value(self, task: Task) -> bool:
        """Whether any worker measured it."""
        return any(record.status is Status.OK for record in self.of(task))

    def is_disturbed(self, task: Task) -> bool:
        """Whether it has a value that must not be judged."""
        return self.has_value(task) and point_records(self.of(task))[0].disturbed is not None

    def is_settled(self, task: Task) -> bool:
        """Whether there is nothing left to measure: a quiet value, or a wrong answer."""
        if any(record.is_wrong_answer for record in self.of(task)):
            return True
        return self.has_value(task) and not self.is_disturbed(task)


def _identity(task: Task) -> tuple[object, ...]:
    where = (task.target.name, task.target.index, task.count)
    return (*where, task.family, *sorted(task.case.items()))


def _identity_of(attempt: Record) -> tuple[object, ...]:
    where = (attempt.device, attempt.device_index, attempt.device_count)
    return (*where, attempt.benchmark, *sorted(attempt.case.items()))
