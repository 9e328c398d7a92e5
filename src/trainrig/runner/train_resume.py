"""Going on with a run of experiments that was broken off.

A run holds its experiments as they were resolved, and what came of each that ended.  One that ended
well and has all its rounds is taken as it is, from its summary and what its ranks told; any other
is trained from its first step: half a training is no measurement.  The data and the machine must be
those of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainrig.analysis.training_results import BENCHMARK, Summary, stored
from trainrig.data.manifest import read_manifest
from trainrig.errors import DataError, UsageError
from trainrig.record import Status
from trainrig.runner.experiment_trained import Trained
from trainrig.store import RunData, read_run
from trainrig.train.config import Experiment, from_run
from trainrig.train.engines import ALL


def is_of_experiments(path: Path) -> bool:
    """Whether a run is one of experiments.  DataError for what is no run."""
    return _holds_experiments(read_run(path))


def _holds_experiments(run: RunData) -> bool:
    return isinstance(run.config.get("experiments"), list)


def experiments_of(path: Path, keys: Mapping[str, Any]) -> tuple[Experiment, ...]:
    """The experiments of a run, as they were resolved; ``keys`` beside it are refused.

    Raises UsageError where all of them are done, DataError where their text is another one now.
    """
    if keys:
        raise UsageError(
            "a run is resumed with its own experiments", "beside --resume only --json is taken"
        )
    run = read_run(path)
    if not _holds_experiments(run):
        raise UsageError(f"{path} is no run of experiments", "without options it is resumed")
    found = tuple(from_run(each, str(path)) for each in run.config["experiments"])
    if len(done_in(run, found)) == len(found):
        raise UsageError(f"all {len(found)} experiments of {path} are done", "trainrig report")
    _check_data(run, found)
    return found


def done_in(run: RunData, experiments: Sequence[Experiment]) -> dict[str, Summary]:
    """The summaries of the experiments that ended well, with all their rounds, by name."""
    rounds = {each.name: each.rounds for each in experiments}
    return {
        each["name"]: each
        for each in stored(run.series)
        if each["status"] == Status.OK.value
        and each["row_verdict"] != "FAIL"  # its layout was not as asked
        and not each["reason"]  # a comparison that was broken off
        and len(each["rounds"]) >= rounds.get(each["name"], 0)
    }


def recalled(experiment: Experiment, summary: Summary, logs: Sequence[Path]) -> Trained:
    """An experiment that is done, as it was; ``logs`` are the folders of its first training."""
    own = experiment.replace(auto_batch=False, batch_size=summary["batch_size"])
    folder = next((each for each in reversed(logs) if each.is_dir()), None)
    parity = summary["parity"]
    found = Trained(
        experiment=own,
        auto_batch=experiment.auto_batch,
        compared=parity["compared"],
        apart=parity["not_comparable"],
        busy=summary["rounds"][0]["disturbed"],
        recalled=True,
    )
    if folder is not None:
        found.result = ALL[own.backend].collect(folder)
    return found


def _check_data(run: RunData, experiments: Sequence[Experiment]) -> None:
    known = {str(r.case["data"]) for r in run.records if r.benchmark == BENCHMARK and r.samples}
    for folder in {each.data for each in experiments}:
        if known and read_manifest(Path(folder)).corpus_sha256[:8] not in known:
            raise DataError(
                f"{folder} holds another text than {run.path} was trained on",
                "prepare that text again, or train from the start",
            )
