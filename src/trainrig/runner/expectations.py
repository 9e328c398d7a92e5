"""What is known before measuring: claims and expectations, as records.

They are appended to the run before the first measurement, so that no
expectation can be adjusted afterwards.  The predictions also hold the plan: the
judge reads from them which steps were required.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from trainrig.benchmarks.spec import benchmark, find
from trainrig.catalog.lookup import find_chip
from trainrig.errors import TrainrigError
from trainrig.machine.snapshot import Missing, Snapshot
from trainrig.predict import (
    Published,
    ceiling,
    expect,
    gpu_claims,
    host_claims,
    link_claims,
    of_device,
)
from trainrig.record import Kind, Limit, Record
from trainrig.runner.plan import Task
from trainrig.runner.targets import Target
from trainrig.store import RunData, find_runs, read_run

_HISTORY_RUNS = 12
"""The newest runs that count as this machine's history."""


def claims_for(snapshot: Snapshot, targets: Iterable[Target]) -> tuple[Record, ...]:
    """Everything that is claimed for the devices of a run."""
    gpus = () if isinstance(snapshot.gpus, Missing) else snapshot.gpus
    found: list[Record] = []
    for target in targets:
        if not target.is_gpu:
            found += host_claims(snapshot, target.name)
            continue
        if target.chip is not None:
            found += gpu_claims(target.chip, target.index)
        for gpu in gpus:
            if gpu.index == target.index:
                found += link_claims(gpu, target.name)
    return tuple(found)


def expectations(
    tasks: Sequence[Task],
    claims: Sequence[Record],
    history: Sequence[Record],
    baselines: Sequence[Record],
    environment: str,
) -> tuple[Record, ...]:
    """One prediction a planned case, in the plan's order."""
    published = with_limits(baselines)
    return tuple(
        expect(
            _point(task, environment),
            limit_of(task, claims),
            history,
            published,
            task.target.chip.vendor if task.target.chip else None,
        )
        for task in tasks
    )


def limit_of(task: Task, claims: Iterable[Record]) -> Limit | None:
    """The claim that is the ceiling of a task on its device."""
    own = of_device(claims, task.target.name, task.target.index)
    return ceiling(own, task.benchmark, task.case)


def limit_of_point(point: Record, claims: Iterable[Record]) -> Limit | None:
    """The claim that bounds a measured point on its device, if one does."""
    spec = find(point.benchmark)
    metric = spec.metric(point.case, point.metric) if spec else None
    if metric is None or not metric.is_claimed:
        return None
    own = of_device(claims, point.device, point.device_index)
    return ceiling(own, point.benchmark, point.case)


def with_limits(baselines: Iterable[Record]) -> tuple[Published, ...]:
    """Published records with what their own chips claim."""
    claims: dict[str, tuple[Record, ...]] = {}
    found = []
    for record in baselines:
        chip = find_chip(record.device or "")
        if chip is not None and chip.name not in claims:
            claims[chip.name] = gpu_claims(chip, None)
        own = () if chip is None else claims[chip.name]
        limit = ceiling(own, record.benchmark, record.case)
        vendor = None if chip is None else chip.vendor
        found.append(Published(record=record, limit=limit, vendor=vendor))
    return tuple(found)


def history_of(parent: Path, but: str, hostname: str, environment: str) -> tuple[Record, ...]:
    """Good points of earlier runs of this machine, under this software, in the same folder.

    A point that was disturbed, or that an error finding rests on, is no model for
    the next one.  A run that cannot be read is passed over: history is a help, not
    a duty.
    """
    found: list[Record] = []
    runs = [path for path in find_runs(parent) if path.name != but]
    for path in runs[-_HISTORY_RUNS:]:
        try:
            run = read_run(path)
        except TrainrigError:
            continue
        host = (run.machine or {}).get("host", {})
        if isinstance(host, dict) and host.get("hostname") == hostname:
            found += _good_points(run, environment)
    return tuple(found)


def _good_points(run: RunData, environment: str) -> list[Record]:
    findings = run.verdict.findings if run.verdict else ()
    faulty = {name for f in findings if f.severity == "error" for name in f.records}
    return [
        record
        for record in run.records
        if record.is_point
        and record.disturbed is None
        and record.environment == environment
        and record.id not in faulty
    ]


def _point(task: Task, environment: str) -> Record:
    """The record that a prediction fills in: which case on which device."""
    spec = benchmark(task.benchmark)
    metric = spec.metrics(task.case)[0]
    return Record(
        kind=Kind.PREDICTED,
        benchmark=spec.name,
        version=spec.version,
        case=task.case,
        metric=metric.name,
        unit=metric.unit,
        device=task.target.name,
        device_index=task.target.index,
        device_count=task.count,
        environment=environment,
        conditions={"step": task.step, "required": task.required},
    )
