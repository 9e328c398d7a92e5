"""train: trainings as a run, each by its framework in processes of its own, compared and judged.

There is one loop for one model from the command line, for a file of experiments and for the
training step of a qualification (`TrainRun`).  What contradicts itself or cannot run here is
refused before anything is written; of several, one that lacks something here becomes a record.

What trains well is trained again in further rounds, in turns with the others; these say something
of its speed alone.  One process of ours that trains alone in its run is measured as a level of the
waterfall: its ceiling is the fastest matrix product, and its first steps are trained again by a
fresh process.  Any other is compared with one process on the same samples (`train.parity`).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainrig.analysis.judge_training import not_falling
from trainrig.analysis.machine_key import machine_key
from trainrig.analysis.run_commands import resume_command
from trainrig.analysis.training_facts import STEPS, steps_after_warm_up
from trainrig.analysis.training_results import TrainingResult
from trainrig.benchmarks.spec import WORKERS
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.benchmarks.training import LAUNCH_TIME, WARM_UP
from trainrig.data.manifest import read_manifest
from trainrig.errors import NeedsCompilerError, NeedsGpuError, UnavailableError, UsageError
from trainrig.machine import inspect, to_dict, value_or
from trainrig.machine.snapshot import Snapshot
from trainrig.measure import noise
from trainrig.prediction.expected import ceiling, of_device
from trainrig.process.supervisor import STALL_TIMEOUT, Command, Ended, OnEvent, launch
from trainrig.record import WRONG_ANSWER, Record, Status
from trainrig.runner import energy, train_logs
from trainrig.runner.batch_size import (
    by_doubling,
    guess,
    smaller,
    split_to_fit,
    states_do_not_fit,
    swapping,
)
from trainrig.runner.executor import TelemetryWriter
from trainrig.runner.expectations import Grounds, claims_for, forecast, grounds_of
from trainrig.runner.progress import Progress, Watcher, interrupted_once, null_progress
from trainrig.runner.targets import Target, choose, described, find_targets
from trainrig.runner.train_prepare import (
    config_of,
    cpus_of_ranks,
    devices_of,
    environment_of,
    make_ready,
    measure_ceiling,
    meters_of,
    precision_lines,
    published_beside,
    site_of,
)
from trainrig.runner.train_records import (
    Launch,
    Trained,
    outcome_line,
    records_of,
    resumed_line,
    slug_of,
    step_line,
    step_row,
)
from trainrig.runner.train_resume import checkpoints_of, done_in
from trainrig.runner.view import RunOutcome, fill_run
from trainrig.store import RunWriter, create_run, read_run, resume_run, store_errors, write_atomic
from trainrig.train.checkpoint_folder import newest, read_saved
from trainrig.train.config import Experiment, case_of, check, objective_of
from trainrig.train.config_file import NAME, file_of
from trainrig.train.engines import ENGINES, Job
from trainrig.train.parity import (
    REFERENCE,
    Probe,
    disagreement,
    gaps,
    is_alone,
    is_reference,
    reference_of,
    shortened,
)
from trainrig.workload import find

CHECKED_STEPS = WARM_UP + 10
"""Steps that a second process trains: those of warm-up, and ten samples."""
LEARNING_STEPS = 200
"""A training of fewer steps need not have learned anything yet."""
_LEAST_TRAINED = 1.0


def train(
    experiments: Sequence[Experiment],
    *,
    out: Path = Path("runs"),
    watch: Watcher = null_progress,
    stall_timeout: float = STALL_TIMEOUT,
    resume: Path | None = None,
    full_scale: Sequence[Experiment] = (),
    trace: bool = False,
) -> RunOutcome:
    """Train experiments one after another in a new run, and judge them.

    ``full_scale`` are the same ones at the size of what others published, where they are tiny.
    ``resume`` goes on with a run, whose experiments these are (`train_resume`).  ``trace``: the
    profiler's trace of each rank is kept below the run's logs.
    """
    for experiment in experiments:  # before any data is prepared
        check(experiment)
    snapshot = described(inspect())
    targets = find_targets(snapshot)
    site = site_of(snapshot, targets)
    ready, lacking = make_ready(experiments, site, watch)
    for line in precision_lines(ready, site):
        watch(Progress(text=line, level="stage"))
    run = resume_run(resume) if resume else create_run(out, "train", config_of(ready))
    with run, interrupted_once():
        watch(Progress(text=f"run {run.path}", level="stage"))
        run.write_machine(to_dict(snapshot))
        hostname = value_or(snapshot.host.hostname, "")
        session = TrainRun(
            run=run,
            targets=targets,
            claims=claims_for(snapshot, targets),
            snapshot=snapshot,
            watch=watch,
            stall_timeout=stall_timeout,
            texts={
                folder: read_manifest(Path(folder)).corpus_sha256
                for folder in dict.fromkeys(experiment.data for experiment in ready)
            },
            total=len(ready),
            grounds=grounds_of(run.path.parent, machine_key(to_dict(snapshot)), site.cores),
            alone=len(ready) == 1,
            resuming=resume is not None,
            trace=trace,
        )
        count_text = "1 experiment" if len(ready) == 1 else f"{len(ready)} experiments"
        watch(Progress(text=f"{hostname}: {count_text}", level="stage"))
        if any(experiment.device == "cuda" and experiment.mesh.ranks > 1 for experiment in ready):
            watch(Progress(text="NCCL, P2P and FSDP on GPUs: unverified on hardware"))
        resume_line = resume_command({"verb": "train"}, str(run.path))
        return fill_run(
            run,
            lambda: _train_all(session, ready, lacking, full_scale),
            f"interrupted; {resume_line} goes on with what is not done",
        )


def _train_all(
    session: TrainRun,
    ready: Sequence[Experiment],
    lacking: Sequence[UnavailableError | None],
    full_scale: Sequence[Experiment],
) -> None:
    """Write down what is known before, then train in rounds."""
    done = done_in(read_run(session.run.path), ready) if session.resuming else {}
    if session.resuming:
        session.run.reopen()
    else:
        write_atomic(session.run.path / NAME, file_of(ready, session.texts))
        for record in published_beside(full_scale or ready):
            session.run.append(record)
        for claim in session.claims:
            session.run.append(claim)
    for experiment, error in zip(ready, lacking, strict=True):
        if experiment.name in done:
            session.restore(experiment, done[experiment.name])
        else:
            session.train(experiment, error)
    for number in range(2, 1 + max(experiment.expected.rounds for experiment in ready)):
        session.repeat(number)


@dataclass(slots=True, kw_only=True)
class TrainRun:
    """An open run and the trainings in it.

    All that is known of an experiment is written after each of its rounds: of several points the
    last one counts.
    """

    run: RunWriter
    targets: Sequence[Target]
    claims: Sequence[Record]
    snapshot: Snapshot
    watch: Watcher
    stall_timeout: float = STALL_TIMEOUT
    texts: Mapping[str, str] = field(default_factory=dict)
    """Folder of data → hash of its text."""
    total: int = 1
    done: int = 0
    """Cases of the run that are over, whatever was measured in them."""
    grounds: Grounds = field(default_factory=Grounds)
    """Measured rates and corrections behind the predictions."""
    expected: Mapping[Any, Record] = field(default_factory=dict)
    """Predictions by key and device that stand: with a value, another one is not written."""
    alone: bool = False
    """True if one experiment is trained: a batch that does not fit is then halved."""
    resuming: bool = False
    trace: bool = False
    """Ranks keep the traces of their profiled steps."""
    deadline: float = math.inf
    """When trainings are given up, on time.monotonic."""
    _trained: list[Trained] = field(default_factory=list)
    """Experiments trained by this process."""
    _references: list[tuple[Experiment, Probe | None]] = field(default_factory=list)
    _others: int = 0
    _telemetry: TelemetryWriter = field(init=False)

    def __post_init__(self) -> None:
        self._telemetry = TelemetryWriter(self.run)

    def restore(self, experiment: Experiment, result: TrainingResult) -> None:
        """Count what an earlier process trained in this run, and compare others with it."""
        resized = experiment.replace(auto_batch=False, batch_size=result.layout.batch_size)
        if is_reference(resized, resized):
            losses, norms = result.loss.parity.losses, result.loss.parity.grad_norms
            probe = Probe(losses=losses, grad_norms=norms) if losses else None
            self._references.append((resized, probe))
        self.done += 1
        self.watch(Progress(text=f"{experiment.name}: done before", done=self.done))

    def _new(self, experiment: Experiment) -> Trained:
        slug = f"{self.done + 1:02d}-{slug_of(experiment.name)}"
        return Trained(experiment=experiment, slug=slug, auto_batch=experiment.auto_batch)

    def train(self, experiment: Experiment, lacking: UnavailableError | None) -> None:
        """Train one experiment, compare it, write it down."""
        outcome = self._new(experiment)
        if lacking is not None:
            outcome.status, outcome.reason = Status.SKIPPED, lacking.message
            outcome.needs_gpu = isinstance(lacking, (NeedsGpuError, NeedsCompilerError))
            self._finish(outcome)
            return
        try:
            self._prepare(outcome)
            self._fit_or_train(outcome)
            while outcome.status is Status.OOM and self._halve(outcome):
                self._fit_or_train(outcome)
            if outcome.status is Status.OK and self._is_level(experiment):
                text = "the first steps again, in a second process"
                self.watch(Progress(text=text, level="running"))
                stop = min(CHECKED_STEPS, experiment.steps)
                self._again(outcome, f"{outcome.slug}-check", 2, stop=stop)
            self._compare(outcome)
        except KeyboardInterrupt:
            outcome.reason = "interrupted"
            if outcome.status is not Status.OK or not outcome.first.result.rows:
                outcome.status = Status.SKIPPED
            self._finish(outcome)
            raise
        self._finish(outcome)

    def repeat(self, number: int) -> None:
        """Round ``number`` of what trained well: only its speed is of interest now."""
        for outcome in self._trained:
            if outcome.status is Status.OK and outcome.experiment.expected.rounds >= number:
                self._again(outcome, f"{outcome.slug}-round-{number}", number)
                self._write(outcome)

    def _again(
        self,
        outcome: Trained,
        slug: str,
        number: int,
        *,
        stop: int | None = None,
        seconds: float | None = None,
    ) -> None:
        """Train by fresh processes for the speed alone."""
        launch = Launch()
        self._train(outcome, launch, slug, Job(probe=False, stop=stop, seconds=seconds), number)
        is_late = self._is_late(launch.status)
        if launch.status is Status.OK or (is_late and launch.rows):
            outcome.rounds.append(launch)
        elif not is_late:
            outcome.status, outcome.reason = launch.status, f"round {number}: {launch.reason}"

    def _is_late(self, status: Status) -> bool:
        """Return whether the end of the budget cut the training short."""
        return status is Status.TIMEOUT and time.monotonic() >= self.deadline

    def measure_step(self, experiment: Experiment, seconds: float) -> Record:
        """Measure a qualification's training step: fresh processes train for ``seconds`` each.

        Two that are alike make the number; a third decides where they are not and much time is
        left.  Where little is, each trains for less, and what was trained when the time was over
        counts: a few steps say what a step takes.  That the loss falls is the check of the answer.
        """
        self._predict(experiment)
        outcome = self._new(experiment)
        outcome.must_agree = outcome.compared = True
        half = (self.deadline - time.monotonic()) / WORKERS
        first_seconds = min(seconds, max(half - LAUNCH_TIME, _LEAST_TRAINED))
        self._train_first(outcome, outcome.slug, Job(probe=False, seconds=first_seconds))
        if self._is_late(outcome.status) and outcome.first.rows:
            outcome.status, outcome.reason = Status.OK, None
        launch = max(outcome.first.duration - first_seconds, 0.0)
        number = 2
        while outcome.status is Status.OK and (number == 2 or outcome.disturbed) and number < 4:
            left_s = self.deadline - time.monotonic() - 1.2 * launch
            if left_s < (0.0 if number == 2 else WORKERS * (launch + first_seconds)):
                break
            slug = f"{outcome.slug}-round-{number}"
            self._again(
                outcome, slug, number, seconds=min(first_seconds, max(left_s, _LEAST_TRAINED))
            )
            number += 1
        wrong = not_falling([row["loss"] for row in outcome.first.result.rows])
        if outcome.status is Status.OK and wrong is not None:
            outcome.status, outcome.reason = Status.FAILED, f"{WRONG_ANSWER}: {wrong}"
        if outcome.status is Status.FAILED and "training stopped" in (outcome.reason or ""):
            outcome.reason = f"{WRONG_ANSWER}: {outcome.reason}"
        if self._is_late(outcome.status):
            outcome.status, outcome.reason = Status.SKIPPED, "the budget ended while it ran"
        return self._finish(outcome)

    def _is_level(self, experiment: Experiment) -> bool:
        """Return whether the experiment is one process of our trainer, alone in its run."""
        return self.alone and is_alone(experiment)

    def _prepare(self, outcome: Trained) -> None:
        """Choose the first batch size and measure the ceiling below the step, where needed."""
        experiment = outcome.experiment
        if experiment.auto_batch:
            self._choose_batch(outcome)
        is_level = self._is_level(experiment)
        if not is_level and not (experiment.expected.bar and is_alone(experiment)):
            return
        outcome.must_agree = is_level
        causal = objective_of(find(experiment.model)) == "causal"
        if is_level and causal and experiment.steps >= LEARNING_STEPS:
            outcome.entropy = read_manifest(Path(experiment.data)).unigram_entropy_nats
        target = self._target(experiment)
        environment = environment_of(experiment, self.snapshot)
        outcome.ceiling = measure_ceiling(
            self.run, target, experiment.precision, self.claims, environment, self.watch
        )
        if is_level and outcome.ceiling is not None:
            points = (*self.grounds.points, outcome.ceiling)
            self.grounds = dataclasses.replace(self.grounds, points=points)

    def _choose_batch(self, outcome: Trained) -> None:
        """Choose the batch size to train first, by formula or by doubling."""
        experiment = outcome.experiment.replace(auto_batch=False)
        free = self._target(experiment).memory_bytes
        folder = checkpoints_of(self.run.path, outcome.slug)
        if self.resuming and newest(folder) is not None:
            samples = Experiment.of(**read_saved(folder).experiment).global_samples
            batch = max(1, samples // (experiment.mesh.dp * experiment.grad_accum))
            reason = "that of its checkpoint"
        elif free > 0:
            batch, reason = guess(experiment, free), "the largest that should fit, or the bound"
        else:
            batch, reason = by_doubling(experiment, self._fits), "the last that did, doubled from 1"
        outcome.experiment = experiment.replace(batch_size=batch)
        self.watch(Progress(text=f"{experiment.name}: batch_size auto: {batch}, {reason}"))

    def _fits(self, experiment: Experiment) -> bool:
        """Return whether a few steps train; a size that does not fit becomes a record."""
        trial = self._new(experiment)
        text = f"{experiment.name}: does a batch of {experiment.batch_size} fit?"
        self.watch(Progress(text=text, level="running"))
        folder = self.run.path / "logs" / f"{trial.slug}-fits-{experiment.batch_size}"
        launch = Launch()
        self._launch(experiment, launch, folder, Job(probe=False))
        if launch.status is Status.OOM and experiment.batch_size > 1:  # 1 is trained: it says so
            trial.status, trial.reason, trial.rounds = launch.status, launch.reason, [launch]
            self._record(trial, went_on=experiment.batch_size // 2)
        return launch.status is Status.OK

    def _halve(self, outcome: Trained) -> bool:
        """Record that a size did not fit, and prepare half of it; False where none is left."""
        batch = smaller(outcome.experiment.batch_size)
        free = self._target(outcome.experiment).memory_bytes
        if not (outcome.auto_batch or self._is_level(outcome.experiment)) or self.resuming:
            return False
        if batch is None or states_do_not_fit(outcome.experiment, free) is not None:
            return False
        self._record(outcome, went_on=batch)
        self.watch(Progress(text=f"{outcome.reason}: trying a batch of {batch}"))
        outcome.experiment = outcome.experiment.replace(batch_size=batch)
        outcome.status, outcome.reason, outcome.rounds = Status.OK, None, []
        return True

    def _record(self, outcome: Trained, went_on: int | None = None) -> dict[str, Record]:
        """Write the records of a training; by metric."""
        data_hash = self.texts[outcome.experiment.data]
        target = self._target(outcome.experiment)
        claims = of_device(self.claims, target.name, target.index)
        outcome.peak = ceiling(claims, TRAINING.name, {"dtype": outcome.experiment.precision})
        environment = environment_of(outcome.experiment, self.snapshot)
        records = records_of(outcome, target, data_hash, environment, went_on)
        return {record.metric: self.run.append(record) for record in records}

    def _finish(self, outcome: Trained) -> Record:
        self._trained.append(outcome)
        self.done += 1
        return self._write(outcome)

    def _write(self, outcome: Trained) -> Record:
        """Write its records; the first one, of its time."""
        records = self._record(outcome)
        text = outcome_line(outcome, records)
        self.watch(Progress(text=text, done=self.done, total=self.total))
        return records["time"]

    def _fit_or_train(self, outcome: Trained) -> None:
        """Train what may fit; what surely does not would take the machine down with it."""
        experiment = outcome.experiment
        free = self._target(experiment).memory_bytes
        reason = states_do_not_fit(experiment, free) or swapping(experiment, free)
        if reason is not None:
            outcome.status, outcome.reason = Status.OOM, reason
            return
        self._predict(experiment)
        slug = outcome.folder_name
        job = Job(trace=self.trace)
        if experiment.framework == REFERENCE:  # it saves, goes on, and says its held-out loss
            folder = checkpoints_of(self.run.path, outcome.slug)
            goes_on = self.resuming and newest(folder) is not None
            if not goes_on:  # those of a batch that did not fit
                shutil.rmtree(folder, ignore_errors=True)
            job = Job(
                trace=self.trace,
                probe=not self._is_level(experiment),
                checkpoint=str(folder),
                resume=str(folder) if goes_on or experiment.recovery.max_restarts else "",
                heldout=experiment.heldout.batches > 0,
            )
        self._train_first(outcome, slug, job)
        if outcome.status is Status.OK and not self.alone and job.checkpoint:
            shutil.rmtree(job.checkpoint, ignore_errors=True)

    def _predict(self, experiment: Experiment) -> None:
        """Write the predictions of an experiment before it is trained."""
        case = case_of(experiment, self.texts[experiment.data])
        environment = environment_of(experiment, self.snapshot)
        target = self._target(experiment)
        for record in forecast(experiment, case, target, environment, self.grounds):
            expected = self.expected.get((record.key, record.device_index))
            if expected is None:
                self.run.append(record)
            elif expected.value is None:  # what the plan requires is required of its prediction
                conditions = {**expected.conditions, **record.conditions}
                self.run.append(record.replace(conditions=conditions))

    def _target(self, experiment: Experiment) -> Target:
        fitting = choose(self.targets, "cuda" if experiment.device == "cuda" else "cpu")
        first_device = experiment.device_numbers[:1]
        return next((target for target in fitting if target.index in first_device), fitting[0])

    def _train_first(self, outcome: Trained, slug: str, job: Job) -> None:
        launch = Launch()
        outcome.rounds = [launch]  # before: what is broken off has steps, too
        self._train(outcome, launch, slug, job)
        outcome.status, outcome.reason = launch.status, launch.reason

    def _train(
        self, outcome: Trained, launch: Launch, slug: str, job: Job, number: int = 1
    ) -> None:
        experiment = outcome.experiment
        series = STEPS + slug_of(experiment.name)
        if outcome.must_agree and experiment.placement.devices:  # one name on several GPUs
            series += f"-gpu-{experiment.placement.devices}"

        stopped: list[object] = []

        def on_event(rank: int, event: Mapping[str, Any]) -> None:
            if event["event"] == "stopped":
                stopped.append(event)
            if rank == 0 and event["event"] == "resumed":
                self.watch(Progress(text=resumed_line(experiment.name, event), level="stage"))
            if rank == 0 and event["event"] == "heldout" and event["loss"] is not None:
                text = f"{experiment.name}: held-out loss after {event['step']} steps"
                self.watch(Progress(text=f"{text}: {event['loss']:.4f}"))
            if rank == 0 and event["event"] == "row":
                row = step_row(event, number, launch.training_id)
                self.run.append_series(series, row)
                self.watch(Progress(text=step_line(experiment, row), level="running"))

        with train_logs.opened(experiment, self.run.path, number, self.watch) as logged:
            folder = self.run.path / "logs" / slug
            self._launch(experiment, launch, folder, job, logged(on_event))
        if stopped:  # a scheduler's SIGTERM went to its ranks: they have saved
            raise KeyboardInterrupt

    def _launch(
        self,
        experiment: Experiment,
        launch: Launch,
        folder: Path,
        job: Job,
        on_event: OnEvent = lambda _rank, _event: None,
    ) -> None:
        """Start an experiment's processes once, and keep what came of it in ``launch``."""
        engine = ENGINES[experiment.framework]
        shutil.rmtree(folder, ignore_errors=True)  # of a training that was broken off
        with store_errors(folder):
            command = engine.command(experiment, folder, job)
        command = dataclasses.replace(command, cpus=cpus_of_ranks(experiment, self.snapshot))
        launch.load = os.getloadavg()[0]
        meters = meters_of(experiment, self.snapshot)
        with noise.watch_neighbours() as watched, energy.watch(meters):
            ended = self._launched(command, folder, on_event)
        launch.disturbed = watched.disturbed
        launch.status, launch.reason, launch.duration = ended.status, ended.reason, ended.duration
        launch.result = result = engine.collect(folder)
        launch.devices = devices_of(result, self.snapshot)
        uuids = [str(device["uuid"]) for device in launch.devices if device.get("uuid")]
        counters = energy.of_devices(meters, uuids)
        launch.used = energy.used(counters, steps_after_warm_up(result.stretch), result.ended)
        if ended.status is Status.OK and 0 < result.ranks < experiment.processes:
            launch.disturbed = f"{result.ranks} of its {experiment.processes} ranks were left"
        fine = tuple(itertools.takewhile(lambda row: row["loss"] is not None, result.rows))
        if fine != result.rows:
            launch.status = Status.FAILED
            launch.reason = f"the loss is no number at step {len(fine)}"
            launch.result = dataclasses.replace(result, rows=fine)
        elif ended.status is Status.OK and not result.rows:
            launch.status, launch.reason = Status.FAILED, "its ranks ended without a step"

    def _launched(self, command: Command, folder: Path, on_event: OnEvent) -> Ended:
        """Return the launch's result; a failed start is a fault of this training alone."""
        try:
            with store_errors(folder):
                return launch(
                    command,
                    folder,
                    stall_timeout=self.stall_timeout,
                    limit=max(1.0, self.deadline - time.monotonic()),
                    on_event=on_event,
                    tick=self._telemetry.tick,
                )
        except (UnavailableError, UsageError) as error:  # a port that another program took
            return Ended(status=Status.FAILED, reason=error.message)
        finally:
            (folder / "weights.pt").unlink(missing_ok=True)

    def _compare(self, outcome: Trained) -> None:
        """Compare the loss with one process on the same samples, if that reference trained."""
        if outcome.status is Status.OK and self._is_level(outcome.experiment):
            outcome.compared = True  # it is what others are compared with
        probe = outcome.first.result.probe
        if outcome.status is not Status.OK or probe is None:
            if outcome.status is Status.OK and not outcome.compared:
                outcome.no_reference = "its framework trained no steps to compare"
            return
        compared = outcome.experiment
        if is_reference(compared, compared):
            self._references.append((compared, probe))
        if too_large := states_do_not_fit(
            reference_of(compared), self._target(compared).memory_bytes
        ):
            compared = shortened(compared)
            probe = self._untimed(outcome, compared, f"{outcome.experiment.name} with fewer layers")
        reference = probe and self._reference(outcome, compared)
        if probe and reference:
            outcome.compared = True
            if too_large:
                outcome.compared_with = f"{compared.model}: of the whole model, {too_large}"
            outcome.not_comparable = disagreement(probe, reference, compared.precision)
            outcome.reference_loss = reference.losses[0] if reference.losses else None
            outcome.gaps = gaps(probe, reference)

    def _reference(self, outcome: Trained, experiment: Experiment) -> Probe | None:
        for known_experiment, reference in self._references:
            if is_reference(known_experiment, experiment):
                return reference
        reference_experiment = split_to_fit(
            reference_of(experiment), self._target(experiment).memory_bytes
        )
        name = f"the reference of {outcome.experiment.name}"
        trained = self._untimed(outcome, reference_experiment.replace(steps=1), name)
        self._references.append((reference_experiment, trained))
        return trained

    def _untimed(self, outcome: Trained, experiment: Experiment, name: str) -> Probe | None:
        """Return the comparison's five steps of an experiment; ``outcome`` says why not."""
        self.watch(Progress(text=name, level="running"))
        self._others += 1
        reason = states_do_not_fit(experiment, self._target(experiment).memory_bytes)
        launch = Launch(reason=reason)
        if reason is None:
            folder = self.run.path / "logs" / f"reference-{self._others}"
            self._launch(experiment, launch, folder, Job())
        if launch.result.probe is None:
            outcome.no_reference = launch.reason or "its reference ended without its losses"
        return launch.result.probe
