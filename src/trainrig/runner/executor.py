"""Runs planned tasks within their time and appends what came out.

Each block has two fresh workers per device, started together and used in turn: every case is
measured in the first, then in the second, and settles at once, so that a run that is cut off holds
whole points.  Cases that would not fit the time are recorded as skipped.  Noisy points are repeated
in new workers when time is left.

A run that is resumed goes on from the attempts on its disk.  What is settled is not
measured again; what failed, timed out or was noisy is still open.

`Pace` projects how long a case will take from the ones that ran before it, by the speed of the
nearest smaller case of the same kind: it overstates cases that launches bound, and is close where
it matters, at the large ones.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trainrig.benchmarks.spec import WORKERS, Role, role_of
from trainrig.errors import UnavailableError
from trainrig.measure import noise
from trainrig.measure.aggregate import Subject, attempt_record, point_records, skipped_record
from trainrig.process.worker import Reply, Request, Worker
from trainrig.record import Case, Record, Status, case_label, dtype_of
from trainrig.runner.expectations import limit_of_point
from trainrig.runner.plan import Block, Task
from trainrig.runner.progress import Progress, Watcher, describe
from trainrig.runner.targets import HOST, Target
from trainrig.stats import median
from trainrig.store import RunWriter
from trainrig.units import format_time

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
        """Projected seconds of one call."""
        units = _units(task)
        seen = sorted(self._seen.get(_kind(task), ()))
        smaller = [pair for pair in seen if pair[0] <= units] or seen[:1]
        if not smaller:
            return units / self._guess(task)
        known_units, seconds = smaller[-1]
        return seconds * max(units / known_units, 1.0)

    def _guess(self, task: Task) -> float:
        """Work units a second of a kind of which nothing is known yet."""
        if task.spec.role in (Role.BLOCK, Role.STEP):
            device, dtype = task.target.torch_device, str(dtype_of(task.case))
            rates = [
                units / seconds
                for (where, name, kind, *_), seen in self._seen.items()
                if (where, kind) == (device, dtype) and role_of(name) is Role.PRODUCT
                for units, seconds in seen
            ]
            if rates:
                return _OF_PRODUCTS * max(rates)
        return _FIRST_GUESS[task.target.is_gpu]

    def overhead(self, task: Task) -> float:
        """Projected seconds of everything but the sampling: operands, checks, first calls."""
        spec, cost = task.spec, task.spec.cost
        fill = spec.memory(task.case) / cost.fill[task.target.is_gpu]
        calls = cost.calls * self.call_time(task) if cost.calls else 0.0
        return cost.fixed + cost.once(task.case) + fill + calls


def _kind(task: Task) -> tuple[str, ...]:
    """Cases whose speeds resemble each other."""
    words = [str(task.case.get(name)) for name in ("op", "direction", "memory", "code")]
    return (task.target.torch_device, task.benchmark, str(dtype_of(task.case)), *words)


def _units(task: Task) -> float:
    work = task.spec.work(task.case)
    return float(max(work.flops, work.num_bytes))


def _identity(
    device: str | None, index: int | None, count: int, name: str, case: Case
) -> tuple[object, ...]:
    """What attempts at one task share; its case may be written in another order."""
    return (device, index, count, name, *sorted(case.items()))


def _has_value(attempts: Sequence[Record]) -> bool:
    """Whether any worker measured it."""
    return any(record.status is Status.OK for record in attempts)


def _is_noisy(attempts: Sequence[Record]) -> bool:
    """Whether there is a value that must not be judged."""
    if attempts and attempts[-1].attempt is None:  # a training's record is its point
        return attempts[-1].disturbed is not None
    return _has_value(attempts) and point_records(attempts)[0].disturbed is not None


def _is_over(attempts: Sequence[Record]) -> bool:
    """Whether there is nothing left to measure: a quiet value, or a wrong answer."""
    if any(record.is_wrong_answer for record in attempts):
        return True
    return _has_value(attempts) and not _is_noisy(attempts)


_MIN_TIME = 0.05
_MAX_TIME = 0.4
# A slow case may take this many calls' time beyond the ordinary, to get its samples, ...
_SLOW_CALLS = 12.0
# ... if that is no longer than this; else it gets a few.
_SLOW_TIME = 2.0
_GLANCE_CALLS = 3.0
# A case that would eat more than this of its block is skipped unless it is required.
_GREEDY = 0.3
_MAX_ROUNDS = 3

MEASURED = "already measured in this run"

MakeWorker = Callable[[str, Path], Worker]
"""(device, log) → a worker that has been started."""


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
        early: Sequence[Worker] = (),
    ) -> None:
        """``deadline`` is on time.monotonic; ``expected`` is by key and device of a point.

        ``early`` are workers for the host that were started while the machine was still
        looked at; the first pair that is needed there is taken from them.
        """
        self._run = run
        self._environment = environment
        self._deadline = deadline
        self._watch = watch
        self._claims = claims
        self._expected = expected
        self._make_worker = make_worker or self._start_worker
        self._early = tuple(early)
        self._pace = Pace()
        self._attempts: dict[object, list[Record]] = defaultdict(list)
        self._telemetry = TelemetryWriter(run)
        self.done = 0
        self.total = 0

    def resume_from(self, records: Iterable[Record]) -> None:
        """Go on from the records of a run that was cut off; probes of a search are skipped."""
        for record in records:
            whole = record.metric == "time" and role_of(record.benchmark) is Role.STEP
            if (record.attempt is not None or whole) and "search" not in record.conditions:
                where = (record.device, record.device_index, record.device_count)
                self._attempts[_identity(*where, record.benchmark, record.case)].append(record)

    def _attempts_at(self, task: Task) -> list[Record]:
        """In their order; what is appended to the list stays."""
        where = (task.target.name, task.target.index, task.count)
        return self._attempts[_identity(*where, task.benchmark, task.case)]

    def _start_workers(self, target: Target, name: str) -> tuple[Worker, ...]:
        """Fresh workers for a device, loading torch side by side."""
        if target.torch_device == HOST and self._early:
            early, self._early = self._early, ()
            return early
        self._emit(f"starting workers for {name}", level="running")
        stem = "".join(c if c.isalnum() else "-" for c in name.lower())
        return tuple(
            self._make_worker(target.torch_device, self._run.log_path(f"{stem}-{number}"))
            for number in range(1, WORKERS + 1)
        )

    def run_block(self, block: Block, seconds: float) -> None:
        """Run a block's tasks within ``seconds``; a device that does not come up is recorded."""
        if all(task.skip or _is_over(self._attempts_at(task)) for task in block.tasks):
            for task in block.tasks:  # no worker is started for these
                measured = _has_value(self._attempts_at(task))
                self.skip(task, MEASURED if measured or not task.skip else task.skip)
            return
        end = min(time.monotonic() + seconds, self._deadline)
        self._emit(block.name, level="stage")
        with ThreadPoolExecutor(len(block.targets)) as threads, ExitStack() as stack:
            pairs = [
                [stack.enter_context(w) for w in self._start_workers(target, block.name)]
                for target in block.targets
            ]
            try:
                for worker in chain(*pairs):
                    worker.wait_ready(max(end - time.monotonic(), 1.0))
            except UnavailableError as error:
                self._give_up(block.tasks, error.message)
                return
            if len(block.targets) == 1:
                self._run_tasks(block.tasks, pairs[0], end)
            else:
                self._run_together(block, pairs, end, threads)

    def _run_together(
        self,
        block: Block,
        pairs: Sequence[Sequence[Worker]],
        end: float,
        threads: ThreadPoolExecutor,
    ) -> None:
        """Each case on all devices at once: prepared everywhere, then released together."""
        num_devices = len(block.targets)
        whole = end - time.monotonic()
        for start in range(0, len(block.tasks), num_devices):
            tasks = block.tasks[start : start + num_devices]
            left = end - time.monotonic()
            reason = next(
                (why for task in tasks if (why := self._why_not(task, left, whole))), None
            )
            if reason is not None:
                for task in tasks:
                    self.skip(task, reason)
                continue
            self._emit(f"{tasks[0].step} {case_label(tasks[0].case)}", level="running")
            for number in range(WORKERS):
                barrier = threading.Barrier(num_devices)
                requests = [replace(self._request(task, 1.0), hold=True) for task in tasks]
                replies = threads.map(
                    lambda pair, request, number=number, barrier=barrier: pair[number].run(
                        request, lambda: _meet(barrier, request.timeout)
                    ),
                    pairs,
                    requests,
                )
                for task, request, reply in zip(tasks, requests, replies, strict=True):
                    self._append_attempt(task, request, reply)
            for task in tasks:
                self._append_points(task)

    def repeat_noisy(self, tasks: Sequence[Task]) -> None:
        """Measure noisy points again in fresh workers, as long as the time allows."""
        for _ in range(_MAX_ROUNDS - 1):
            again = [task for task in tasks if _is_noisy(self._attempts_at(task))]
            groups: dict[Target, list[Task]] = {}
            for task in sorted(again, key=lambda task: not task.required):
                groups.setdefault(task.target, []).append(task)
            for target, members in groups.items():
                self._repeat(target, members)

    def _repeat(self, target: Target, tasks: Sequence[Task]) -> None:
        """Fresh workers for some tasks of one device, if even one of them fits the time."""
        start_time = 4.0  # two workers loading torch side by side
        if self._deadline - time.monotonic() < start_time + self._cost(tasks[0]):
            return
        name = f"noisy points on {target.label}, again"
        self._emit(name, level="stage")
        with ExitStack() as stack:
            workers = [stack.enter_context(w) for w in self._start_workers(target, name)]
            for task in tasks:
                if self._deadline - time.monotonic() > self._cost(task):
                    self._run_task(task, workers, _MAX_TIME)

    def _run_tasks(self, tasks: Sequence[Task], workers: Sequence[Worker], end: float) -> None:
        whole = end - time.monotonic()
        # In a resumed run what has no attempt at all comes before what was noisy.
        tasks = sorted(tasks, key=lambda task: bool(self._attempts_at(task)))
        for position, task in enumerate(tasks):
            left = end - time.monotonic()
            reason = self._why_not(task, left, whole)
            if reason is not None:
                self.skip(task, reason)
                continue
            share = left / WORKERS / (len(tasks) - position)
            self._run_task(task, workers, min(max(share, _MIN_TIME), _MAX_TIME))

    def _why_not(self, task: Task, left: float, whole: float) -> str | None:
        """Why a task is not run, or None."""
        if _is_over(self._attempts_at(task)):
            return MEASURED
        if task.skip is not None:
            return task.skip
        if not task.fits_memory:
            return f"its operands need more than half of the memory of {task.target.name}"
        cost = self._cost(task)
        if cost > left or (cost > _GREEDY * whole and not task.required and not task.seconds):
            return _no_time(cost, left)
        return None

    def _cost(self, task: Task) -> float:
        """Projected seconds in all of its workers, at the shortest sampling."""
        return WORKERS * (self._pace.overhead(task) + (task.seconds or _MIN_TIME))

    def _run_task(self, task: Task, workers: Sequence[Worker], seconds: float) -> None:
        """One case in each worker in turn, then its point."""
        label = f"{task.step} {case_label(task.case)}"
        self._emit(label, level="running")
        for worker in workers:
            request = self._request(task, seconds)
            reply = self._within_budget(worker.run(request))
            self._append_attempt(task, request, reply)
            if reply.status in (Status.SKIPPED, Status.TIMEOUT, Status.OOM):
                break  # another worker would only say it again
        self._append_points(task)

    def _append_attempt(self, task: Task, request: Request, reply: Reply) -> None:
        attempts = self._attempts_at(task)
        self._pace.learn(task, reply)
        record = attempt_record(request, reply, self._subject(task), attempt=len(attempts) + 1)
        attempts.append(self._run.append(record))

    def _request(self, task: Task, seconds: float) -> Request:
        call = self._pace.call_time(task)
        wanted = task.seconds or self._wanted(call, seconds)
        left = self._deadline - time.monotonic()
        overhead = self._pace.overhead(task)
        # A chip has to get hot first, and a disk does not.
        warmup = 0.6 * task.seconds if task.case.get("sustained") else None
        timeout = max(min(10.0 + 3.0 * (wanted + overhead), left), 1.0)
        return Request(
            benchmark=task.benchmark,
            module=task.spec.module,
            case=task.case,
            settings={
                "max_time": max(min(wanted, left - overhead), _MIN_TIME),
                "warmup_time": warmup,
            },
            timeout=timeout,
        )

    def _wanted(self, call: float, seconds: float) -> float:
        """Seconds of sampling: ten samples of a slow call, or a glance at a very slow one.

        A call that cannot have ten samples in the time allowed will not converge
        whatever it is given, so it is not given more than shows its size.
        """
        if _SLOW_CALLS * call <= _SLOW_TIME:
            return max(seconds, _SLOW_CALLS * call)
        return max(seconds, _GLANCE_CALLS * call)

    def _within_budget(self, reply: Reply) -> Reply:
        """A case that the end of the budget cut short is no fault of the device."""
        if reply.status is Status.TIMEOUT and time.monotonic() >= self._deadline:
            why = "the budget ended while it ran"
            return Reply(status=Status.SKIPPED, reason=why, duration=reply.duration)
        return reply

    def _append_points(self, task: Task) -> None:
        for number, point in enumerate(point_records(self._attempts_at(task))):
            record = self._run.append(
                point.replace(
                    conditions={**point.conditions, **task.notes},
                    limit=limit_of_point(point, self._claims),
                )
            )
            if number == 0:
                self.done += 1
                expected = self._expected.get((record.key, record.device_index))
                self._emit(describe(record, expected), level="point")

    def is_done(self, task: Task) -> bool:
        """Whether an earlier process of this run measured it."""
        return _is_over(self._attempts_at(task))

    def skip(self, task: Task, reason: str, status: Status = Status.SKIPPED) -> None:
        """Record that a task is not run, and why."""
        self.done += 1
        if reason != MEASURED:
            subject = self._subject(task)
            self._run.append(skipped_record(task.benchmark, task.case, subject, reason, status))

    def _give_up(self, tasks: Iterable[Task], reason: str) -> None:
        """A device did not come up; what an earlier session measured on it stands."""
        for task in tasks:
            measured = _has_value(self._attempts_at(task))
            self.skip(task, MEASURED if measured else reason, Status.FAILED)
        self._emit(reason, level="point")

    def _subject(self, task: Task) -> Subject:
        return Subject(
            device=task.target.name,
            index=task.target.index,
            count=task.count,
            environment=self._environment,
        )

    def _start_worker(self, device: str, log: Path) -> Worker:
        # CUDA's own order is fastest first; the driver's tools count by bus.
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
        return Worker(device, log, tick=self._telemetry.tick)

    def _emit(self, text: str, *, level: str) -> None:
        left = max(self._deadline - time.monotonic(), 0.0)
        event = Progress(text=text, level=level, done=self.done, total=self.total, left=left)
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


def _no_time(cost: float, left: float) -> str:
    if left <= 0.0:
        return "the time for it was spent before its turn came"
    return f"projected to take {format_time(cost)}, and {format_time(left)} are left for its kind"
