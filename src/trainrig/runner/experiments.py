"""Experiments as a run: each trained by its engine in processes of its own, compared, judged.

What contradicts itself or cannot run here is refused before anything is written; of several
experiments, one that this machine lacks something for becomes a record that says so.  Each is
compared with one process of ours on the same samples (`train.parity`): an experiment of the run
that is one, or else a reference that is trained for nothing else.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trainrig.analysis.compare_training import speedups
from trainrig.analysis.training_results import predictions, published_figures, readable, stored
from trainrig.data.manifest import read_manifest
from trainrig.errors import UsageError
from trainrig.machine import inspect, to_dict, value_or
from trainrig.process.supervisor import MAX_STALL_TIMEOUT, STALL_TIMEOUT, master_port
from trainrig.record import Verdict
from trainrig.runner.expectations import claims_for
from trainrig.runner.experiment_forecast import grounds_of
from trainrig.runner.experiment_session import Session
from trainrig.runner.experiment_trained import Trained
from trainrig.runner.experiment_verdict import verdict_of
from trainrig.runner.interrupt import interrupted_once
from trainrig.runner.progress import Progress, Watcher, nobody
from trainrig.runner.targets import find_targets
from trainrig.runner.train_devices import site_of
from trainrig.runner.train_prepare import lacks, placed, with_data
from trainrig.runner.train_resume import done_in
from trainrig.runner.view import view_of
from trainrig.store import create_run, read_run, resume_run, write_atomic
from trainrig.train.config import Experiment
from trainrig.train.config import to_dict as experiment_dict
from trainrig.train.config_file import NAME, experiment_of, file_of, read_file
from trainrig.units import parse_duration


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
    words = named.pop("only", None)
    if file is None:
        if words is not None:
            raise UsageError("--only chooses among a file's experiments", "name a file")
        found = experiment_of(named)
        return (found.replace(name=found.name or found.backend),)
    for key in named:
        if key not in _BESIDE_FILE:
            raise UsageError(
                f"--{key.replace('_', '-')} beside a file: the file says what is trained",
                "beside it: " + ", ".join(f"--{key}" for key in _BESIDE_FILE),
            )
    return _chosen(read_file(file, named), words)


_BESIDE_FILE = ("scale", "steps", "tokens", "seed", "data", "device", "rounds")


def _chosen(found: Sequence[Experiment], words: str | None) -> tuple[Experiment, ...]:
    """Those whose name holds ``words``; all without any."""
    chosen = tuple(own for own in found if words is None or words.lower() in own.name.lower())
    if not chosen:
        names = ", ".join(own.name for own in found)
        raise UsageError(f"no experiment is called anything with {words!r}", f"it has: {names}")
    return chosen


def stall_timeout_of(timeout: str | None) -> float:
    """Seconds in which no rank moves until a training is given up.  Raises UsageError."""
    if timeout is None:
        return STALL_TIMEOUT
    seconds = parse_duration(timeout)
    if not 1.0 <= seconds <= MAX_STALL_TIMEOUT:
        raise UsageError(f"a timeout of {seconds:g} s", "from 1s to 1h; without it 10m")
    return seconds


def at_full_scale(file: Path | None, keys: Mapping[str, Any]) -> tuple[Experiment, ...]:
    """A file's experiments as they are at full scale: what others published is of these."""
    try:
        return _chosen(read_file(file, {"scale": "full"}), keys.get("only")) if file else ()
    except UsageError:  # what is wrong at full scale alone is no fault of a tiny run
        return ()


def run_experiments(
    experiments: Sequence[Experiment],
    *,
    out: Path = Path("runs"),
    watch: Watcher = nobody,
    stall_timeout: float = STALL_TIMEOUT,
    resume: Path | None = None,
    full_scale: Sequence[Experiment] = (),
) -> Outcomes:
    """Train them one after another in a new run, and judge what came out.

    ``full_scale`` are the same ones at the size of what others published, where they are tiny.
    ``resume`` goes on with a run, whose experiments these are (`experiment_resume`).
    """
    snapshot = inspect()
    targets = find_targets(snapshot)
    site = site_of(snapshot, targets)
    ready = [placed(experiment, site) for experiment in with_data(experiments, watch)]
    lacking = [lacks(experiment, site) for experiment in ready]
    if all(lacking) and lacking[0] is not None:
        raise lacking[0]
    if any(experiment.nproc > 1 for experiment in ready):
        master_port()  # one that is taken is refused before a run is made
    run = resume_run(resume) if resume else create_run(out, "train", _config(ready))
    with run, interrupted_once():
        watch(Progress(text=f"run {run.path}", level="stage"))
        run.write_machine(to_dict(snapshot))
        hostname = value_or(snapshot.host.hostname, "")
        session = Session(
            run=run,
            targets=targets,
            claims=claims_for(snapshot, targets),
            snapshot=snapshot,
            watch=watch,
            stall_timeout=stall_timeout,
            texts=_texts(ready),
            total=len(ready),
            grounds=grounds_of(run.path.parent, hostname, site.cores),
        )
        watch(Progress(text=f"{len(ready)} experiments on {hostname}", level="stage"))
        if any(experiment.device == "cuda" and experiment.nproc > 1 for experiment in ready):
            watch(Progress(text="NCCL, P2P and FSDP on GPUs: unverified on hardware"))
        done = done_in(read_run(run.path), ready) if resume else {}
        interrupted = None
        try:
            if resume:
                run.reopen()
            else:
                write_atomic(run.path / NAME, file_of(ready, session.texts))
                session.stand_beside(full_scale or ready)
            for experiment, error in zip(ready, lacking, strict=True):
                if experiment.name in done:
                    session.recall(experiment, done[experiment.name])
                else:
                    session.take(experiment, error)
            for number in range(2, 1 + max(experiment.rounds for experiment in ready)):
                session.take_again(number)
        except KeyboardInterrupt:
            interrupted = "interrupted; trainrig train --resume trains those that are not done"
        return _close(session, interrupted)


def _texts(experiments: Sequence[Experiment]) -> dict[str, str]:
    """Which text each folder of data holds."""
    folders = dict.fromkeys(experiment.data for experiment in experiments)
    return {folder: read_manifest(Path(folder)).corpus_sha256 for folder in folders}


def _config(experiments: Sequence[Experiment]) -> dict[str, Any]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return {
        "trainrig": version("trainrig"),
        "python": sys.version.split()[0],
        "argv": sys.argv[1:],
        **({"cuda_visible_devices": visible} if visible is not None else {}),
        "experiments": [experiment_dict(experiment) for experiment in experiments],
    }


def _close(session: Session, interrupted: str | None) -> Outcomes:
    """Judge what is there and write the report."""
    from trainrig.report.run_report import render_html

    verdict = verdict_of(session.trained, session.findings, interrupted)
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
    view = view_of(read_run(outcomes.run))
    each = list(stored(view.series))
    compared = [asdict(speedup) for speedup in speedups(readable(view))]
    return {
        **(each[0] if len(each) == 1 else {}),
        "verdict": outcomes.verdict.outcome.value,
        "verdict_reason": outcomes.verdict.reason,
        "run": str(outcomes.run),
        "report": str(outcomes.run / "report.html"),
        "published": [asdict(figure) for figure in published_figures(view)],
        "predicted": [asdict(prediction) for prediction in predictions(view)],
        "findings": [
            {"id": f.id, "severity": f.severity, "evidence": f.evidence, "fix": f.fix}
            for f in outcomes.verdict.findings
        ],
        "experiments": each,
        **({"comparisons": compared} if len(each) != 1 else {}),
    }
