"""A training that torchrun or Slurm started, read as a run.

``trainrig train FILE --write DIR`` makes the run (`launch_scripts`): its experiment and what was
predicted are written before; whoever starts its ranks writes no records.  What the ranks reported
lies beside them as events (and the machine of the first as machine.json), and the records and
series of steps are made of these whenever the run is read: also while it is trained, or after its
nodes were lost.  No process of ours saw it, so nothing says what others did on its machines beside
it, nor what energy it took; and no process of one rank was trained on its samples: its row is not
compared.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainrig.analysis.training_facts import STEPS
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.data.manifest import read_manifest
from trainrig.errors import DataError, TrainrigError, UsageError
from trainrig.machine.snapshot import Missing
from trainrig.process.events import read_events
from trainrig.record import Kind, Record, RunView, Status, digest
from trainrig.runner.targets import Target
from trainrig.runner.train_records import Launch, Trained, records_of, slug_of, step_row
from trainrig.train.config import Experiment, from_run
from trainrig.train.engines import engine_of

REQUEST = "experiment.json"
"""File in a run's folder that exists only where ranks are started by others."""


def is_started_elsewhere(run: RunView) -> bool:
    """Return whether others started the run's ranks, with results not yet in its records."""
    if not (run.path / REQUEST).is_file():
        return False
    return not any(r.kind is Kind.MEASURED and r.benchmark == TRAINING.name for r in run.records)


def with_events(run: RunView) -> tuple[RunView, str | None]:
    """Return the run with what its ranks reported so far, and why that is incomplete.

    Raises DataError where its request cannot be read.
    """
    experiment = _experiment(run.path)
    trained, ended = _trained(run, experiment)
    device = _device(trained, run.machine or {})
    records = records_of(trained, device, _data_hash(run, experiment), digest(_software(trained)))
    id_prefix = digest(run.config.get("name"))[:8]  # ids are the same each time that it is read
    named = [
        record.replace(id=f"{id_prefix}{number:04x}", run=run.name)
        for number, record in enumerate(records)
    ]
    launch = trained.first
    rows = tuple(step_row(row, 1, launch.training_id) for row in launch.result.rows)
    series = {**run.series, STEPS + slug_of(experiment.name): rows}
    complete = dataclasses.replace(run, records=(*run.records, *named), series=series)
    return complete, ended


def refuse_resume(run: RunView) -> None:
    """Raise UsageError: its own starter goes on with it."""
    if is_started_elsewhere(run):
        words = f"{run.path} is trained by torchrun or Slurm"
        raise UsageError(words, f"it goes on from its newest checkpoint: sh {run.path}/node.sh")


def _experiment(path: Path) -> Experiment:
    try:
        keys = json.loads((path / REQUEST).read_text())["experiment"]
        return from_run(keys, str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / REQUEST} cannot be read: {error}") from None


def _trained(run: RunView, experiment: Experiment) -> tuple[Trained, str | None]:
    """Return the training's result and why it is incomplete; None if every rank finished."""
    result = engine_of(experiment.framework).collect(run.path)
    launch = Launch(training_id=digest(run.config.get("name"))[:12], result=result)
    launch.used = Missing("no process of trainrig ran beside its ranks")
    launch.devices = tuple({**device, "index": None} for device in result.devices)
    ends = _ends(run.path, max(result.ranks, 1))
    failed = [f"rank {rank}: {end['reason']}" for rank, end in ends if end["event"] == "failed"]
    stopped = [end for _, end in ends if end["event"] == "stopped"]
    step = (
        f"step {result.rows[-1]['step'] + 1} of {experiment.steps}"
        if result.rows
        else "its first step"
    )
    ended: str | None = None
    if failed:
        launch.status, launch.reason = Status.FAILED, failed[0]
    elif stopped:
        ended = f"stopped by {stopped[0]['signal']} at {step}; node.sh goes on from its checkpoint"
    elif any(end["event"] != "done" for _, end in ends):
        ended = f"at {step}: it is still trained, or its ranks were lost"
    if launch.status is Status.OK and not result.rows:
        launch.status, launch.reason = Status.SKIPPED, "no step was trained yet"
    reason = launch.reason or ended
    return (
        Trained(experiment=experiment, status=launch.status, reason=reason, rounds=[launch]),
        launch.reason or ended,
    )


def _ends(path: Path, ranks: int) -> list[tuple[int, Mapping[str, Any]]]:
    """Return the last event of each rank since its last start; a stop outranks its end."""
    ends: list[tuple[int, Mapping[str, Any]]] = []
    for rank in range(ranks):
        events = [event for _, event in read_events(path, rank)]
        starts = [
            number for number, rank_event in enumerate(events) if rank_event["event"] == "start"
        ]
        rank_events = events[starts[-1] :] if starts else events
        words = [
            rank_event for rank_event in rank_events if rank_event["event"] in ("stopped", "failed")
        ]
        ends.append((rank, next(iter([*words, *rank_events[-1:]]), {"event": "absent"})))
    return ends


def _device(trained: Trained, machine: Mapping[str, Any]) -> Target:
    """Return the first rank's device, as records name it."""
    devices, cpu = trained.first.result.devices, machine.get("cpu")
    model = cpu.get("model") if isinstance(cpu, Mapping) else None
    name = next((str(device["name"]) for device in devices if device.get("name")), "")
    name = name or (model if isinstance(model, str) else "a processor")
    return Target(
        torch_device=trained.experiment.device or "cpu",
        name=name,
        index=None,
        memory_bytes=0,
        chip=None,
    )


def _software(trained: Trained) -> Mapping[str, Any]:
    packages: Mapping[str, Any] = (trained.first.result.facts or {}).get("software", {})
    return packages


def _data_hash(run: RunView, experiment: Experiment) -> str:
    """Return the hash of the training text: as in its prediction, else as it is now."""
    predicted: Sequence[Record] = [r for r in run.records if r.benchmark == TRAINING.name]
    if predicted:
        return str(predicted[0].case["data"])
    with suppress(TrainrigError, OSError):
        return read_manifest(Path(experiment.data)).corpus_sha256
    return ""
