"""What the records show about one level of a waterfall: the numbers that causes rest on.

Conditions around the measurement, the machine's snapshot, the shape of the case,
and the catalog's clock.  Nothing here judges; `bottlenecks` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.analysis.match import Row, is_cold_stream
from trainrig.analysis.run_view import RunView
from trainrig.benchmarks.spec import MEMORY_CLAIM, Role, find
from trainrig.errors import UsageError
from trainrig.record import Kind, Record, Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """From a ceiling to a value."""

    view: RunView
    record: Record
    value: float
    ceiling: float
    ceiling_record: Record | None
    ceiling_kind: Kind
    ceiling_source: str
    rows: tuple[Row, ...]
    """All rows of the same device."""

    @property
    def share(self) -> float:
        """Value over ceiling, less one."""
        return self.value / self.ceiling - 1.0


def intensity_of(record: Record) -> float | None:
    """FLOP per counted byte of a product or an elementwise kernel; None where not defined."""
    spec = find(record.benchmark)
    if spec is None or spec.role not in (Role.PRODUCT, Role.STREAM):
        return None
    try:
        work = spec.work(record.case)
    except (KeyError, ValueError, UsageError):
        return None
    return work.flops / work.num_bytes if work.num_bytes > 0 else None


def bandwidth_of(drop: Drop) -> float | None:
    """The memory bandwidth of the level's device: the best cold stream, else what is claimed."""
    return memory_rate(drop.view, drop.rows)


def memory_rate(view: RunView, own: Sequence[Row]) -> float | None:
    """What a device's memory was seen to do, else what is claimed; ``own``: the device's rows."""
    streams = [
        row.measured.value
        for row in own
        if row.measured is not None
        and is_cold_stream(row)
        and row.measured.status is Status.OK
        and row.measured.disturbed is None
        and row.measured.value
    ]
    return max(streams, default=None) or claimed_memory(view, own)


def claimed_memory(view: RunView, own: Sequence[Row]) -> float | None:
    """The memory bandwidth that is claimed for the device of these rows."""
    owners = {row.device for row in own}
    return next(
        (
            record.value
            for record in view.records
            if record.kind is Kind.CLAIMED and record.benchmark == MEMORY_CLAIM
            if record.device in owners and record.value
        ),
        None,
    )


def cache_of(view: RunView, own: Sequence[Row]) -> tuple[float, str] | None:
    """Bytes and name of the last cache before a device's memory, all instances together."""
    first = next(iter(own), None)
    if first is None:
        return None
    if first.index is not None:
        chip = chip_of(first.device)
        return (chip.l2, "L2") if chip is not None and chip.l2 else None
    cpu = (view.machine or {}).get("cpu")
    caches = cpu.get("caches") if isinstance(cpu, Mapping) else None
    known = (
        [each for each in caches if isinstance(each, Mapping)]
        if isinstance(caches, list | tuple)
        else []
    )
    sizes = {str(each.get("name")): plain(each.get("total_bytes")) for each in known}
    last = max((name for name, size in sizes.items() if size and name[:1] == "L"), default=None)
    return (sizes[last] or 0.0, last) if last is not None else None


def bench_command(record: Record, *, peak: bool = False) -> str:
    """The command that measures this again."""
    spec = find(record.benchmark)
    if spec is None:
        return ""
    words = [spec.command, spec.again(record.case), "--peak" if peak and spec.search else ""]
    return " ".join(word for word in words if word)


def number(record: Record, name: str) -> float | None:
    """A condition, if it is a number."""
    return plain(record.conditions.get(name))


def plain(value: object) -> float | None:
    """A number as a float; None for anything else, booleans and Missing included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def throttle_reasons(record: Record) -> str:
    """What held the clocks down, in the driver's words; empty where nothing did."""
    return " ".join(
        str(value).lower()
        for name, value in record.conditions.items()
        if "throttle" in name and value
    )


def gpu_of(drop: Drop) -> Mapping[str, Any] | None:
    """The level's GPU in the machine's snapshot."""
    gpus = (drop.view.machine or {}).get("gpus")
    if not isinstance(gpus, list | tuple):
        return None
    for gpu in gpus:
        if isinstance(gpu, Mapping) and gpu.get("index") == drop.record.device_index:
            return gpu
    return None


def gpu_number(drop: Drop, name: str) -> float | None:
    """A number that the snapshot has of the level's GPU."""
    return plain((gpu_of(drop) or {}).get(name))


def chip_of(device: str | None) -> Any:
    """The device's entry in the catalog; None for a host or an unknown name."""
    from trainrig.catalog import find_chip

    return find_chip(device) if device else None


def boost_clock(record: Record) -> float | None:
    """The clock that the data sheet counts with, Hz."""
    chip = chip_of(record.device) if record.device_index is not None else None
    return chip.boost_clock if chip is not None else None
