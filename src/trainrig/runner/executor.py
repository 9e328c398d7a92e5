"""Runs planned tasks within their time and appends what came out.

Each block has two fresh workers per device, started together and used in turn: every case is
measured in the first, then in the second, and becomes a point at once, so that a run that is cut
off holds whole points.  Devices work side by side; what loads what they share (host memory, links)
is measured on one after the other, and what is of several devices at once comes last.  Cases that
would not fit the time are recorded as skipped.

What time is left goes to what is worth measuring again, in new workers, by the table of `again`.

A run that is resumed goes on from the attempts on its disk.  What is decided is not
measured again; what failed, timed out or was noisy is still open.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainrig.benchmarks.spec import WORKERS, Role
from trainrig.measure import noise
from trainrig.measure.aggregate import Subject, attempt_record, skipped_record
from trainrig.process.worker import Reply, Request, Worker
from trainrig.record import Record, Status, case_label
from trainrig.runner.again import (
    RULES,
    VERDICT,
    RepeatPlan,
    RepeatRule,
    RunProgress,
    may_be_repeated,
)
from trainrig.runner.attempts import Attempts, Pace, key_of
from trainrig.runner.crew import Crew, MakeWorker, Teams
from trainrig.runner.expectations import limit_of_point
from trainrig.runner.plan import Block, Task
from trainrig.runner.progress import Progress, Watcher, describe
from trainrig.runner.sentinel import Sentinel
from trainrig.runner.targets import Target
from trainrig.store import RunWriter, read_run
from trainrig.units import format_time

_MIN_TIME = 0.05
_MAX_TIME = 0.4
# A slow case may take this many calls' time beyond the ordinary, to get its samples, ...
_SLOW_CALLS = 12.0
# ... if that is no longer than this; else it gets a few.
_SLOW_TIME = 2.0
_GLANCE_CALLS = 3.0
# A case that would eat more than this of its block is skipped unless it is required.
_GREEDY = 0.15
# Projections overstate: what is required begins in that much less time.
_OVERSTATED = 1.3
# Seconds that a run may take beyond its time until it has one value: on a busy machine loading
# torch may take all of a small budget, and a run without any number is worth nothing.
_PATIENCE = 6.0
# Workers are started again where they have time even if they load by this slower than before.
_SLOWER_LOAD = 1.3

_UNTIMED: Mapping[str, Any] = {"settings": {}, "timeout": 0.0}
"""Id of a request that no worker is sent."""

_SETTLED = ("interval", "confidence", "disturbed")
"""Fields of a point that are computed from the scatter of its class."""

MEASURED = "already measured in this run"
_NO_TURN = "time budget used up"

Train = Callable[[Task, float, int], Record]
"""(task, its end on time.monotonic, cases that are over) → the point of a training."""
Exchange = Callable[[Sequence[Task], float, Callable[[Task, Reply], None]], None]
"""(tasks, their end on time.monotonic, what takes each one's reply): ranks of their own."""


@dataclass(slots=True, kw_only=True)
class Round:
    """A round of measuring again."""

    rule: RepeatRule
    total: int
    done: int = 0


class Executor:
    """Runs blocks of tasks into an open run."""

    def __init__(
        self,
        run: RunWriter,
        *,
        environment: str,
        deadline: float,
        watch: Watcher,
        claims: Sequence[Record] = (),
        expected: Mapping[Any, Record] = MappingProxyType({}),
        make_worker: MakeWorker | None = None,
        train: Train | None = None,
        exchange: Exchange | None = None,
        early: Sequence[Worker] = (),
        sentinel: Sentinel | None = None,
    ) -> None:
        """``deadline`` is on time.monotonic; ``expected`` is by key and device of a point.

        ``early`` are workers for the host that were started while the machine was still
        looked at; the first pair that is needed there is taken from them.  ``train`` and
        ``exchange`` measure what workers do not.
        """
        self._patience = _PATIENCE
        self._run = run
        self._environment = environment
        self._deadline = deadline
        self._watch = watch
        self._claims = claims
        self._crew = Crew(make_worker or self._start_worker, run.log_path, early)
        self._train = train
        self._exchange = exchange
        self._sentinel = sentinel
        self._pace = Pace()
        self._attempts = Attempts(expected)
        self._telemetry = TelemetryWriter(run)
        self._round: Round | None = None
        self._lock = threading.Lock()
        self._counted: set[object] = set()
        self._begun: dict[object, Task] = {}  # the tasks of the blocks so far
        self._written: dict[object, Record] = {}  # the last first point of each of them
        self.done = 0
        self.total = 0

    def resume_from(self, records: Iterable[Record]) -> None:
        """Go on from the records of a run that was cut off."""
        self._attempts.resume_from(records)
        if self._attempts.have_value():
            self._patience = 0.0

    def run_block(self, block: Block, seconds: float) -> None:
        """Run a block's tasks within ``seconds``; a device that does not come up is recorded."""
        end = min(time.monotonic() + seconds, self._deadline)
        self._begun |= {key_of(task): task for task in block.tasks}
        tasks = self._alive(self._unknown(block.tasks))
        if not tasks:
            return
        if all(task.spec.role is Role.COLLECTIVE for task in tasks):
            self._run_exchanges(block.name, tasks, end)
            return
        is_training = all(task.spec.role is Role.STEP for task in tasks)
        if not is_training and end - time.monotonic() < self._crew.load_time:
            for task in tasks:
                self.skip(task, _NO_TURN)
            return
        self._emit(block.name, level="stage")
        if is_training:
            self._run_trainings(tasks, end)
            return
        block = replace(block, tasks=tuple(tasks))
        stop = threading.Event()
        with ThreadPoolExecutor(len(block.targets)) as threads, ExitStack() as stack:
            number = max(task.num_workers for task in tasks)
            self._emit(f"starting workers for {block.name}", level="running")
            late = end + self._patience
            teams = self._crew.assemble(block.name, block.targets, number, late, stack)
            stack.callback(stop.set)  # before they are stopped: what they say then is no answer
            is_whole = all(len(teams.get(t.torch_device, ())) == number for t in block.targets)
            ready = []
            for task in self._alive(tasks):
                if task.target.torch_device in teams and (is_whole or task.count == 1):
                    ready.append(task)
                else:
                    self.skip(task, "the time for it was over before its worker was ready")
            self._look(block.targets, teams, threads)
            self._run_in_parts(ready, teams, end, threads, stop)
            self._look(block.targets, teams, threads)

    def _look(self, targets: Sequence[Target], teams: Teams, threads: ThreadPoolExecutor) -> None:
        """Measure the sentinel case on the devices of a block, but for disks."""
        if self._sentinel is not None:
            chosen = [t for t in targets if t.torch_device in teams and not t.is_disk]
            workers = [(target, teams[target.torch_device][0]) for target in chosen]
            self._sentinel.look(workers, threads, self._deadline)

    def _unknown(self, tasks: Iterable[Task]) -> list[Task]:
        """Return tasks still to be measured: no worker is started where all is known."""
        unmeasured = []
        in_doubt = self._round is not None and self._round.rule.needs_whole_round
        for task in tasks:
            if self._attempts.are_over(task) and not in_doubt:
                self.skip(task, MEASURED)
            elif task.planned.skip is not None:
                self.skip(task, task.planned.skip)
            else:
                unmeasured.append(task)
        return unmeasured

    def _run_trainings(self, tasks: Sequence[Task], end: float) -> None:
        """Run tasks that start their own processes; a required one starts at any time."""
        for task in tasks:
            left_s = end - time.monotonic()
            reason = self._why_not(task, left_s, left_s)
            if reason and not (task.planned.required and task.fits_memory and left_s > 0.0):
                self.skip(task, reason)
                continue
            self._emit(task.planned.step, level="running")
            assert self._train is not None
            self._attempts.add(task, self._train(task, end, self.done))
            self._count(task)

    def _run_exchanges(self, name: str, tasks: Sequence[Task], end: float) -> None:
        """Tasks that ranks of their own share."""
        ready = [task for task in tasks if task.fits_memory]
        for task in tasks:
            if task not in ready:
                self.skip(task, f"its buffers need more than half of {task.target.name}'s memory")
        self._emit(name, level="stage")

        def deliver(task: Task, reply: Reply) -> None:
            request = Request(
                benchmark=task.benchmark, module=task.spec.module, case=task.case, **_UNTIMED
            )
            self._append_attempt(task, request, reply)
            self._append_points(task)

        assert self._exchange is not None
        if ready:
            self._exchange(ready, end, deliver)

    def _run_in_parts(
        self,
        tasks: Sequence[Task],
        teams: Teams,
        end: float,
        threads: ThreadPoolExecutor,
        stop: threading.Event,
    ) -> None:
        """Measure devices side by side, then shared parts in turn, then all devices at once."""
        tasks_by_device: dict[str, list[Task]] = {device: [] for device in teams}
        shared: dict[str, list[Task]] = {device: [] for device in teams}
        for task in tasks:
            if task.count == 1:
                (shared if task.planned.shared else tasks_by_device)[
                    task.target.torch_device
                ].append(task)
        turns = [task for turn in zip_longest(*shared.values()) for task in turn if task]
        together = [task for task in tasks if task.count > 1]
        later = sum(self._cost(task) + WORKERS * _MAX_TIME for task in (*turns, *together))
        now = time.monotonic()
        lanes_end = max(end - later, (now + end) / 2)
        futures = [
            threads.submit(self._run_tasks, lane, teams, lanes_end, stop)
            for lane in tasks_by_device.values()
        ]
        wait(futures, return_when=FIRST_EXCEPTION)
        for future in futures:
            future.result()
        self._run_tasks(turns, teams, end, stop)
        self._run_together(together, teams, end, threads)

    def _run_together(
        self, tasks: Sequence[Task], teams: Teams, end: float, threads: ThreadPoolExecutor
    ) -> None:
        """Run each case on all devices at once: prepared on each, then released together."""
        total_s = end - time.monotonic()
        while tasks:
            group, tasks = tasks[: tasks[0].count], tasks[tasks[0].count :]
            left_s = end - time.monotonic()
            reason = next(
                (
                    skip_reason
                    for task in group
                    if (skip_reason := self._why_not(task, left_s, total_s))
                ),
                None,
            )
            if reason is not None:
                for task in group:
                    self.skip(task, reason)
                continue
            self._emit(f"{group[0].planned.step} {case_label(group[0].case)}", level="running")
            workers = [teams[task.target.torch_device] for task in group]
            for number in range(WORKERS):
                barrier = threading.Barrier(len(group))
                requests = [replace(self._request(task, 1.0), hold=True) for task in group]
                replies = threads.map(
                    lambda team, request, number=number, barrier=barrier: team[number].run(
                        request, lambda: _meet(barrier, request.timeout)
                    ),
                    workers,
                    requests,
                )
                for task, request, reply in zip(group, requests, replies, strict=True):
                    self._append_attempt(task, request, reply)
            for task in group:
                self._append_points(task)

    def decide(self) -> None:
        """Measure what a verdict rests on until it is decided, or the time is over."""
        self._measure_again(VERDICT)

    def use_time_left(self) -> None:
        """Measure again what is worth it, by the table of `again`; then settle all points."""
        self._measure_again(RULES)
        self._settle()

    def _measure_again(self, rules: Sequence[RepeatRule]) -> None:
        """Fresh workers, round by round, for as long as even one task fits the time."""
        for rule, tasks in RepeatPlan(rules, self._fits_again).rounds(self._progress_of_run):
            load_time = _SLOWER_LOAD * self._crew.load_time
            seconds = self._deadline - time.monotonic()
            if seconds > load_time:
                self._round = Round(rule=rule, total=len(tasks))
                self.run_block(Block(name=f"{rule.why}, again", tasks=tuple(tasks)), seconds)
                self._round = None

    def _progress_of_run(self) -> RunProgress:
        tasks = [task for task in self._begun.values() if may_be_repeated(task)]
        # Of what is as much needed what is quick comes first: it makes most points sure.
        tasks.sort(key=lambda task: (not task.planned.required, self._cost(task)))
        return RunProgress(
            attempts=self._attempts, tasks=tasks, records=lambda: read_run(self._run.path).records
        )

    def _fits_again(self, task: Task) -> bool:
        left_s = self._deadline - time.monotonic() - _SLOWER_LOAD * self._crew.load_time
        return task.target.torch_device not in self._crew.dead and self._cost(task) < left_s

    def _run_tasks(
        self, tasks: Sequence[Task], teams: Teams, end: float, stop: threading.Event
    ) -> None:
        total_s = end - time.monotonic()
        # In a resumed run what has no attempt at all comes before what was noisy.
        tasks = sorted(tasks, key=lambda task: bool(self._attempts.at(task)))
        if total_s < self._patience:  # there may be time for one: what is quick, of what is needed
            tasks.sort(key=lambda task: (not task.planned.required, self._cost(task)))
        for position, task in enumerate(tasks):
            left_s = end - time.monotonic()
            reason = self._why_not(task, left_s, total_s)
            if stop.is_set():
                return
            if reason is not None:
                self.skip(task, reason)
                continue
            share = left_s / WORKERS / (len(tasks) - position)
            team = teams[task.target.torch_device]
            self._run_task(task, team, min(max(share, _MIN_TIME), _MAX_TIME), stop)

    def _why_not(self, task: Task, left_s: float, total_s: float) -> str | None:
        """Return why a task is not run, or None."""
        if not task.fits_memory:
            return f"its operands need more than half of the memory of {task.target.name}"
        if abs(left_s) < self._patience:
            return None
        cost = self._cost(task)
        is_greedy = cost > _GREEDY * total_s and not task.planned.seconds
        if cost > left_s * _OVERSTATED if task.planned.required else cost > left_s or is_greedy:
            return _no_time(cost, left_s)
        return None

    def _cost(self, task: Task) -> float:
        """Projected seconds in all of its workers, at the shortest sampling."""
        return task.num_workers * (self._pace.overhead(task) + (task.planned.seconds or _MIN_TIME))

    def _run_task(
        self, task: Task, team: Sequence[Worker], seconds: float, stop: threading.Event
    ) -> None:
        """Run one case in each worker in turn, then derive its point."""
        label = f"{task.planned.step} {case_label(task.case)}"
        self._emit(label, level="running")
        for number, worker in enumerate(team[: task.num_workers]):
            if number and time.monotonic() >= self._deadline:
                break
            request = self._request(task, seconds)
            reply = self._within_budget(worker.run(request))
            if stop.is_set():
                return
            self._append_attempt(task, request, reply)
            if reply.status in (Status.SKIPPED, Status.TIMEOUT, Status.OOM):
                break  # another worker would only say it again
            if self._is_enough(task):
                break
        self._append_points(task)

    def _is_enough(self, task: Task) -> bool:
        """Return whether the round's next worker would add nothing to a decided value."""
        is_repeated = self._round is not None and not self._round.rule.needs_whole_round
        return is_repeated and self._attempts.are_over(task)

    def _append_attempt(self, task: Task, request: Request, reply: Reply) -> None:
        number = len(self._attempts.at(task)) + 1
        if reply.status is Status.OK:
            self._patience = 0.0
        self._pace.learn(task, reply)
        record = attempt_record(request, reply, self._subject(task), attempt=number)
        self._attempts.add(task, self._append(record))

    def _append(self, record: Record) -> Record:
        with self._lock:
            return self._run.append(record)

    def _request(self, task: Task, seconds: float) -> Request:
        call = self._pace.call_time(task)
        wanted = task.planned.seconds or self._wanted(call, seconds)
        left_s = self._deadline + self._patience - time.monotonic()
        overhead = self._pace.overhead(task)
        # A chip has to get hot first, and a disk does not.
        warmup = 0.6 * task.planned.seconds if task.case.get("sustained") else None
        timeout = max(min(10.0 + 3.0 * (wanted + overhead), left_s), 1.0)
        extra = 0.0 if warmup or task.spec.is_disk else min(wanted, left_s - overhead - wanted)
        return Request(
            benchmark=task.benchmark,
            module=task.spec.module,
            case=task.case,
            settings={
                "max_time": max(min(wanted, left_s - overhead), _MIN_TIME),
                "warmup_time": warmup,
                "extra_time": max(extra, 0.0),
            },
            timeout=timeout,
        )

    def _wanted(self, call: float, seconds: float) -> float:
        """Return the seconds of sampling: ten samples of a slow call, fewer of a very slow one.

        A call that cannot have ten samples in the time allowed will not converge
        whatever it is given, so it is not given more than shows its size.
        """
        if _SLOW_CALLS * call <= _SLOW_TIME:
            return max(seconds, _SLOW_CALLS * call)
        return max(seconds, _GLANCE_CALLS * call)

    def _within_budget(self, reply: Reply) -> Reply:
        """Mark a case that the budget's end cut short as skipped, not as a fault of the device."""
        if reply.status is Status.TIMEOUT and time.monotonic() >= self._deadline:
            reason = "the budget ended while it ran"
            return Reply(status=Status.SKIPPED, reason=reason, duration=reply.duration)
        return reply

    def _append_points(self, task: Task) -> None:
        main_point, *_ = self._write_points(task)
        self._count(task)
        self._emit(describe(main_point, self._attempts.expected_of(main_point)), level="point")

    def _write_points(self, task: Task) -> list[Record]:
        """Append what a task comes to, as far as is known now; of points the last counts."""
        points = [
            self._append(
                point.replace(
                    conditions={**point.conditions, **task.planned.notes},
                    limit=limit_of_point(point, self._claims),
                )
            )
            for point in self._attempts.points(task)
        ]
        self._written[key_of(task)] = points[0]
        return points

    def _settle(self) -> None:
        """Derive each point again with the workers' scatter over the whole run."""
        for task in self._begun.values():
            before = self._written.get(key_of(task))
            if before is None or before.value is None:
                continue
            combined_point = self._attempts.points(task)[0]
            if any(getattr(combined_point, name) != getattr(before, name) for name in _SETTLED):
                self._write_points(task)

    def _count(self, task: Task) -> None:
        """Count a task that is over for now, once: it may be measured again."""
        with self._lock:
            self.done += key_of(task) not in self._counted
            self._counted.add(key_of(task))
            if self._round is not None:
                self._round.done += 1

    def skip(self, task: Task, reason: str, status: Status = Status.SKIPPED) -> None:
        """Record that a task is not run, and why, where nothing better is known of it."""
        self._count(task)
        attempts = self._attempts.at(task)
        if reason != MEASURED and not (attempts and status is Status.SKIPPED):
            subject = self._subject(task)
            self._append(skipped_record(task.benchmark, task.case, subject, reason, status))

    def _alive(self, tasks: Sequence[Task]) -> list[Task]:
        """Return tasks whose devices started; others keep what an earlier session measured."""
        failures = [self._crew.dead.get(task.target.torch_device) for task in tasks]
        alive, first_failure = [], next(filter(None, failures), "")
        for task, reason in zip(tasks, failures, strict=True):
            if reason is not None:
                measured = self._attempts.have_value(task)
                self.skip(task, MEASURED if measured else reason, Status.FAILED)
            elif first_failure and task.count > 1:
                self.skip(task, first_failure)
            else:
                alive.append(task)
        if first_failure:
            self._emit(first_failure, level="point")
        return alive

    def _subject(self, task: Task) -> Subject:
        return Subject(
            device=task.target.name,
            index=task.target.index,
            count=task.count,
            environment=self._environment,
        )

    def _start_worker(self, device: str, log: Path) -> Worker:
        return Worker(device, log, tick=self._telemetry.tick)

    def _emit(self, text: str, *, level: str) -> None:
        left_s = max(self._deadline - time.monotonic(), 0.0)
        event = Progress(text=text, level=level, done=self.done, total=self.total, left=left_s)
        if self._round is not None:
            event = replace(event, retry=self._round.done, retries=self._round.total)
        self._watch(event)


class TelemetryWriter:
    """A row of the machine's state about once a second, while something runs."""

    def __init__(self, run: RunWriter) -> None:
        self._run = run
        self._last = 0.0
        self._lock = threading.Lock()

    def tick(self) -> None:
        """Append a row, if a second has passed since the last one."""
        with self._lock:
            if time.monotonic() - self._last >= 1.0:
                self._last = time.monotonic()
                self._run.append_series("telemetry", noise.telemetry_row())


def _meet(barrier: threading.Barrier, timeout: float) -> None:
    """Wait until every device is prepared; one that died must not hold up the others."""
    with contextlib.suppress(threading.BrokenBarrierError):
        barrier.wait(timeout)


def _no_time(cost: float, left_s: float) -> str:
    if left_s <= 0.0:
        return _NO_TURN
    return f"needs {format_time(cost)}, {format_time(left_s)} of the budget left for its kind"
