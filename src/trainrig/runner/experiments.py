"""Experiments as a run: each trained by its engine in processes of its own, compared, judged.

What contradicts itself or cannot run here is refused before anything is written; of several
experiments, one that this machine lacks something for becomes a record that says so.  Each is
compared with one process of ours on the same samples (`train.parity`): an experiment of the run
that is one, or else a reference that is trained for nothing else.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainrig.catalog.published.training import baselines
from trainrig.data.manifest import read_manifest
from trainrig.errors import UnavailableError, UsageError
from trainrig.machine import environment_digest, inspect, to_dict, value_or
from trainrig.predict import ceiling, of_device
from trainrig.record import Finding, Record, Status, Verdict
from trainrig.report.beside import published_for, row_of
from trainrig.report.versus import as_dicts
from trainrig.runner import neighbours
from trainrig.runner.batch_sizes import by_doubling, guess, smaller, state_bytes
from trainrig.runner.experiment_records import (
    Trained,
    case_for,
    findings_of,
    records_of,
    summary_of,
)
from trainrig.runner.experiment_site import lacks, placed, with_data
from trainrig.runner.experiment_verdict import verdict_of
from trainrig.runner.interrupt import interrupted_once
from trainrig.runner.prepare import claims_for
from trainrig.runner.progress import Progress, Watcher, nobody
from trainrig.runner.show import view_of
from trainrig.runner.targets import Target, choose, find_targets
from trainrig.store import RunWriter, create_run, read_run
from trainrig.train.backends import ALL, Result, Site
from trainrig.train.experiment import Experiment
from trainrig.train.experiment import to_dict as experiment_dict
from trainrig.train.files import experiment_of, read_file
from trainrig.train.launch import SILENCE, launch, master_port
from trainrig.train.parity import Probe, disagreement, is_reference, reference_of
from trainrig.units import format_memory, format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What came of a run of experiments."""

    run: Path
    verdict: Verdict
    trained: tuple[Trained, ...]
    interrupted: bool


def asked_for(file: Path | None, keys: Mapping[str, Any]) -> tuple[Experiment, ...]:
    """The experiments of a file, or the one that keys of the command line describe.

    Raises UsageError, DataError.
    """
    named = {key: value for key, value in keys.items() if value is not None}
    if file is None:
        found = experiment_of(named)
        return (found.replace(name=found.name or found.backend),)
    for key in named:
        if key not in _BESIDE_FILE:
            raise UsageError(
                f"--{key.replace('_', '-')} beside a file: the file says what is trained",
                "beside it: " + ", ".join(f"--{key}" for key in _BESIDE_FILE),
            )
    return read_file(file, named)


_BESIDE_FILE = ("scale", "steps", "seed", "data", "device")


def run_experiments(
    experiments: Sequence[Experiment],
    *,
    out: Path = Path("runs"),
    watch: Watcher = nobody,
    silence: float = SILENCE,
) -> Outcomes:
    """Train them one after another in a new run, and judge what came out."""
    snapshot = inspect()
    targets = find_targets(snapshot)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    site = Site(gpus=sum(target.is_gpu for target in targets), cores=cores or 1)
    ready = [placed(experiment, site) for experiment in with_data(experiments, watch)]
    lacking = [lacks(experiment, site) for experiment in ready]
    if all(lacking) and lacking[0] is not None:
        raise lacking[0]
    if any(experiment.nproc > 1 for experiment in ready):
        master_port()  # one that is taken is refused before a run is made
    with create_run(out, "train", _config(ready)) as run, interrupted_once():
        watch(Progress(text=f"run {run.path}", level="stage"))
        run.write_machine(to_dict(snapshot))
        hostname = value_or(snapshot.host.hostname, "")
        session = _Session(
            run=run,
            targets=targets,
            claims=claims_for(snapshot, targets),
            environment=environment_digest(snapshot),
            watch=watch,
            silence=silence,
            total=len(ready),
        )
        watch(Progress(text=f"{len(ready)} experiments on {hostname}", level="stage"))
        if any(experiment.device == "cuda" and experiment.nproc > 1 for experiment in ready):
            watch(Progress(text="NCCL, P2P and FSDP on GPUs: unverified on hardware"))
        session.stand_beside(ready)
        interrupted = None
        try:
            for experiment, error in zip(ready, lacking, strict=True):
                session.take(experiment, error)
            for number in range(2, 1 + max(experiment.rounds for experiment in ready)):
                session.take_again(number)
        except KeyboardInterrupt:
            interrupted = "interrupted: the experiments that were done are in the run"
        return _close(session, interrupted)


def _config(experiments: Sequence[Experiment]) -> dict[str, Any]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "trainrig": version("trainrig"),
        "python": sys.version.split()[0],
        "argv": sys.argv[1:],
        **({"cuda_visible_devices": visible} if visible is not None else {}),
        "experiments": [experiment_dict(experiment) for experiment in experiments],
    }


@dataclass(slots=True, kw_only=True)
class _Session:
    """An open run and what has been trained in it."""

    run: RunWriter
    targets: Sequence[Target]
    claims: Sequence[Record]
    environment: str
    watch: Watcher
    silence: float
    total: int
    trained: list[Trained] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """Those that stay, whatever a later round shows."""
    latest: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    """Of each experiment, as it stands."""
    references: list[tuple[Experiment, Probe | None]] = field(default_factory=list)

    def stand_beside(self, experiments: Sequence[Experiment]) -> None:
        """Write down what others published of the same cases, before anything is measured."""
        known, written = tuple(baselines()), set[str]()
        for own in experiments:
            for record in published_for(case_for(own, ""), known):
                if record.id not in written:
                    self.run.append(record)
                written.add(record.id)
                self.run.append_series("published", row_of(own.name, record))

    def take(self, experiment: Experiment, lacking: UnavailableError | None) -> None:
        """Train one experiment, compare it, write it down."""
        found = Trained(experiment=experiment, auto_batch=experiment.auto_batch)
        if lacking is not None:
            found.status, found.reason = Status.SKIPPED, lacking.message
            return self._keep(found)
        try:
            if experiment.auto_batch:
                self._choose_batch(found)
            self._fit_or_train(found)
            while found.auto_batch and found.status is Status.OOM and self._halve(found):
                self._fit_or_train(found)
            self._compare(found)
        except KeyboardInterrupt:
            found.status, found.reason = Status.SKIPPED, "interrupted"
            self._keep(found)
            raise
        return self._keep(found)

    def take_again(self, number: int) -> None:
        """Round ``number`` of what trained well: only its speed is of interest now."""
        for place, found in enumerate(self.trained, 1):
            if found.status is not Status.OK or found.experiment.rounds < number:
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
        found.experiment = own.replace(batch=batch)
        self.watch(Progress(text=f"{own.name}: batch_size auto: {batch}, {how}"))

    def _fits(self, own: Experiment) -> bool:
        """Whether a few steps of it train; a size that does not is a record."""
        trial = Trained(experiment=own)
        self.watch(Progress(text=f"{own.name}: does a batch of {own.batch} fit?", level="running"))
        folder = self.run.path / "logs" / f"{self._next_slug(trial)}-fits-{own.batch}"
        self._launch(trial, folder, lambda _rank, _event: None, probe=False)
        if trial.status is Status.OOM and own.batch > 1:  # 1 is trained, and says it itself
            self.findings += self._record(trial, went_on=own.batch // 2)
        return trial.status is Status.OK

    def _halve(self, found: Trained) -> bool:
        """Record that a size did not fit, and prepare half of it; False where none is left."""
        batch = smaller(found.experiment.batch)
        if batch is None or self._too_large(found.experiment) is not None:
            return False
        self.findings += self._record(found, went_on=batch)
        self.watch(Progress(text=f"{found.reason}: trying a batch of {batch}"))
        found.experiment = found.experiment.replace(batch=batch)
        found.status, found.reason, found.result = Status.OK, None, Result()
        return True

    def _record(self, found: Trained, went_on: int | None = None) -> tuple[Finding, ...]:
        """Write the records of a training; what is wrong with it."""
        data_hash = read_manifest(Path(found.experiment.data)).corpus_sha256
        target = self._target(found.experiment)
        own = of_device(self.claims, target.name, target.index)
        found.peak = ceiling(own, "step", {"dtype": found.experiment.dtype})
        records = records_of(found, target, data_hash, self.environment)
        kept = [self.run.append(record) for record in records]
        return tuple(findings_of(found, kept, went_on))

    def _keep(self, found: Trained) -> None:
        self.trained.append(found)
        self._write(found)

    def _write(self, found: Trained) -> None:
        """What is known of it so far: of several points and summaries the last one counts."""
        self.latest[found.experiment.name] = self._record(found)
        self.run.append_series("experiments", summary_of(found))
        self.watch(Progress(text=_line(found), done=len(self.trained), total=self.total))

    def _fit_or_train(self, found: Trained) -> None:
        """Train what may fit; what surely does not would take the machine down with it."""
        reason = self._too_large(found.experiment)
        if reason is None:
            slug = self._next_slug(found)
            return self._train(
                found, f"{slug}-batch-{found.experiment.batch}" if found.auto_batch else slug
            )
        found.status, found.reason = Status.OOM, reason
        return None

    def _too_large(self, own: Experiment) -> str | None:
        """Why not even what no batch size changes fits."""
        needed, free = state_bytes(own), self._target(own).memory_bytes
        if own.device == "cpu":
            needed *= own.nproc
        if needed <= free or not free:
            return None
        return (
            f"weights, gradients and optimizer alone need {format_memory(needed)}, and "
            f"{format_memory(free)} are free: not started"
        )

    def _target(self, experiment: Experiment) -> Target:
        return choose(self.targets, "cuda" if experiment.device == "cuda" else "cpu")[0]

    def _train(self, found: Trained, slug: str, *, probe: bool = True) -> None:
        own = found.experiment

        def heard(rank: int, event: Mapping[str, Any]) -> None:
            if rank == 0 and event["event"] == "row":
                row = {name: value for name, value in event.items() if name != "event"}
                self.run.append_series(slug, row)
                text = f"{own.name}: step {row['step'] + 1} of {own.steps}: loss {row['loss']:.3f}"
                self.watch(Progress(text=text, level="running"))

        self._launch(found, self.run.path / "logs" / slug, heard, probe=probe)

    def _next_slug(self, found: Trained) -> str:
        return _slug(len(self.trained) + 1, found)

    def _launch(self, found: Trained, folder: Path, heard: Any, *, probe: bool = True) -> None:
        backend = ALL[found.experiment.backend]
        command = backend.command(found.experiment, folder, probe=probe)
        found.load = os.getloadavg()[0]
        with neighbours.watch() as watched:
            ended = launch(command, folder, silence=self.silence, heard=heard)
        found.busy = watched.disturbed
        found.status, found.reason = ended.status, ended.reason
        found.duration = ended.duration
        found.result = backend.collect(folder)
        (folder / "weights.pt").unlink(missing_ok=True)
        if ended.status is Status.OK and not found.result.rows:
            found.status, found.reason = Status.FAILED, "its ranks ended and told of no step"

    def _compare(self, found: Trained) -> None:
        """With one process on the same samples; a reference that failed compares with nothing."""
        if found.status is not Status.OK or found.result.probe is None:
            return
        reference = self._reference(found)
        if reference is not None:
            found.compared = True
            found.apart = disagreement(found.result.probe, reference, found.experiment.dtype)

    def _reference(self, found: Trained) -> Probe | None:
        own = found.experiment
        if is_reference(own, own):
            self.references.append((own, found.result.probe))
        for experiment, probe in self.references:
            if is_reference(experiment, own):
                return probe
        reference = Trained(experiment=reference_of(own).replace(steps=1))
        self.watch(Progress(text=f"the one-process reference of {own.name}", level="running"))
        folder = self.run.path / "logs" / f"reference-{len(self.references) + 1}"
        self._launch(reference, folder, lambda _rank, _event: None)
        self.references.append((reference.experiment, reference.result.probe))
        if reference.result.probe is None:
            self.findings.append(
                Finding(
                    id="no-reference",
                    severity="warning",
                    evidence=f"{own.name} is compared with nothing: {reference.reason}",
                    fix="an experiment of one process on the same samples shows what is wrong",
                )
            )
        return reference.result.probe


def _slug(place: int, found: Trained) -> str:
    return f"{place:02d}-{slug_of(found.experiment.name)}"


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


def _close(session: _Session, interrupted: str | None) -> Outcomes:
    """Judge what is there and write the report."""
    from trainrig.report.html import render_html

    findings = [*session.findings, *(f for each in session.latest.values() for f in each)]
    verdict = verdict_of(session.trained, findings, interrupted)
    run = session.run
    run.write_verdict(verdict)
    run.write_report(render_html([view_of(read_run(run.path))]))
    return Outcomes(
        run=run.path,
        verdict=verdict,
        trained=tuple(session.trained),
        interrupted=interrupted is not None,
    )


def summary(outcomes: Outcomes) -> dict[str, Any]:
    """What ``train --json`` prints last: one experiment flat, several in a list."""
    each = [summary_of(found) for found in outcomes.trained]
    return {
        **(each[0] if len(each) == 1 else {}),
        "verdict": outcomes.verdict.outcome.value,
        "verdict_reason": outcomes.verdict.reason,
        "run": str(outcomes.run),
        "report": str(outcomes.run / "report.html"),
        "published": list(read_run(outcomes.run).series.get("published", ())),
        "findings": [
            {"id": f.id, "severity": f.severity, "evidence": f.evidence, "fix": f.fix}
            for f in outcomes.verdict.findings
        ],
        **({"experiments": each, "comparisons": as_dicts(each)} if len(each) != 1 else {}),
    }
