"""Provenance of a number, as (name, text) pairs: samples, formula, clocks, sources."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from trainrig.analysis.training_facts import FACTS, SOFTWARE
from trainrig.benchmarks.spec import case_text
from trainrig.record import Kind, Record, Scalar, Status
from trainrig.units import counted, format_quantity, format_share, format_time, range_text

Facts = tuple[tuple[str, str], ...]

# Conditions by the ending of their name, and the unit they are in.
_UNITS = {"hz": "Hz", "w": "W", "s": "s", "bytes": "B", "j": "J"}
_MAX_ATTEMPTS = 6


def trace(record: Record, attempts: Mapping[str, Record], predicted: Record | None = None) -> Facts:
    """Everything a record says of its own origin; what is absent is left out."""
    return tuple((name, text) for name, text in _pairs(record, attempts, predicted) if text)


def _pairs(
    record: Record, attempts: Mapping[str, Record], predicted: Record | None
) -> Iterator[tuple[str, str | None]]:
    case = case_text(record.benchmark, record.case)
    yield "Case", f"{record.benchmark} v{record.version}: {case}"
    if record.status is not Status.OK:
        yield "State", f"{record.status}: {record.reason or 'no reason given'}"
    elif record.disturbed:
        yield "State", f"noisy, the device may do better: {record.disturbed}"
    yield "Interval", _interval(record)
    if record.derived:
        yield "Formula", record.derived.formula
        workers = [
            attempts[attempt_id] for attempt_id in record.derived.ids if attempt_id in attempts
        ]
        for attempt in workers[:_MAX_ATTEMPTS]:
            yield f"Worker {attempt.attempt}", _worker(attempt)
        if len(workers) > _MAX_ATTEMPTS:
            yield "Workers", f"{len(workers) - _MAX_ATTEMPTS} more"
    yield "Samples", _samples(record)
    if limit := record.limit:
        yield "Ceiling", f"{format_quantity(limit.value, record.unit)}: {limit.source}"
    if predicted is not None:
        yield "Expected", _expected(predicted)
    conditions = record.conditions.items()
    yield (
        "Conditions",
        "; ".join(
            _condition(name.removeprefix(f"{SOFTWARE}."), value)
            for name, value in conditions
            if value is not None and name.partition(".")[0] not in FACTS
        ),
    )
    yield "Source", record.source
    took = format_time(record.duration) if record.duration is not None else None
    environment = f"environment {record.environment}" if record.environment else None
    yield "Taken", ", ".join(part for part in (record.started, took, environment) if part)
    kind = "published by others" if record.kind is Kind.BASELINE else str(record.kind)
    yield "Record", f"{record.id}, {kind}"


def _interval(record: Record) -> str | None:
    if record.interval is None:
        return None
    low, high = record.interval
    text = range_text(low, high, record.unit)
    if record.kind is Kind.CLAIMED:
        return f"{text}, as far as the parts tell"
    share = (high - low) / 2.0 / abs(record.value) if record.value else math.inf
    if share <= 1.0:
        text += f" (± {format_share(share)})"
    return f"{text}, confidence {format_share(record.confidence)}" if record.confidence else text


def _worker(attempt: Record) -> str:
    """Return a worker's median, its samples, and why it stopped."""
    parts = [
        format_quantity(attempt.value, attempt.unit) if attempt.value is not None else None,
        _samples(attempt),
        attempt.stop,
        attempt.reason,
        f"noisy: {attempt.disturbed}" if attempt.disturbed else None,
    ]
    return "; ".join(part for part in parts if part) or "no samples"


def _samples(record: Record) -> str | None:
    if not record.samples:
        return None
    spread = range_text(min(record.samples), max(record.samples), record.unit)
    return f"{counted(len(record.samples), 'sample')}, {spread}"


def _expected(predicted: Record) -> str:
    if predicted.value is None:
        return predicted.reason or "no target known"
    text = format_quantity(predicted.value, predicted.unit)
    if predicted.interval is not None:
        text += f" ({range_text(*predicted.interval, predicted.unit)})"
    return f"{text}: {predicted.source}" if predicted.source else text


def _condition(name: str, value: Scalar) -> str:
    """Return ``sm clock 2.52 GHz``: a condition in the unit that its name ends in."""
    stem, _, ending = name.rpartition("_")
    if isinstance(value, bool) or not isinstance(value, int | float):
        stem, text = name, str(value)
    elif unit := _UNITS.get(ending):
        text = format_quantity(float(value), unit)
    elif ending == "c":
        text = f"{value:.0f} °C"
    elif ending == "share":
        text = format_share(float(value))
    else:
        stem, text = name, f"{value:.4g}"
    return f"{stem.replace('_', ' ')} {text}"
