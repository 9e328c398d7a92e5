"""Going on with a run of experiments that was broken off.

A run holds its experiments as they were resolved, and what came of each that ended.  One that ended
well and has all its rounds stays as its records say; any other of our engine goes on from its last
checkpoint, and without one from its first step.  The data and the machine must be those of the run;
a single experiment may go on under another layout, with as many samples a step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainrig.analysis.training_results import BENCHMARK, TrainingResult, results
from trainrig.data.manifest import read_manifest
from trainrig.errors import DataError, UsageError
from trainrig.record import Kind, RunView, Status
from trainrig.runner.started_elsewhere import refuse_resume
from trainrig.runner.view import view_of
from trainrig.store import read_run
from trainrig.train.checkpoint_folder import FOLDER, LAYOUT_KEYS, newest
from trainrig.train.config import Experiment, case_of, from_run
from trainrig.workload.option_words import option_of

_OLD_CHECKPOINT = ".checkpoint.pt"
_OTHER_LAYOUT = (LAYOUT_KEYS - {"framework"}) | {"devices"}
_CHANGEABLE = {"steps", "checkpoint_every", "checkpoint_interval", "keep_checkpoints"}
"""Beside another layout, what a single experiment may be given anew."""


def checkpoints_of(run: Path, slug: str) -> Path:
    """Return folder of the checkpoints of an experiment of a run, which its logs call ``slug``."""
    return run / FOLDER / slug


def experiments_of(path: Path, keys: Mapping[str, Any]) -> tuple[Experiment, ...]:
    """Return a run's resolved experiments; a single one may get more steps or another layout.

    Raises UsageError where all of them are done, DataError where their text is another one now.
    """
    run = read_run(path)
    refuse_resume(run)
    stored_experiments = run.config.get("experiments")
    if isinstance(old := run.config.get("experiment"), Mapping):  # one training, as it was stored
        from_run(old, str(path))
    if run.config.get("verb") != "train":
        raise UsageError(f"{path} is no run of trainrig train", "name one, or leave --resume out")
    if not isinstance(stored_experiments, list):
        raise UsageError(
            f"{path} names no experiments: an older trainrig trained it",
            "train it anew; trainrig report shows what is there",
        )
    experiments = tuple(from_run(stored, str(path)) for stored in stored_experiments)
    _check_keys(path, keys, alone=len(experiments) == 1)
    if len(experiments) == 1:
        experiment = experiments[0].replace(**_batch_that_fitted(run, experiments[0]))
        if "steps" in keys:
            # The rates of steps that were planned stay as they were.
            planned = (
                {} if experiment.lr.decay_tokens else {"decay_steps": experiment.planned_steps}
            )
            experiment = experiment.replace(steps=keys["steps"], **planned)
        changes = {key: keys[key] for key in _CHANGEABLE - {"steps"} if key in keys}
        experiments = (_under_another_layout(experiment.replace(**changes), keys),)
    if len(done_in(run, experiments)) == len(experiments):
        if len(experiments) == 1:
            steps = experiments[0].steps
            raise UsageError(f"the {steps} steps of {path} are trained", "more of them: --steps")
        raise UsageError(
            f"all {len(experiments)} experiments of {path} are done", "trainrig report"
        )
    _check_data(run, experiments)
    return experiments


def _check_keys(path: Path, keys: Mapping[str, Any], *, alone: bool) -> None:
    """Refuse what cannot be changed at a resume, and changes of what has no checkpoint."""
    if keys.keys() - (_CHANGEABLE | _OTHER_LAYOUT if alone else set()):
        raise UsageError(
            "a run is resumed with its own experiments",
            "beside it: --json; of a single experiment --steps, its layout, its checkpoints",
        )
    if keys and not any(newest(folder) for folder in (path / FOLDER).glob("*")):
        if (path / _OLD_CHECKPOINT).exists():
            words = "an older trainrig saved its checkpoint, in a form that is not read any more"
            raise DataError(f"{path}: {words}", "train it anew")
        raise UsageError(
            f"{path} has no checkpoint",
            f"without {option_of(min(keys))} it is trained from its start",
        )


def _batch_that_fitted(run: RunView, experiment: Experiment) -> dict[str, Any]:
    """Return the last batch size tried under this layout, instead of the requested one."""

    def all_else(case: Mapping[str, Any]) -> dict[str, Any]:
        return {key: case[key] for key in case if key not in ("batch_size", "data")}

    tried = [
        record.case["batch_size"]
        for record in run.records
        if record.kind is Kind.PREDICTED
        and record.benchmark == BENCHMARK
        and all_else(record.case) == all_else(case_of(experiment, ""))
    ]
    return {"batch_size": tried[-1]} if tried else {}


def _under_another_layout(experiment: Experiment, keys: Mapping[str, Any]) -> Experiment:
    """Return the experiment under another layout with as many samples per step.

    Raises UsageError where these are no equal shares.
    """
    changes = {key: value for key, value in keys.items() if key in _OTHER_LAYOUT}
    if not changes:
        return experiment
    splits = ("tp", "pp", "cp")
    degrees = {name: int(changes.get(name, experiment.get(name))) for name in splits}
    ranks = math.prod(degrees.values())
    if "nproc" not in changes and experiment.mesh.ranks % ranks:
        changes["nproc"] = ranks
    changed = experiment.replace(**changes)
    if "batch_size" not in changes:
        batch, remainder = divmod(experiment.global_samples, changed.mesh.dp * changed.grad_accum)
        if remainder == 0 < batch:
            changed = changed.replace(batch_size=batch)
    if changed.global_samples != experiment.global_samples:
        raise UsageError(
            f"a step has {experiment.global_samples} samples, under this layout "
            f"{changed.global_samples}",
            "--micro-batch and --grad-accum that make as many, over all data-parallel ranks",
        )
    return changed


def done_in(run: RunView, experiments: Sequence[Experiment]) -> dict[str, TrainingResult]:
    """Return results of finished experiments, with all their rounds, by name."""
    rounds = {experiment.name: experiment.expected.rounds for experiment in experiments}
    steps = {experiment.name: experiment.steps for experiment in experiments}
    return {
        experiment.name: experiment
        for experiment in results(view_of(run))
        if experiment.status == Status.OK.value
        and experiment.row_verdict != "FAIL"
        and not experiment.layout.differences
        and not experiment.reason  # a comparison that was broken off
        and len(experiment.timing.rounds) >= rounds.get(experiment.name, 0)
        and int(experiment.settings.get("steps") or 0) >= steps.get(experiment.name, 0)
    }


def _check_data(run: RunView, experiments: Sequence[Experiment]) -> None:
    hashes = {str(r.case["data"]) for r in run.records if r.benchmark == BENCHMARK and r.samples}
    for folder in {experiment.data for experiment in experiments}:
        if hashes and read_manifest(Path(folder)).corpus_sha256[:8] not in hashes:
            raise DataError(
                f"{folder} holds another text than {run.path} was trained on",
                "prepare that text again, or train from the start",
            )
