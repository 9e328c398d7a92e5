"""Experiments meet this machine: their tokens, the device they run on, and what it lacks for them.

Nothing is written here: what cannot be is refused before there is a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainrig.data.manifest import read_manifest
from trainrig.errors import UnavailableError, UsageError
from trainrig.runner.progress import Progress, Watcher
from trainrig.train.backends import Site, check_site
from trainrig.train.experiment import Experiment, check_compiler
from trainrig.train.layouts import check_layout


def with_data(experiments: Sequence[Experiment], watch: Watcher) -> list[Experiment]:
    """Each with the folder of its tokens; Python's standard library where none is named."""
    if all(experiment.data for experiment in experiments):
        return [e.replace(data=str(Path(e.data).resolve())) for e in experiments]
    from trainrig.data.prepare import prepare

    watch(Progress(text="no --data: Python's standard library is prepared", level="stage"))
    folder = str(prepare().folder.resolve())
    return [e.replace(data=str(Path(e.data).resolve()) if e.data else folder) for e in experiments]


def placed(experiment: Experiment, site: Site) -> Experiment:
    """With the device it runs on."""
    device = experiment.device or ("cuda" if site.gpus else "cpu")
    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"device {device!r}: experiments name cpu or cuda", "CUDA_VISIBLE_DEVICES says which"
        )
    placed = experiment.replace(device=device)
    check_layout(placed)
    read_manifest(Path(placed.data))
    return placed


def lacks(experiment: Experiment, site: Site) -> UnavailableError | None:
    """What this machine lacks for it."""
    try:
        check_site(experiment, site)
        check_compiler(experiment)
    except UnavailableError as error:
        return error
    return None
