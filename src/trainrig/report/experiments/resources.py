"""What experiments ran on and took: devices as found, memory of each rank, energy where readable.

A column that none of them has a value for is left out; where no energy could be read, one line says
why.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trainrig.analysis.training_results import Summary
from trainrig.units import format_memory, format_quantity, one_line, ranges

TITLE = "What each ran on and took; memory is the peak of a device, lowest to highest"
_EVEN = 1.05
"""Ranks whose memory differs by less are alike."""


def columns_of(summaries: Sequence[Summary]) -> tuple[str, ...]:
    """The headings; nothing but the name where nothing is known."""
    return tuple(name for name, values in _cells(summaries) if any(v != "-" for v in values))


def rows_of(summaries: Sequence[Summary]) -> tuple[tuple[str, ...], ...]:
    """A row for each experiment, under `columns_of`."""
    kept = [values for _, values in _cells(summaries) if any(v != "-" for v in values)]
    return tuple(zip(*kept, strict=True))


def _cells(summaries: Sequence[Summary]) -> Iterator[tuple[str, list[str]]]:
    yield "experiment", [one_line(each["name"]) for each in summaries]
    yield "devices", [devices_of(each) for each in summaries]
    for name, key in (("allocated", "allocated_bytes"), ("reserved", "reserved_bytes")):
        yield name, [_memory(each, key) for each in summaries]
    for name, key, unit in (("J/token", "energy_per_token_j", "J"), ("power", "mean_power_w", "W")):
        values = [each.get(key) for each in summaries]
        yield name, ["-" if v is None else format_quantity(v, unit) for v in values]


def devices_of(each: Summary) -> str:
    """``GPU 0, 1 (RTX 4090)``, ``cores 0-3``."""
    devices = each.get("devices") or ()
    gpus = [d for d in devices if str(d.get("device", "")).startswith("cuda")]
    if gpus:
        numbers = [d["device"] if d.get("index") is None else str(d["index"]) for d in gpus]
        names = dict.fromkeys(str(d["name"]) for d in gpus if d.get("name"))
        return one_line(f"GPU {', '.join(numbers)}" + (f" ({', '.join(names)})" if names else ""))
    cores = sorted({core for d in devices for core in d.get("cores") or ()})
    return f"cores {ranges(cores)}" if cores else "-"


def _memory(each: Summary, key: str) -> str:
    held = [d[key] for d in each.get("memory_by_rank") or () if d.get(key) is not None]
    if not held:
        return "-"
    least, most = min(held), max(held)
    if most <= _EVEN * least:
        return format_memory(most)
    return f"{format_memory(least)} to {format_memory(most)}"


def notes_of(summaries: Sequence[Summary]) -> Iterator[str]:
    """Why there is no energy, a line for each reason."""
    trained = [each for each in summaries if each["samples_per_s"]]
    reasons: dict[str, list[str]] = {}
    for each in trained:
        if each.get("no_energy_reason"):
            reasons.setdefault(str(each["no_energy_reason"]), []).append(each["name"])
    for reason, names in reasons.items():
        whose = "" if len(names) == len(trained) else f" of {', '.join(names)}"
        yield one_line(f"Energy{whose} was not read: {reason}")
