"""Records written before measuring: claims, expectations and predictions.

They are appended to the run before the first measurement, so that none can be adjusted afterwards.
Expected ranges also hold the plan: the judge reads from them which steps were required.

The prediction of a training has the key of its points: seconds of a step and bytes of a device, by
the rates that earlier runs in the same folder measured on this machine, or by its chip's claims;
without either the record says that there is no target.  A rank computes what one process of its
engine does; what several exchange is added.  On a processor a rank is one thread: it gets a core's
part of what all of them reached together, its exchanges go through gloo and the loopback device, at
a presumed rate, and nothing hides them where each core computes.  Corrections that `trainrig ledger
--calibrate` stored are applied.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainrig.analysis.machine_key import machine_key
from trainrig.analysis.prediction_error import FROM_RATES, part_of
from trainrig.benchmarks.matmul import DTYPES
from trainrig.benchmarks.spec import LINK_CLAIM, MEMORY_CLAIM, benchmark, find
from trainrig.benchmarks.training import BENCHMARK as TRAINING
from trainrig.benchmarks.training import flops
from trainrig.errors import TrainrigError, UsageError
from trainrig.machine.environment import changes
from trainrig.machine.snapshot import Snapshot, value_or
from trainrig.prediction.expected import (
    Demands,
    ceiling,
    expect,
    gpu_claims,
    host_claims,
    link_claims,
    of_device,
)
from trainrig.prediction.prediction import CONFIDENCE, PredictedMetric, predict_metrics
from trainrig.prediction.rates import Rates
from trainrig.prediction.rates.from_records import rates_of_records
from trainrig.prediction.rates.links import Link, Links
from trainrig.prediction.step import predict_step
from trainrig.prediction.step.calibration import fitted
from trainrig.record import Case, Kind, Limit, Record, Scalar, Status, new_id
from trainrig.runner.history import corrections_of, runs_of
from trainrig.runner.plan import Task
from trainrig.runner.targets import Target
from trainrig.store import find_runs, read_run
from trainrig.train.config import Experiment
from trainrig.units import parse_quantity
from trainrig.workload.memory import memory
from trainrig.workload.model_lookup import find as find_model

_HISTORY_RUNS = 12
"""The newest runs that count as this machine's history."""


def claims_for(snapshot: Snapshot, targets: Iterable[Target]) -> tuple[Record, ...]:
    """Return all data-sheet claims for the devices of a run."""
    gpus, on_bus = value_or(snapshot.gpus, ()), value_or(snapshot.pci_gpus, ())
    claims: list[Record] = []
    for target in targets:
        if not target.is_gpu:
            claims += host_claims(snapshot, target.name)
            continue
        if target.chip is not None:
            claims += gpu_claims(target.chip, target.index)
        for gpu in gpus:
            if gpu.index == target.index:
                pci = next(
                    (pci_device for pci_device in on_bus if pci_device.address == gpu.pci_address),
                    None,
                )
                claims += link_claims(gpu, target.name, pci, target.chip)
    return tuple(claims)


def expectations(
    tasks: Sequence[Task],
    claims: Sequence[Record],
    history: Sequence[Record],
    baselines: Sequence[Record],
    environment: str,
    demands: Demands | None = None,
) -> tuple[Record, ...]:
    """Return one prediction for each planned case, in the plan's order.

    Raises UsageError where the user's baseline has none of the cases, or no case is judged by a
    demand.
    """
    demands = demands or Demands()
    points = [_point(task, environment) for task in tasks]
    if demands.name and not {p.key for p in points} & {r.key for r in demands.baseline}:
        raise UsageError(
            f"{demands.name} has no usable point of this machine's devices",
            "--baseline is a run on the same models of card and processor",
        )
    # What is asked of a machine with GPUs is asked of those.
    of_hosts = demands
    if any(task.target.is_gpu for task in tasks):
        of_hosts = dataclasses.replace(demands, least={})
    predictions = tuple(
        expect(
            point,
            limit_of(task, claims),
            history,
            baselines,
            task.target.chip,
            task.target.power_limit_w,
            demands if task.target.is_gpu else of_hosts,
        )
        for task, point in zip(tasks, points, strict=True)
    )
    answered = {record.source for record in predictions}
    if unanswered := [name for name in demands.least if f"--min {name}" not in answered]:
        raise UsageError(f"--min {unanswered[0]}: nothing that is planned here is judged by it")
    return predictions


def demands_of(minimum_rates: Iterable[str] = (), baseline: Path | None = None) -> Demands:
    """Read the demands of ``--min bf16=600TFLOPS`` (repeatable) and ``--baseline RUN``.

    Raises UsageError for what cannot be demanded, DataError for a run that cannot be read.
    """
    units = dict.fromkeys((MEMORY_CLAIM, LINK_CLAIM), "B/s")
    units |= {dtype: "OP/s" if dtype == "int8" else "FLOP/s" for dtype in DTYPES}
    limits, texts = {}, tuple(minimum_rates)
    for text in texts:
        name, _, quantity = text.partition("=")
        value, unit = parse_quantity(quantity)
        if units.get(name) != unit:
            raise UsageError(
                f"--min {text}: cannot be demanded",
                f"bf16=600TFLOPS, memory=3TB/s; one of: {', '.join(units)}",
            )
        limits[name] = value
    if baseline is None:
        return Demands(least=limits, requested=texts)
    run = read_run(baseline)
    points = tuple(record for record in run.records if record.is_point and record.is_usable)
    return Demands(
        baseline=points, name=run.name, least=limits, requested=texts, path=str(baseline)
    )


def limit_of(task: Task, claims: Iterable[Record]) -> Limit | None:
    """Return the claim that is the ceiling of a task on its device."""
    device_claims = of_device(claims, task.target.name, task.target.index)
    return ceiling(device_claims, task.benchmark, task.case)


def limit_of_point(point: Record, claims: Iterable[Record]) -> Limit | None:
    """Return the claim that bounds a measured point on its device, if any."""
    spec = find(point.benchmark)
    metric = spec.metric(point.case, point.metric) if spec else None
    if metric is None or not metric.is_claimed:
        return None
    device_claims = of_device(claims, point.device, point.device_index)
    return ceiling(device_claims, point.benchmark, point.case)


def history_of(parent: Path, but: str, machine: Mapping[str, Any]) -> tuple[Record, ...]:
    """Return points of this machine's earlier runs in the folder, under this environment.

    ``machine`` is its machine.json.  A run under other power limits is of another state.

    A point that an error finding rests on is no model for the next one, and not here; a noisy one
    is none, either, and only says that there was a run.  A run that cannot be read is passed over:
    history is a help, not a duty.
    """
    paths = [path for path in find_runs(parent) if path.name != but]
    points: list[Record] = []
    for run in runs_of(machine_key(machine), paths[-_HISTORY_RUNS:]):
        has_same_limits = _power_limits(run.machine) == _power_limits(machine)
        if not has_same_limits or changes(run.machine or {}, machine):
            continue
        findings = run.verdict.findings if run.verdict else ()
        faulty = {name for f in findings if f.severity == "error" for name in f.records}
        points += [record for record in run.records if record.is_point and record.id not in faulty]
    return tuple(points)


def _power_limits(machine: Mapping[str, Any] | None) -> list[object]:
    gpus = (machine or {}).get("gpus")
    gpus = gpus if isinstance(gpus, list) else []
    return [gpu.get("power_limit_w") for gpu in gpus if isinstance(gpu, dict)]


def _point(task: Task, environment: str) -> Record:
    """Return an empty record of a task (case and device) for a prediction to fill in."""
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
        conditions={"step": task.planned.step, "required": task.planned.required},
    )


RUNS = 4
"""The newest runs that are looked into for rates."""
_VERBS = ("-qualify-", "-bench-")
_RATES = ("matmul", "vector", "copy", "storage", "collective")
_GLOO = Link(name="gloo over loopback", bandwidth=4e8, latency=2e-4, hop=1e-4, ramp=1e-3)
"""Presumed: the bytes of a sum go through the kernel's sockets and are added by the same cores."""
_UNSURE_CORE = 0.25
"""Uncertainty of a step from splitting all cores' rate by core (natural logarithm)."""
_RESIDENT = 100e6
"""B that a process on the host holds besides its tensors from its first step on: libraries that are
loaded then, what malloc keeps; seen were 50 to 150 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """Measured rates and corrections behind a machine's predictions, read once per run."""

    points: tuple[Record, ...] = ()
    """Rates that were measured on it, the newest last."""
    corrections: Mapping[str, float] = dataclasses.field(default_factory=dict)
    cores: int = 1


def grounds_of(parent: Path, machine: str, cores: int) -> Grounds:
    """Read the grounds from the newest runs in a folder that measured the machine's rates."""
    paths = [path for path in find_runs(parent) if any(verb in path.name for verb in _VERBS)]
    points = tuple(
        record
        for run in runs_of(machine, paths[-RUNS:])
        for record in run.records
        if record.benchmark in _RATES
        and record.is_point
        and record.kind is Kind.MEASURED
        and record.status is Status.OK
    )
    corrections = corrections_of(parent, machine)
    return Grounds(points=points, corrections=corrections, cores=max(1, cores))


def forecast(
    experiment: Experiment, case: Case, target: Target, environment: str, grounds: Grounds
) -> tuple[Record, ...]:
    """Return the predictions to write before training; missing grounds become a record."""
    bare = Record(
        kind=Kind.PREDICTED,
        benchmark=TRAINING.name,
        version=TRAINING.version,
        case=case,
        metric="time",
        unit="s",
        value=None,
        device=target.name,
        device_index=target.index,
        device_count=experiment.mesh.ranks,
        environment=environment,
        conditions=FROM_RATES,
    )
    try:
        rates = _rates(experiment, target, grounds)
        if experiment.mesh.ranks == 1 and experiment.placement.threads == 0:
            predicted = predict_metrics(
                find_model(experiment.model), experiment.predicted_layout, rates
            )
        else:
            predicted, parts = _of_ranks(experiment, rates, target, case)
            bare = bare.replace(conditions={**FROM_RATES, **parts})
    except TrainrigError as error:
        reason = f"no target known: {error.message}"
        return (bare.replace(status=Status.MISSING, reason=reason),)
    words = [f"{name}: {rates.provenance[name]}" for name in ("matmul", "stream")]
    words += [f"collective: {rates.provenance['collective']}"] if experiment.mesh.ranks > 1 else []
    return tuple(
        corrected(bare, metric, "; ".join(words), grounds.corrections) for metric in predicted
    )


def corrected(
    bare: Record, metric: PredictedMetric, source: str, corrections: Mapping[str, float]
) -> Record:
    """Return a prediction of the step's model as a record, with the ledger's correction."""
    # The plan's own record says what is required; those beside it require nothing.
    planned = bare.conditions if metric.metric == bare.metric else {}
    conditions = {**planned, **FROM_RATES}
    named = bare.replace(id=new_id(), metric=metric.metric, unit=metric.unit)
    factor = corrections.get(part_of(named), 1.0)
    low, high = metric.interval
    if factor != 1.0:
        conditions |= {"correction": factor}
        source += f"; corrected by {factor:.3f}, from this machine's ledger"
    return named.replace(
        value=metric.value * factor,
        interval=(low * factor, high * factor),
        confidence=CONFIDENCE,
        source=source,
        conditions=conditions,
    )


def _of_ranks(
    experiment: Experiment, rates: Rates, target: Target, case: Case
) -> tuple[tuple[PredictedMetric, ...], dict[str, Scalar]]:
    """Predict a step's seconds (80 % interval), FLOP/s per device and bytes of the fullest device.

    And the parts of the step, as a profiled one has them (`train.native.breakdown`).
    """
    shape, constants = find_model(experiment.model), fitted()
    if not target.is_gpu:
        constants = dataclasses.replace(constants, hidden=0.0)
    step = predict_step(shape, experiment.predicted_layout, rates, constants=constants)
    seconds, counted = step.total, float(flops(case))
    core = _UNSURE_CORE if experiment.placement.threads else 0.0
    interval = step.interval_with(core, core)
    exposed = float(step.tensor_comm + step.expert_comm + step.pipeline_comm + step.data_comm)
    parts: dict[str, Scalar] = {
        "parts.step_s": float(seconds),
        "parts.own_s": float(seconds - exposed - step.bubble),
        "parts.communication_s": exposed,
        "parts.bubble_s": float(step.bubble),
        "parts.overlapped_s": float(step.overlapped),
    }
    metrics = (
        PredictedMetric(metric="time", unit="s", value=seconds, interval=interval),
        PredictedMetric(
            metric="flop_rate",
            unit="FLOP/s",
            value=counted / seconds,
            interval=(counted / interval[1], counted / interval[0]),
        ),
        _memory(experiment, target),
    )
    return metrics, parts


def _memory(experiment: Experiment, target: Target) -> PredictedMetric:
    """Predict the bytes of the fullest device: allocated on a GPU, resident on the host."""
    memory_use = memory(find_model(experiment.model), experiment.predicted_layout)
    low, high = (float(end) for end in memory_use.interval("allocated"))
    value = float(memory_use.allocated)
    if not target.is_gpu:
        value, high = value + _RESIDENT, high + 2 * _RESIDENT
    return PredictedMetric(metric="peak_memory", unit="B", value=value, interval=(low, high))


def _rates(experiment: Experiment, target: Target, grounds: Grounds) -> Rates:
    """Return the rates of one rank's device.  Raises UnavailableError where none is known."""
    newest: dict[object, Record] = {}
    for point in grounds.points:
        if point.device == target.name and (point.disturbed is None or point.key not in newest):
            newest[point.key] = point
    rates = rates_of_records(newest.values(), target.chip, power=target.power_limit_w)
    if target.is_gpu or experiment.placement.threads == 0:
        return rates
    return _of_a_core(rates, max(grounds.cores, experiment.mesh.ranks))


def _of_a_core(rates: Rates, cores: int) -> Rates:
    """Return the rates of one thread from those measured with all of a processor's cores."""
    products, streams = rates.matmuls, rates.streams
    sustained = {dtype: rate / cores for dtype, rate in products.sustained.items()}
    return rates.replace(
        matmuls=dataclasses.replace(
            products, sustained=sustained, bandwidth=products.bandwidth / cores
        ),
        streams=dataclasses.replace(streams, bandwidth=streams.bandwidth / cores),
        links=Links(inside=_GLOO, between=_GLOO, measured=rates.links.measured),
        provenance={
            **rates.provenance,
            "matmul": f"{rates.provenance['matmul']}, 1/{cores} of it",
            "stream": f"{rates.provenance['stream']}, 1/{cores} of it",
            "collective": rates.provenance["collective"]
            if rates.links.measured
            else "presumed: gloo over the loopback device",
        },
    )
