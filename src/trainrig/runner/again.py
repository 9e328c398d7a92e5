"""Rules for what to measure again in the remaining time, in order of priority: one table.

The first rule counts that names a task which fits the time.  Each round is of fresh workers, one
after the other, and ends for a task as soon as nothing is left to measure of it; a task that other
values put in doubt has a whole round, quiet as its own may be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from trainrig.analysis.waterfall import exceeded_points
from trainrig.benchmarks.spec import Role
from trainrig.record import Record
from trainrig.runner.attempts import Attempts, identity_of, key_of
from trainrig.runner.plan import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProgress:
    """State of a run from which the repeat rules choose tasks."""

    attempts: Attempts
    tasks: Sequence[Task]
    """Planned tasks that may be measured again."""
    records: Callable[[], Sequence[Record]]
    """Records the run has written."""

    @property
    def required(self) -> list[Task]:
        """Return the tasks that the verdict needs."""
        return [task for task in self.tasks if task.planned.required]

    def noisy(self, tasks: Iterable[Task]) -> list[Task]:
        """Return tasks whose value may still be improved by further workers."""
        measured_tasks = [task for task in tasks if self.attempts.have_value(task)]
        return [task for task in measured_tasks if not self.attempts.are_over(task)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatRule:
    """One reason to measure tasks again."""

    why: str
    tasks: Callable[[RunProgress], Sequence[Task]]
    rounds: int
    """Most repeats of one task by this rule."""
    needs_whole_round: bool = False
    """True if the rule doubts quiet values too, and so needs a whole round of workers."""


def _missing(progress: RunProgress) -> list[Task]:
    return [task for task in progress.required if not progress.attempts.at(task)]


def _undecided(progress: RunProgress) -> list[Task]:
    return [task for task in progress.required if progress.attempts.are_undecided(task)]


def _seem_below(progress: RunProgress) -> list[Task]:
    return [task for task in progress.tasks if progress.attempts.seem_below(task)]


def _behind(progress: RunProgress) -> list[Task]:
    return progress.attempts.behind_siblings(progress.tasks)


def _noisy_required(progress: RunProgress) -> list[Task]:
    return progress.noisy(progress.required)


def _exceeded(progress: RunProgress) -> list[Task]:
    of_key = {key_of(task): task for task in progress.tasks}
    keys = map(identity_of, exceeded_points(progress.records()))
    return [of_key[key] for key in keys if key in of_key]


def _noisy(progress: RunProgress) -> list[Task]:
    return progress.noisy(task for task in progress.tasks if not task.planned.required)


def _skipped(progress: RunProgress) -> list[Task]:
    return [task for task in progress.tasks if not progress.attempts.at(task)]


_DECIDING = (
    RepeatRule(why="required and not measured", tasks=_missing, rounds=2),
    RepeatRule(why="required and not decided", tasks=_undecided, rounds=2),
    RepeatRule(why="below its band", tasks=_seem_below, rounds=1, needs_whole_round=True),
    RepeatRule(why="behind its siblings", tasks=_behind, rounds=1, needs_whole_round=True),
)
VERDICT = (*_DECIDING, RepeatRule(why="required and noisy", tasks=_noisy_required, rounds=1))
"""Rules for the points a verdict rests on, applied before optional points begin."""
RULES = (
    *_DECIDING,
    RepeatRule(why="required and noisy", tasks=_noisy_required, rounds=2),
    RepeatRule(
        why="what a layer or a step exceeds", tasks=_exceeded, rounds=2, needs_whole_round=True
    ),
    RepeatRule(why="noisy points", tasks=_noisy, rounds=1),
    RepeatRule(why="what there was no time for", tasks=_skipped, rounds=1),
    RepeatRule(why="points that stay noisy", tasks=_noisy, rounds=1),
)


class RepeatPlan:
    """Walks through rules; knows how often each task was measured again for each."""

    def __init__(self, rules: Sequence[RepeatRule], fits: Callable[[Task], bool]) -> None:
        """``fits``: whether a task can be measured in the time that is left."""
        self._rules, self._fits = rules, fits
        self._rounds: Counter[tuple[str, object]] = Counter()

    def rounds(
        self, progress_now: Callable[[], RunProgress]
    ) -> Iterator[tuple[RepeatRule, list[Task]]]:
        """Yield the next rule and its tasks while there is one; each is a round."""
        while (next_round := self._next(progress_now())) is not None:
            rule, tasks = next_round
            self._rounds.update((rule.why, key_of(task)) for task in tasks)
            yield rule, tasks

    def _next(self, progress: RunProgress) -> tuple[RepeatRule, list[Task]] | None:
        for rule in self._rules:
            tasks = [
                task
                for task in rule.tasks(progress)
                if self._rounds[rule.why, key_of(task)] < rule.rounds and self._fits(task)
            ]
            if tasks:
                return rule, tasks
        return None


def may_be_repeated(task: Task) -> bool:
    """Return whether fresh workers can measure a task again, alone."""
    is_own = task.spec.role not in (Role.STEP, Role.COLLECTIVE)
    return is_own and task.count == 1 and task.planned.skip is None and task.fits_memory
