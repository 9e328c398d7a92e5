"""One training run from its first look to its points: ceiling, prediction, workers, records."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from trainrig.data.manifest import Manifest
from trainrig.machine import Missing, environment_digest, inspect, to_dict, value_or
from trainrig.machine.energy import Energy
from trainrig.measure import noise, step
from trainrig.measure.aggregate import Subject, attempt_record, point_records, skipped_record
from trainrig.process.worker import Reply, Request, Worker
from trainrig.record import Record, Status, new_id
from trainrig.runner import energy
from trainrig.runner.batch_size import smaller
from trainrig.runner.executor import Executor
from trainrig.runner.expectations import claims_for, expectations, history_of, limit_of_point
from trainrig.runner.experiment_trained import counted
from trainrig.runner.history import corrections_of
from trainrig.runner.plan import Block, Task, matmul_case
from trainrig.runner.predict import predict_training
from trainrig.runner.progress import Progress, Watcher, describe
from trainrig.runner.targets import choose, find_targets
from trainrig.runner.train_devices import meters_of
from trainrig.runner.train_points import losses, shares
from trainrig.runner.training import step_task
from trainrig.runner.view import published_baselines
from trainrig.store import RunWriter, read_run
from trainrig.train.config import Experiment
from trainrig.train.config import to_dict as experiment_dict
from trainrig.units import format_memory

CHECKPOINT = ".checkpoint.pt"
"""In the run's folder; hidden files are left out of bundles."""
LAYOUT = "layout"
"""The series of the facts of a layout."""
CHECKED_STEPS = 13
"""Steps that the second worker trains: three of warm-up, and ten samples."""
# Seconds without a word: the first step may compile, a slow machine's step take minutes.
_SILENCE = 600.0
_SLOWEST = {False: 1e9, True: 1e12}
_CEILING_SECONDS = 8.0
_MATMUL_SIZE = {False: 1024, True: 8192}
_LINES = 10
"""Lines of progress that a training leaves where there is no terminal."""


@dataclass(slots=True, kw_only=True)
class Trained:
    """What came of a training."""

    experiment: Experiment
    """As it was trained: the batch may be smaller than asked for."""
    attempts: list[Record] = field(default_factory=list)
    points: tuple[Record, ...] = ()
    facts: Mapping[str, Any] | None = None
    """Of its layout, read from live objects in the first step."""

    def point(self, metric: str) -> Record | None:
        """The point of a metric, if there is one with a value."""
        found = (p for p in self.points if p.metric == metric and p.status is Status.OK)
        return next(found, None)

    @property
    def heldout_loss(self) -> float | None:
        """Of the worker that trained to the end."""
        for record in self.attempts:
            value = record.conditions.get("heldout_loss")
            if isinstance(value, float):
                return value
        return None


class Session:
    """An open run in which one experiment is trained."""

    def __init__(
        self, run: RunWriter, manifest: Manifest, watch: Watcher, *, resuming: bool
    ) -> None:
        self._run, self._manifest, self._watch = run, manifest, watch
        self._resuming = resuming
        self._earlier = read_run(run.path).records
        self._last_tick = 0.0
        self._facts: Mapping[str, Any] | None = None
        self._used: tuple[Energy | Missing, Sequence[Mapping[str, Any]]] = (energy.NOT_READ, ())

    def train(self, experiment: Experiment, device: str | None) -> Trained:
        """Look at the machine, measure the ceiling, predict, train."""
        self._run.reopen()
        self._snapshot = snapshot = inspect()
        self._run.write_machine(to_dict(snapshot))
        targets = find_targets(snapshot)
        self._target = choose(targets, device)[0]  # GPUs come first
        self._environment = environment_digest(snapshot)
        self._claims = claims_for(snapshot, [self._target])
        self._hostname = value_or(snapshot.host.hostname, "")
        self._history = history_of(
            self._run.path.parent, self._run.name, self._hostname, self._environment
        )
        for claim in () if self._resuming else self._claims:
            self._run.append(claim)
        self._ceiling = self._measure_ceiling(experiment.precision)
        return self._until_it_fits(experiment)

    def _measure_ceiling(self, dtype: str) -> Record | None:
        """The rate of a large matrix product of the same dtype, the level below a step."""
        is_gpu = self._target.is_gpu
        if dtype == "fp16" and not is_gpu:  # emulated, a hundred times slower
            return None
        size = _MATMUL_SIZE[is_gpu]
        task = Task(
            target=self._target,
            family="matmul",
            case=matmul_case(dtype, size, size, size),
            step=f"{dtype} matmul",
        )
        expected = self._expect(task)
        executor = Executor(
            self._run,
            environment=self._environment,
            deadline=time.monotonic() + _CEILING_SECONDS,
            watch=self._watch,
            describe=lambda point: describe(point, expected),
            complete=self._with_limit,
        )
        executor.total = 1
        block = Block(targets=(self._target,), name="the ceiling", tasks=(task,), share=1.0)
        executor.run_block(block, _CEILING_SECONDS)
        points = [r for r in read_run(self._run.path).records if r.is_point]
        found = [r for r in points if r.benchmark == "matmul" and r.status is Status.OK]
        return found[-1] if found else None

    def _expect(self, task: Task) -> Record:
        (expected,) = expectations(
            [task], self._claims, self._history, published_baselines(), self._environment
        )
        return self._run.append(expected)

    def _until_it_fits(self, experiment: Experiment) -> Trained:
        """Train; a batch that does not fit is recorded, and half of it tried."""
        trained = Trained(experiment=experiment)
        while True:
            trained.experiment = experiment
            task = self._task(experiment)
            expected = self._expect(task)
            self._bound(task, expected)
            self._foretell(task, expected)
            last = self._attempt(task, experiment, trained)
            trained.facts = self._facts
            batch = smaller(experiment.batch_size)
            if last.status is not Status.OOM or batch is None or self._resuming:
                break
            experiment = experiment.replace(batch_size=batch)
            self._tell(f"{last.reason}: trying a batch of {experiment.batch_size}", level="point")
        return trained

    def _task(self, experiment: Experiment) -> Task:
        return step_task(self._target, experiment, self._manifest.corpus_sha256)

    def _bound(self, task: Task, expected: Record) -> None:
        """What can be said of time and loss beforehand.

        No step is faster than its products at the ceiling's rate.  Of the loss nothing is known,
        but it is what a training cannot do without: on a busy machine it counts as well.
        """
        bare = expected.replace(
            interval=None, limit=None, source=None, status=Status.OK, reason=None, value=None
        )
        loss = "no target known: a loss depends on model, data and steps"
        self._run.append(
            bare.replace(
                id=new_id(),
                metric="train_loss",
                unit="nat",
                status=Status.MISSING,
                reason=loss,
                conditions={"step": "training", "required": True},
            )
        )
        if self._ceiling is None or not self._ceiling.value:
            return
        self._run.append(
            bare.replace(
                id=new_id(),
                metric="time",
                unit="s",
                value=step.flops(task.case) / self._ceiling.value,
                source="model FLOPs at the matmul rate measured in this run: a lower bound",
                conditions={"bound": "lower"},
            )
        )

    def _foretell(self, task: Task, expected: Record) -> None:
        """What the step should take by the rates measured so far, in this run and before."""
        points = [*self._history, *read_run(self._run.path).records]
        corrections = corrections_of(self._run.path.parent, self._hostname)
        has_bound = self._ceiling is not None and bool(self._ceiling.value)
        for record in predict_training(task, expected, points, corrections):
            if record.status is Status.OK or not has_bound:  # a bound says more than "not known"
                self._run.append(record)

    def _attempt(self, task: Task, experiment: Experiment, trained: Trained) -> Record:
        """Both workers, and the point that they settle on; the last record."""
        needed = step.memory(task.case)
        if needed > self._target.memory_bytes > 0:
            reason = (
                f"it needs about {format_memory(needed)}, and "
                f"{format_memory(self._target.memory_bytes)} are free: not started"
            )
            record = skipped_record("step", task.case, self._subject, reason, Status.OOM)
            trained.attempts.append(self._run.append(record))
            return trained.attempts[-1]
        own: list[Record] = []
        with ExitStack() as stack:
            workers = [stack.enter_context(self._worker(number)) for number in (1, 2)]
            for worker in workers:
                worker.wait_ready()
            for number, worker in enumerate(workers, 1):
                request = self._request(task, experiment, check=number == 2)
                reply = self._listen(worker, request, experiment, "train" if number == 1 else None)
                record = attempt_record(request, reply, self._subject, self._next_attempt(own))
                own.append(self._run.append(record))
                trained.attempts.append(own[-1])
                if reply.status is not Status.OK:
                    break
        trained.points = tuple(self._settle(own))
        return own[-1]

    def _next_attempt(self, own: Sequence[Record]) -> int:
        earlier = [r.attempt or 0 for r in self._earlier if r.benchmark == "step"]
        return max(earlier, default=0) + len(own) + 1

    def _worker(self, number: int) -> Worker:
        return Worker(
            self._target.torch_device,
            self._run.log_path(f"train-{number}"),
            command=(sys.executable, "-m", step.SERVER),
            tick=self._tick,
        )

    def _request(self, task: Task, experiment: Experiment, *, check: bool) -> Request:
        extra: dict[str, Any] = {"experiment": experiment_dict(experiment)}
        checkpoint = self._run.path / CHECKPOINT
        if check:
            extra["stop"] = min(CHECKED_STEPS, experiment.steps)
        else:
            extra["look"] = True
            extra["checkpoint"] = str(checkpoint)
            extra["resume"] = str(checkpoint) if self._resuming else None
        slow = 4.0 * step.flops(task.case) / _SLOWEST[self._target.is_gpu]
        return Request(
            family="step",
            case=task.case,
            settings={"max_time": 0.0},
            timeout=_SILENCE + slow,
            extra=extra,
        )

    def _listen(
        self, worker: Worker, request: Request, experiment: Experiment, series: str | None
    ) -> Reply:
        def on_event(event: Mapping[str, Any]) -> None:
            content = {name: event[name] for name in event if name not in ("event", "at")}
            if event["event"] == "layout":
                self._facts = content
                self._run.append_series(LAYOUT, content)
            if event["event"] != "row" or series is None:
                return
            row = content
            self._run.append_series(series, row)
            number = row["step"] + 1
            due = number == experiment.steps or number % max(1, experiment.steps // _LINES) == 0
            rate = row["tokens"] / row["time"]
            text = (
                f"step {number} of {experiment.steps}: loss {row['loss']:.3f}, {rate:.0f} tokens/s"
            )
            self._tell(text, level="point" if due else "running")

        if series is None:
            self._tell("the first steps again, in a second process", level="running")
            return worker.run(request, on_event=on_event)
        meters, stretches = self._meters(experiment), energy.Stretches()

        def on_timed_event(event: Mapping[str, Any]) -> None:
            stretches.on_event(event)
            on_event(event)

        with energy.watch(meters):
            reply = worker.run(request, on_event=on_timed_event)
        rows, ended = stretches.longest
        placed = (self._facts or {}).get("placed", {}).get("devices", ())
        own = energy.of_devices(meters, [str(gpu["uuid"]) for gpu in placed if gpu.get("uuid")])
        self._used = energy.used(own, counted(rows), ended), counted(rows)
        return reply

    def _meters(self, experiment: Experiment) -> energy.Meters:
        """What reads the energy of the device that it trains on."""
        index = self._target.index
        device = {"device": "cpu"} if index is None else {"device": "cuda", "devices": str(index)}
        return meters_of(experiment.replace(**device), self._snapshot)

    def _settle(self, own: Sequence[Record]) -> list[Record]:
        kept = [self._run.append(self._with_limit(point)) for point in point_records(own)]
        headline = kept[0]
        self._tell(describe(headline, None), level="point")
        more = [*shares(headline, self._ceiling), *losses(own[0]), *self._energy(kept)]
        return [*kept, *(self._run.append(record) for record in more)]

    def _energy(self, points: Sequence[Record]) -> list[Record]:
        """Of the first worker's longest stretch of steps that count."""
        used, rows = self._used
        times = [p for p in points if p.metric == "time" and p.status is Status.OK]
        tokens = sum(int(row["tokens"]) for row in rows)
        return energy.records_of(times[0], used, len(rows), tokens) if times else []

    def _with_limit(self, point: Record) -> Record:
        return point.replace(limit=limit_of_point(point, self._claims))

    @property
    def _subject(self) -> Subject:
        return Subject(
            device=self._target.name,
            index=self._target.index,
            count=1,
            environment=self._environment,
        )

    def _tick(self) -> None:
        if time.monotonic() - self._last_tick >= 1.0:
            self._last_tick = time.monotonic()
            self._run.append_series("telemetry", noise.telemetry_row())

    def _tell(self, text: str, *, level: str) -> None:
        self._watch(Progress(text=text, level=level))
