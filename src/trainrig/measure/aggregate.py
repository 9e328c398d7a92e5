"""Build records from a worker's replies: one per attempt, then the point itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from trainrig.benchmarks.spec import Metric, benchmark
from trainrig.measure.timing import TARGET_HALF_WIDTH
from trainrig.process.worker import Reply, Request
from trainrig.record import (
    PARENT_CLOCK,
    WORKER_CLOCK,
    Case,
    Derivation,
    Kind,
    Record,
    Status,
    new_id,
)
from trainrig.scatter import NO_PRIOR, Scatter, Sides, shared_scatter
from trainrig.stats import Attempt, Combined, Interval, combine_attempts, median, median_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Device, device count and environment on which a case was measured."""

    device: str
    """Device model, as records name it."""
    index: int | None
    """Index of the device in this machine; None for the host."""
    count: int
    """Number of devices that worked at the same time."""
    environment: str
    """Digest of the software and settings."""


def attempt_record(request: Request, reply: Reply, subject: Subject, attempt: int) -> Record:
    """Return one worker's samples of one case, or why there are none."""
    ok = reply.status is Status.OK
    interval = median_interval(reply.samples) if ok else None
    record = Record(
        kind=Kind.MEASURED,
        benchmark=request.benchmark,
        version=benchmark(request.benchmark).version,
        case=request.case,
        metric="time",
        unit="s",
        value=median(reply.samples) if ok else None,
        samples=reply.samples or None,
        interval=(interval.low, interval.high) if interval else None,
        confidence=interval.confidence if interval else None,
        attempt=attempt,
        stop=reply.stop,
        status=reply.status,
        reason=reply.reason,
        disturbed=reply.disturbed,
        conditions=reply.conditions,
        started=reply.started,
        duration=reply.duration,
    )
    return _on(record, subject)


ScatterClass = tuple[object, ...]
"""Points whose workers are presumed to scatter alike."""


def scatter_class(attempt: Record) -> ScatterClass:
    """Return the class of an attempt: its benchmark, the device and how many of them, and its size.

    Two sizes: what the device decides, and what launches or caches do (`Benchmark.is_large`).
    """
    is_large = benchmark(attempt.benchmark).is_large(attempt.case)
    return attempt.benchmark, attempt.device, attempt.num_devices, is_large


def scatters(points: Iterable[Sequence[Record]]) -> dict[ScatterClass, Scatter]:
    """Estimate the spread between fresh workers for each class of case, from a run's attempts.

    The workers that saw a quiet machine count, those included that were outvoted.
    """
    sides: dict[ScatterClass, list[Sides]] = {}
    for attempts in points:
        quiet = [a for a in attempts if a.value and a.status is Status.OK and a.disturbed is None]
        if len(quiet) > 1:
            times = [attempt.value for attempt in quiet if attempt.value]
            sides.setdefault(scatter_class(quiet[0]), []).append((times,))
    return {name: shared_scatter(class_sides) for name, class_sides in sides.items()}


def point_records(
    attempts: Sequence[Record],
    scatter_by_class: Mapping[ScatterClass, Scatter] = MappingProxyType({}),
) -> tuple[Record, ...]:
    """Combine the attempts at one case into a point: one record for each metric of its benchmark.

    ``known`` is how far workers scatter in each class (`scatters`).

    When no attempt succeeded, one record carries the last attempt's status and
    reason.  A wrong answer in any attempt fails the point: an intermittent fault is
    a fault.
    """
    bad = [record for record in attempts if record.status is not Status.OK]
    wrong = [record for record in bad if record.is_wrong_answer]
    good = [record for record in attempts if record.status is Status.OK]
    last = attempts[-1]
    spec = benchmark(last.benchmark)
    metrics = spec.metrics(last.case)
    if wrong or not good:
        return (_without_value((wrong or bad)[-1], metrics[0]),)
    workers = spec.workers(last.case)
    views = [_view(record, workers) for record in good]
    combined = combine_attempts(
        views,
        workers,
        spec.agreement,
        two_sided=spec.two_sided,
        prior=scatter_by_class.get(scatter_class(last), NO_PRIOR),
    )
    used = [good[index] for index in combined.used]
    return tuple(_point(used, combined, metric) for metric in metrics)


def _view(record: Record, workers: int) -> Attempt:
    assert record.value is not None and record.interval is not None
    low, high = record.interval
    return Attempt(
        value=record.value,
        interval=Interval(low=low, high=high, confidence=record.confidence or 0.0),
        disturbed=record.disturbed,
        round=((record.attempt or 1) - 1) // workers,
    )


def _point(used: Sequence[Record], combined: Combined, metric: Metric) -> Record:
    last = used[-1]
    return last.replace(
        id=new_id(),
        metric=metric.name,
        unit=metric.unit,
        value=metric.of(combined.value),
        samples=None,
        derived=Derivation(
            ids=tuple(record.id for record in used),
            formula=f"{metric.formula} (median over {len(used)} workers' median times)",
        ),
        interval=_ends(combined.interval, metric),
        confidence=combined.interval.confidence or None,
        reached=None if combined.reached is None else metric.of(combined.reached),
        rounds=combined.rounds,
        attempt=None,
        stop=_why_stopped(used, combined),
        disturbed=combined.disturbed,
        conditions=_common_conditions(used),
        started=used[0].started,
        duration=sum(record.duration or 0.0 for record in used),
    )


def _ends(interval: Interval, metric: Metric) -> tuple[float, float]:
    """Return the interval in the metric's unit; the longest time gives the lowest rate."""
    at_low, at_high = metric.of(interval.low), metric.of(interval.high)
    return min(at_low, at_high), max(at_low, at_high)


def _why_stopped(used: Sequence[Record], combined: Combined) -> str | None:
    """Return ``converged`` only where every worker converged and their common interval is tight."""
    unconverged_stops = [record.stop for record in used if record.stop != "converged"]
    if unconverged_stops:
        return unconverged_stops[-1]
    tight = combined.interval.half_width(combined.value) <= TARGET_HALF_WIDTH
    return "converged" if tight else "spread"


def _without_value(record: Record, metric: Metric) -> Record:
    return record.replace(
        id=new_id(),
        metric=metric.name,
        unit=metric.unit,
        value=None,
        samples=None,
        derived=Derivation(ids=(record.id,), formula=metric.formula),
        interval=None,
        confidence=None,
        attempt=None,
        stop=None,
    )


def _common_conditions(records: Sequence[Record]) -> Case:
    """Return the conditions that all attempts share; floats are reduced to their median."""
    names = [name for name in records[0].conditions if all(name in r.conditions for r in records)]
    names = [name for name in names if name not in (WORKER_CLOCK, PARENT_CLOCK)]
    common: dict[str, str | int | float | bool | None] = {}
    for name in names:
        values = [record.conditions[name] for record in records]
        if all(isinstance(value, float) for value in values):
            common[name] = median([float(value) for value in values if value is not None])
        elif all(value == values[0] for value in values):
            common[name] = values[0]
    return common


def skipped_record(
    name: str, case: Case, subject: Subject, reason: str, status: Status = Status.SKIPPED
) -> Record:
    """Return the record of a case that was planned and not run, with the reason."""
    spec = benchmark(name)
    metric = spec.metrics(case)[0]
    record = Record(
        kind=Kind.MEASURED,
        benchmark=name,
        version=spec.version,
        case=case,
        metric=metric.name,
        unit=metric.unit,
        status=status,
        reason=reason,
    )
    return _on(record, subject)


def _on(record: Record, subject: Subject) -> Record:
    return record.replace(
        device=subject.device,
        device_index=subject.index,
        device_count=subject.count,
        environment=subject.environment,
    )
