"""An open run of experiments: each is trained, compared with one process of ours, written down.

A batch that is looked for is halved until it fits.  What trained well is trained again in further
rounds, in turns with the others; these say something of its speed alone.  All that is known of an
experiment is written after each of its rounds: of several points and summaries the last one counts.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainrig.analysis import training_results
from trainrig.catalog.published.training import baselines, published_for
from trainrig.errors import NeedsGpuError, UnavailableError, UsageError
from trainrig.machine.snapshot import Snapshot
from trainrig.measure import noise
from trainrig.predict import ceiling, of_device
from trainrig.process.supervisor import Command, Ended, OnEvent, launch
from trainrig.record import Finding, Record, Status, new_id
from trainrig.runner import energy
from trainrig.runner.batch_size import by_doubling, guess, hopeless, smaller, swapping
from trainrig.runner.experiment_findings import findings_of
from trainrig.runner.experiment_forecast import Grounds, forecast
from trainrig.runner.experiment_trained import Trained, counted
from trainrig.runner.progress import Progress, Watcher
from trainrig.runner.targets import Target, choose
from trainrig.runner.train_devices import found_by, meters_of
from trainrig.runner.train_prepare import environment_of
from trainrig.runner.train_records import case_for, records_of, summary_of
from trainrig.runner.train_resume import recalled
from trainrig.store import RunWriter, store_errors
from trainrig.train.config import Experiment
from trainrig.train.engines import ALL, Result
from trainrig.train.parity import Probe, disagreement, is_reference, reference_of
from trainrig.units import format_quantity


@dataclass(slots=True, kw_only=True)
class Session:
    """An open run and what has been trained in it."""

    run: RunWriter
    targets: Sequence[Target]
    claims: Sequence[Record]
    snapshot: Snapshot
    watch: Watcher
    stall_timeout: float
    texts: Mapping[str, str]
    """Folder of data → hash of its text."""
    total: int
    grounds: Grounds = field(default_factory=Grounds)
    """What predictions rest on."""
    trained: list[Trained] = field(default_factory=list)
    _staying: list[Finding] = field(default_factory=list)
    """Findings that a later round does not change."""
    _latest: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    """Those of each experiment, as it stands."""
    _references: list[tuple[Experiment, Probe | None]] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """What is wrong, so far."""
        return [*self._staying, *(found for each in self._latest.values() for found in each)]

    def stand_beside(self, experiments: Sequence[Experiment]) -> None:
        """Write down what others published of the same cases, before anything is measured."""
        known = tuple(baselines())
        for own in experiments:
            for record in published_for(case_for(own, ""), own.backend, known):
                conditions = {**record.conditions, "experiment": own.name}
                self.run.append(record.replace(id=new_id(), conditions=conditions))

    def recall(self, experiment: Experiment, summary: Mapping[str, Any]) -> None:
        """Take what an earlier process trained in this run as it is."""
        slug = self._next_slug(Trained(experiment=experiment))
        logs = self.run.path / "logs"
        found = recalled(
            experiment, summary, (logs / slug, logs / _sized(slug, summary["batch_size"]))
        )
        if is_reference(found.experiment, found.experiment):
            self._references.append((found.experiment, found.result.probe))
        self.trained.append(found)
        self._latest[experiment.name] = tuple(findings_of(found, ()))
        self.watch(Progress(text=f"{experiment.name}: done before", done=len(self.trained)))

    def take(self, experiment: Experiment, lacking: UnavailableError | None) -> None:
        """Train one experiment, compare it, write it down."""
        found = Trained(experiment=experiment, auto_batch=experiment.auto_batch)
        if lacking is not None:
            found.status, found.reason = Status.SKIPPED, lacking.message
            found.moot = isinstance(lacking, NeedsGpuError)
            return self._keep(found)
        try:
            if experiment.auto_batch:
                self._choose_batch(found)
            self._fit_or_train(found)
            while found.auto_batch and found.status is Status.OOM and self._halve(found):
                self._fit_or_train(found)
            self._compare(found)
        except KeyboardInterrupt:
            found.reason = "interrupted"
            if found.status is not Status.OK or not found.result.rows:  # else it has been trained
                found.status = Status.SKIPPED
            self._keep(found)
            raise
        return self._keep(found)

    def take_again(self, number: int) -> None:
        """Round ``number`` of what trained well: only its speed is of interest now."""
        for place, found in enumerate(self.trained, 1):
            if found.status is not Status.OK or found.experiment.rounds < number or found.recalled:
                continue
            once = Trained(experiment=found.experiment)
            self._train(once, f"{_slug(place, found)}-round-{number}", probe=False)
            found.duration += once.duration
            if once.status is Status.OK:
                found.again.append(once.rounds[0])
            else:
                found.status, found.reason = once.status, f"round {number}: {once.reason}"
            self._write(found)

    def _choose_batch(self, found: Trained) -> None:
        """The size that is trained first, by formula or by doubling."""
        own = found.experiment.replace(auto_batch=False)
        free = self._target(own).memory_bytes
        if free > 0:
            batch, how = guess(own, free), "the largest that should fit, or the bound"
        else:
            batch, how = by_doubling(own, self._fits), "the last that did, doubled from 1"
        found.experiment = own.replace(batch_size=batch)
        self.watch(Progress(text=f"{own.name}: batch_size auto: {batch}, {how}"))

    def _fits(self, own: Experiment) -> bool:
        """Whether a few steps of it train; a size that does not is a record."""
        trial = Trained(experiment=own)
        self.watch(
            Progress(text=f"{own.name}: does a batch of {own.batch_size} fit?", level="running")
        )
        folder = self.run.path / "logs" / f"{self._next_slug(trial)}-fits-{own.batch_size}"
        self._launch(trial, folder, lambda _rank, _event: None, probe=False)
        if trial.status is Status.OOM and own.batch_size > 1:  # 1 is trained, and says it itself
            self._staying += self._record(trial, went_on=own.batch_size // 2)
        return trial.status is Status.OK

    def _halve(self, found: Trained) -> bool:
        """Record that a size did not fit, and prepare half of it; False where none is left."""
        batch = smaller(found.experiment.batch_size)
        free = self._target(found.experiment).memory_bytes
        if batch is None or hopeless(found.experiment, free) is not None:
            return False
        self._staying += self._record(found, went_on=batch)
        self.watch(Progress(text=f"{found.reason}: trying a batch of {batch}"))
        found.experiment = found.experiment.replace(batch_size=batch)
        found.status, found.reason, found.result = Status.OK, None, Result()
        return True

    def _record(self, found: Trained, went_on: int | None = None) -> tuple[Finding, ...]:
        """Write the records of a training; what is wrong with it."""
        data_hash = self.texts[found.experiment.data]
        target = self._target(found.experiment)
        own = of_device(self.claims, target.name, target.index)
        found.peak = ceiling(own, "step", {"precision": found.experiment.precision})
        environment = environment_of(found.experiment, self.snapshot)
        records = records_of(found, target, data_hash, environment)
        kept = [self.run.append(record) for record in records]
        return tuple(findings_of(found, kept, went_on))

    def _keep(self, found: Trained) -> None:
        self.trained.append(found)
        self._write(found)

    def _write(self, found: Trained) -> None:
        """What is known of it so far: of several points and summaries the last one counts."""
        self._latest[found.experiment.name] = self._record(found)
        self.run.append_series(training_results.SERIES, summary_of(found))
        self.watch(Progress(text=_line(found), done=len(self.trained), total=self.total))

    def _fit_or_train(self, found: Trained) -> None:
        """Train what may fit; what surely does not would take the machine down with it."""
        free = self._target(found.experiment).memory_bytes
        reason = hopeless(found.experiment, free) or swapping(found.experiment, free)
        if reason is None:
            self._foretell(found.experiment)
            slug = self._next_slug(found)
            if found.auto_batch:
                slug = _sized(slug, found.experiment.batch_size)
            return self._train(found, slug)
        found.status, found.reason = Status.OOM, reason
        return None

    def _foretell(self, own: Experiment) -> None:
        """Write down what it should take, before it is trained."""
        case, environment = case_for(own, self.texts[own.data]), environment_of(own, self.snapshot)
        found = forecast(own, case, self._target(own), environment, self.grounds)
        for record in found:
            self.run.append(record)

    def _target(self, experiment: Experiment) -> Target:
        found = choose(self.targets, "cuda" if experiment.device == "cuda" else "cpu")
        first = experiment.device_numbers[:1]
        return next((target for target in found if target.index in first), found[0])

    def _train(self, found: Trained, slug: str, *, probe: bool = True) -> None:
        own = found.experiment

        def heard(rank: int, event: Mapping[str, Any]) -> None:
            if rank == 0 and event["event"] == "row":
                row = {name: value for name, value in event.items() if name not in _OF_EVENTS}
                self.run.append_series(slug, row)
                loss = "no number" if row["loss"] is None else f"{row['loss']:.3f}"
                text = f"{own.name}: step {row['step'] + 1} of {own.steps}: loss {loss}"
                self.watch(Progress(text=text, level="running"))

        self._launch(found, self.run.path / "logs" / slug, heard, probe=probe)

    def _next_slug(self, found: Trained) -> str:
        return _slug(len(self.trained) + 1, found)

    def _launch(self, found: Trained, folder: Path, heard: Any, *, probe: bool = True) -> None:
        backend = ALL[found.experiment.backend]
        shutil.rmtree(folder, ignore_errors=True)  # of a training that was broken off
        with store_errors(folder):
            command = backend.command(found.experiment, folder, probe=probe)
        found.load = os.getloadavg()[0]
        meters = meters_of(found.experiment, self.snapshot)
        with noise.watch_neighbours() as watched, energy.watch(meters):
            ended = self._launched(command, folder, heard)
        found.busy = watched.disturbed
        found.status, found.reason = ended.status, ended.reason
        found.duration = ended.duration
        found.result = backend.collect(folder)
        self._look_at(found, meters)
        rows = found.result.rows
        fine = tuple(itertools.takewhile(lambda row: row["loss"] is not None, rows))
        if fine != rows:
            found.status = Status.FAILED
            found.reason = f"the loss is no number at step {len(fine)}"
            found.result = dataclasses.replace(found.result, rows=fine)
        elif ended.status is Status.OK and not rows:
            found.status, found.reason = Status.FAILED, "its ranks ended and told of no step"

    def _launched(self, command: Command, folder: Path, heard: OnEvent) -> Ended:
        """How it ended; what it cannot be started for is a fault of this training alone."""
        try:
            with store_errors(folder):
                return launch(command, folder, stall_timeout=self.stall_timeout, on_event=heard)
        except (UnavailableError, UsageError) as error:  # a port that another program took
            return Ended(status=Status.FAILED, reason=error.message)
        finally:
            (folder / "weights.pt").unlink(missing_ok=True)

    def _look_at(self, found: Trained, meters: energy.Meters) -> None:
        """Which devices it had, and what they used."""
        result = found.result
        found.devices = found_by(result, self.snapshot)
        uuids = [str(device["uuid"]) for device in found.devices if device.get("uuid")]
        counters = energy.of_devices(meters, uuids)
        found.used = energy.used(counters, counted(result.rows), result.ended)

    def _compare(self, found: Trained) -> None:
        """With one process on the same samples; a reference that failed compares with nothing."""
        if found.status is not Status.OK or found.result.probe is None:
            return
        reference = self._reference(found)
        if reference is not None:
            found.compared = True
            found.apart = disagreement(found.result.probe, reference, found.experiment.precision)

    def _reference(self, found: Trained) -> Probe | None:
        own = found.experiment
        if is_reference(own, own):
            self._references.append((own, found.result.probe))
        for experiment, probe in self._references:
            if is_reference(experiment, own):
                return probe
        reference = Trained(experiment=reference_of(own).replace(steps=1))
        self.watch(Progress(text=f"the one-process reference of {own.name}", level="running"))
        folder = self.run.path / "logs" / f"reference-{len(self._references) + 1}"
        reference.reason = hopeless(reference.experiment, self._target(own).memory_bytes)
        if reference.reason is None:
            self._launch(reference, folder, lambda _rank, _event: None)
        self._references.append((reference.experiment, reference.result.probe))
        if reference.result.probe is None:
            self._staying.append(
                Finding(
                    id="no-reference",
                    severity="warning",
                    evidence=f"{own.name} is compared with nothing: {reference.reason}",
                    fix="an experiment of one process on the same samples shows what is wrong",
                )
            )
        return reference.result.probe


_OF_EVENTS = ("event", "at")


def _slug(place: int, found: Trained) -> str:
    return f"{place:02d}-{slug_of(found.experiment.name)}"


def _sized(slug: str, batch: int) -> str:
    return f"{slug}-batch-{batch}"


def slug_of(name: str) -> str:
    """A name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "experiment"


def _line(found: Trained) -> str:
    if found.status is not Status.OK:
        return f"{found.experiment.name}: {found.status.value}: {found.reason}"
    seconds, rows = found.mean("time") or 0.0, found.result.rows
    rate = found.experiment.global_samples / seconds if seconds else 0.0
    word = found.word if found.word != "PASS" else "as the reference"
    return (
        f"{found.experiment.name}: {format_quantity(rate, 'sample/s')}, loss "
        f"{rows[0]['loss']:.4f} to {rows[-1]['loss']:.4f}: {word}"
    )
