"""Experiments meet this machine: their tokens, the device they run on, and what it lacks for them.

Nothing is written here: what cannot be is refused before there is a run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from trainrig.data.batches import Shard
from trainrig.data.manifest import read_manifest
from trainrig.data.open_batches import open_batches
from trainrig.data.prepare import MOST_VERIFIED, prepare, verify
from trainrig.errors import UnavailableError, UsageError
from trainrig.machine import Snapshot, environment_digest
from trainrig.machine.software import software
from trainrig.machine.system_access import ThisMachine
from trainrig.process.python_env import inspect_python, is_foreign
from trainrig.runner.progress import Progress, Watcher
from trainrig.train.config import Experiment, check_compiler, objective_of
from trainrig.train.engines import Site, check_site, is_driven, python_of
from trainrig.train.layout_check import check_layout
from trainrig.workload import find


def with_data(experiments: Sequence[Experiment], watch: Watcher) -> list[Experiment]:
    """Each with the folder of its tokens; Python's standard library where none is named.

    Raises DataError for a folder that does not hold what its manifest says.
    """
    found = _with_folders(experiments, watch)
    for folder in {Path(each.data) for each in found}:
        if read_manifest(folder).train.num_tokens <= MOST_VERIFIED:
            verify(folder)
    return found


def _with_folders(experiments: Sequence[Experiment], watch: Watcher) -> list[Experiment]:
    if all(experiment.data for experiment in experiments):
        return [e.replace(data=str(Path(e.data).resolve())) for e in experiments]
    watch(Progress(text="no --data: Python's standard library is prepared", level="stage"))
    folder = str(prepare().folder.resolve())
    return [e.replace(data=str(Path(e.data).resolve()) if e.data else folder) for e in experiments]


def placed(experiment: Experiment, site: Site) -> Experiment:
    """With the device it runs on, and the interpreter where it is not ours."""
    device = experiment.device or ("cuda" if site.gpus or experiment.devices else "cpu")
    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"device {device!r}: experiments name cpu or cuda", "devices = 0,1 says which GPUs"
        )
    placed = experiment.replace(device=device)
    if device == "cuda" and not placed.devices and placed.nproc <= len(site.numbers):
        # A process that saw more GPUs than its own could use them: Trainer does.
        placed = placed.replace(devices=",".join(map(str, site.numbers[: placed.nproc])))
    check_layout(placed)
    if is_driven(placed):
        placed = placed.replace(python=python_of(placed))
    shape = find(placed.model)
    open_batches(  # text that is too short, a vocabulary that is too small: refused by this
        Path(placed.data),
        "train",
        objective_of(shape),
        seq_len=placed.seq_len,
        shard=Shard(batch=placed.samples, num_ranks=placed.nproc, seed=placed.seed),
        vocab_size=shape.vocab,
    )
    return placed


def lacks(experiment: Experiment, site: Site) -> UnavailableError | None:
    """What this machine lacks for it."""
    try:
        check_site(experiment, site)
        check_compiler(experiment)
    except UnavailableError as error:
        return error
    return None


def environment_of(experiment: Experiment, snapshot: Snapshot) -> str:
    """The digest of what it ran under: its engine's own packages where it has some."""
    path = python_of(experiment)
    if not is_foreign(path):
        return environment_digest(snapshot)
    theirs = inspect_python(path)
    found = software(ThisMachine(), list(theirs.folders))
    found = dataclasses.replace(
        found,
        python=".".join(map(str, theirs.version)),
        cuda_driver=snapshot.software.cuda_driver,
    )
    return environment_digest(dataclasses.replace(snapshot, software=found))
