"""Going on with a run of experiments that was broken off.

A run holds its experiments as they were resolved, and what came of each that ended.  One that ended
well and has all its rounds stays as its records say; any other is trained from its first step: half
a training is no measurement.  The data and the machine must be those of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainrig.analysis.training_results import BENCHMARK, TrainingResult, results
from trainrig.data.manifest import read_manifest
from trainrig.errors import DataError, UsageError
from trainrig.record import Kind, RunView, Status
from trainrig.runner.view import view_of
from trainrig.store import read_run
from trainrig.train.config import Experiment, from_run

CHECKPOINT = ".checkpoint.pt"
"""In the folder of a run of one process; hidden files are left out of bundles."""


def experiments_of(path: Path, keys: Mapping[str, Any]) -> tuple[Experiment, ...]:
    """The experiments of a run, as they were resolved; beside it only more steps of one are taken.

    Raises UsageError where all of them are done, DataError where their text is another one now.
    """
    run = read_run(path)
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
    experiments = tuple(from_run(each, str(path)) for each in stored_experiments)
    if keys.keys() - ({"steps"} if len(experiments) == 1 else set()):
        raise UsageError(
            "a run is resumed with its own experiments",
            "beside --resume only --json, and --steps of a single experiment, are taken",
        )
    if keys and not (path / CHECKPOINT).exists():
        raise UsageError(
            f"{path} has no checkpoint", "without --steps it is trained from its start"
        )
    if len(experiments) == 1:
        changes = {**_batch_that_fitted(run), **keys}
        if "steps" in keys and not experiments[0].decay_tokens:
            # The rates of steps that were planned stay as they were.
            changes["decay_steps"] = experiments[0].planned_steps
        experiments = (experiments[0].replace(**changes),)
    if len(done_in(run, experiments)) == len(experiments):
        if len(experiments) == 1:
            steps = experiments[0].steps
            raise UsageError(f"the {steps} steps of {path} are trained", "more of them: --steps")
        raise UsageError(
            f"all {len(experiments)} experiments of {path} are done", "trainrig report"
        )
    _check_data(run, experiments)
    return experiments


def _batch_that_fitted(run: RunView) -> dict[str, Any]:
    """The last one that was tried: a run's own experiment has the one that was asked for."""
    tried = [r for r in run.records if r.kind is Kind.PREDICTED and r.benchmark == BENCHMARK]
    return {"batch_size": tried[-1].case["batch_size"]} if tried else {}


def done_in(run: RunView, experiments: Sequence[Experiment]) -> dict[str, TrainingResult]:
    """The results of the experiments that ended well, with all their rounds, by name."""
    rounds = {each.name: each.rounds for each in experiments}
    steps = {each.name: each.steps for each in experiments}
    return {
        each.name: each
        for each in results(view_of(run))
        if each.status == Status.OK.value
        and each.row_verdict != "FAIL"
        and not each.wrong_layout
        and not each.reason  # a comparison that was broken off
        and len(each.rounds) >= rounds.get(each.name, 0)
        and int(each.settings.get("steps") or 0) >= steps.get(each.name, 0)
    }


def _check_data(run: RunView, experiments: Sequence[Experiment]) -> None:
    known = {str(r.case["data"]) for r in run.records if r.benchmark == BENCHMARK and r.samples}
    for folder in {each.data for each in experiments}:
        if known and read_manifest(Path(folder)).corpus_sha256[:8] not in known:
            raise DataError(
                f"{folder} holds another text than {run.path} was trained on",
                "prepare that text again, or train from the start",
            )
