"""Where a number comes from, as (what, words) pairs: samples, formula, clocks, sources."""

from __future__ import annotations

from collections.abc import Mapping

from trainrig.benchmarks.spec import case_text
from trainrig.record import Kind, Record, Scalar, Status
from trainrig.units import format_quantity, format_share, format_time

Facts = tuple[tuple[str, str], ...]

# Conditions by the ending of their name, and the unit they are in.
_UNITS = {"_hz": "Hz", "_w": "W", "_s": "s", "_bytes": "B", "_j": "J"}
_MAX_ATTEMPTS = 6


def trace(record: Record, attempts: Mapping[str, Record], predicted: Record | None = None) -> Facts:
    """Everything a record says of its own origin; what is absent is left out."""
    pairs = (
        (
            "Case",
            f"{record.benchmark} v{record.version}: {case_text(record.benchmark, record.case)}",
        ),
        ("State", _state(record)),
        ("Interval", _interval(record)),
        ("Formula", record.derived.formula if record.derived else None),
        *_workers(record, attempts),
        ("Samples", _samples(record)),
        ("Ceiling", _limit(record)),
        ("Expected", _expected(predicted)),
        ("Conditions", _conditions(record.conditions)),
        ("Source", record.source),
        ("Taken", _taken(record)),
        ("Record", _identity(record)),
    )
    return tuple((what, text) for what, text in pairs if text)


def _state(record: Record) -> str | None:
    if record.status is not Status.OK:
        return f"{record.status}: {record.reason or 'no reason given'}"
    return f"disturbed, not judged: {record.disturbed}" if record.disturbed else None


def _interval(record: Record) -> str | None:
    if record.interval is None:
        return None
    low, high = (format_quantity(end, record.unit) for end in record.interval)
    words = f"{low} to {high}"
    if record.kind is Kind.CLAIMED:
        return f"{words}, as far as the parts tell"
    if record.value:
        half = (record.interval[1] - record.interval[0]) / 2.0 / abs(record.value)
        words += f" (± {format_share(half)})"
    return f"{words}, confidence {format_share(record.confidence)}" if record.confidence else words


def _workers(record: Record, attempts: Mapping[str, Record]) -> list[tuple[str, str | None]]:
    """One line a worker: its median, its samples, and why it stopped."""
    ids = record.derived.ids if record.derived else ()
    found = [attempts[each] for each in ids if each in attempts]
    lines: list[tuple[str, str | None]] = [
        (f"Worker {attempt.attempt}", _worker(attempt)) for attempt in found[:_MAX_ATTEMPTS]
    ]
    if len(found) > _MAX_ATTEMPTS:
        lines.append(("Workers", f"{len(found) - _MAX_ATTEMPTS} more"))
    return lines


def _worker(attempt: Record) -> str:
    parts = [
        format_quantity(attempt.value, attempt.unit) if attempt.value is not None else None,
        _samples(attempt),
        attempt.stop,
        attempt.reason,
        f"disturbed: {attempt.disturbed}" if attempt.disturbed else None,
    ]
    return "; ".join(part for part in parts if part) or "no samples"


def _samples(record: Record) -> str | None:
    if not record.samples:
        return None
    low, high = min(record.samples), max(record.samples)
    word = "sample" if len(record.samples) == 1 else "samples"
    return (
        f"{len(record.samples)} {word}, {format_quantity(low, record.unit)} to "
        f"{format_quantity(high, record.unit)}"
    )


def _limit(record: Record) -> str | None:
    if record.limit is None:
        return None
    return f"{format_quantity(record.limit.value, record.unit)}: {record.limit.source}"


def _expected(predicted: Record | None) -> str | None:
    if predicted is None:
        return None
    if predicted.value is None:
        return predicted.reason or "no target known"
    words = format_quantity(predicted.value, predicted.unit)
    if predicted.interval is not None:
        low, high = (format_quantity(end, predicted.unit) for end in predicted.interval)
        words += f" ({low} to {high})"
    return f"{words}: {predicted.source}" if predicted.source else words


def _conditions(conditions: Mapping[str, Scalar]) -> str | None:
    words = [condition_text(name, value) for name, value in conditions.items() if value is not None]
    return "; ".join(words) or None


def condition_text(name: str, value: Scalar) -> str:
    """``sm clock 2.52 GHz``: a condition in the unit that its name ends in."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{_spaced(name)} {value}"
    for ending, unit in _UNITS.items():
        if name.endswith(ending):
            return f"{_spaced(name.removesuffix(ending))} {format_quantity(float(value), unit)}"
    if name.endswith("_c"):
        return f"{_spaced(name.removesuffix('_c'))} {value:.0f} °C"
    if name.endswith("_share"):
        return f"{_spaced(name.removesuffix('_share'))} {format_share(float(value))}"
    return f"{_spaced(name)} {value:.4g}"


def _spaced(name: str) -> str:
    return name.replace("_", " ")


def _taken(record: Record) -> str | None:
    parts = [
        record.started,
        format_time(record.duration) if record.duration is not None else None,
        f"environment {record.environment}" if record.environment else None,
    ]
    return ", ".join(part for part in parts if part) or None


def _identity(record: Record) -> str:
    kind = "published by others" if record.kind is Kind.BASELINE else str(record.kind)
    return f"{record.id}, {kind}"
