"""What the records show about one level of a waterfall: the numbers that causes rest on.

Conditions around the measurement, the machine's snapshot, the shape of the case,
and the catalog's clock.  Nothing here judges; `bottlenecks` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.analysis.best import best_record
from trainrig.analysis.rows import Row, at_path, is_cold_stream
from trainrig.benchmarks.spec import MEMORY_CLAIM, Role, find, role_of
from trainrig.catalog import Chip, find_chip
from trainrig.errors import UsageError
from trainrig.record import Case, Kind, Record, RunView
from trainrig.workload import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One cause's part of a drop."""

    name: str
    amount: float
    """Share of the lost rate; the shares of a drop add up to it."""
    seconds: float
    part: float
    """Share of the drop, 0 to 1; below 0 for what was explained more than once."""
    next: str = ""
    options: str = ""
    """Options of ``trainrig train`` that try the remedy; empty where none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """A cause of the difference between a level and its ceiling."""

    amount: float
    """Value minus ceiling: negative where something was lost."""
    unit: str
    share: float
    """``amount`` over the ceiling."""
    cause: str
    next: str
    """The next command or action; empty where nothing needs doing."""
    known: bool
    """True where the records name the cause."""
    shares: tuple[Share, ...] = ()
    """The drop by cause, where several have a size; they add up to it."""
    is_certain: bool = True
    """True where level and ceiling surely differ: their intervals are apart, and the claim is one
    number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """The difference between a level and its ceiling, with its causes."""

    view: RunView
    record: Record
    value: float
    ceiling: float
    ceiling_record: Record | None
    """None where the ceiling is a claim that has no record."""
    rows: tuple[Row, ...]
    """All rows of the same device."""

    @property
    def share(self) -> float:
        """Value over ceiling, less one."""
        return self.value / self.ceiling - 1.0

    @property
    def is_from_claim(self) -> bool:
        """True where the ceiling is a claim."""
        return self.ceiling_record is None or self.ceiling_record.kind is Kind.CLAIMED

    @property
    def role(self) -> Role | None:
        """Role of the level's benchmark."""
        return role_of(self.record.benchmark)

    @property
    def ceiling_role(self) -> Role | None:
        """Role of the ceiling's benchmark."""
        return role_of(self.ceiling_record.benchmark) if self.ceiling_record else None

    @property
    def bandwidth(self) -> float | None:
        """Return the memory bandwidth of the level's device."""
        return memory_rate(self.view, self.rows)

    @property
    def gpu(self) -> Any:
        """Return the level's GPU in the machine's snapshot, or None."""
        gpus = at_path(self.view.machine, "gpus")
        index = self.record.device_index
        gpu_rows = gpus if isinstance(gpus, list | tuple) else ()
        return next((gpu for gpu in gpu_rows if at_path(gpu, "index") == index), None)

    def because(
        self,
        cause: str,
        action: str = "",
        *,
        known: bool = True,
        shares: tuple[Share, ...] = (),
        is_certain: bool = True,
    ) -> Gap:
        """Return the gap with its cause, and what to try."""
        return Gap(
            amount=self.value - self.ceiling,
            unit=self.record.unit,
            share=self.share,
            cause=cause,
            next=action,
            known=known,
            shares=shares,
            is_certain=is_certain,
        )


def intensity_of(record: Record) -> float | None:
    """Return FLOP per counted byte of a product or an elementwise kernel, or None."""
    work = work_of(record.benchmark, record.case)
    return work.flops / work.num_bytes if work is not None and work.num_bytes > 0 else None


def work_of(benchmark: str, case: Case) -> Work | None:
    """Return the operations and bytes of one call of a product or an elementwise kernel."""
    spec = find(benchmark)
    if spec is None or spec.role not in (Role.PRODUCT, Role.STREAM):
        return None
    try:
        return spec.work(case)
    except (KeyError, ValueError, UsageError):
        return None


def memory_rate(view: RunView, device_rows: Sequence[Row]) -> float | None:
    """Return the best cold stream of a device's rows, else the memory bandwidth that is claimed."""
    return measured_memory(device_rows) or claimed_memory(view, device_rows)


def measured_memory(device_rows: Sequence[Row]) -> float | None:
    """Return the best cold stream of a device's rows."""
    best = best_record(row.measured for row in device_rows if is_cold_stream(row))
    return best.value if best is not None else None


def claimed_memory(view: RunView, device_rows: Sequence[Row]) -> float | None:
    """Return the memory bandwidth that is claimed for the device of these rows."""
    owners = {row.device for row in device_rows}
    claims = (r for r in view.records if r.kind is Kind.CLAIMED and r.benchmark == MEMORY_CLAIM)
    return next((claim.value for claim in claims if claim.device in owners and claim.value), None)


def cache_of(view: RunView, device_rows: Sequence[Row]) -> tuple[float, str] | None:
    """Return bytes and name of the last cache before a device's memory, all instances together."""
    first = next(iter(device_rows), None)
    if first is None:
        return None
    if first.index is not None:
        chip = chip_of(first.device)
        return (chip.memory.l2, "L2") if chip is not None and chip.memory.l2 else None
    caches = at_path(view.machine, "cpu", "caches")
    known = caches if isinstance(caches, list | tuple) else ()
    sizes = {
        str(at_path(cache, "name")): finite_number(at_path(cache, "total_bytes")) for cache in known
    }
    levels = [(size, name) for name, size in sizes.items() if size and name[:1] == "L"]
    return max(levels, key=lambda level: level[1], default=None)


def bench_command(record: Record, *, peak: bool = False) -> str:
    """Return the command that measures this again; empty where none does."""
    spec = find(record.benchmark)
    if spec is None or (options := spec.remeasure_options(record.case)) is None:
        return ""
    words = [spec.command, options, "--peak" if peak and spec.search else ""]
    return " ".join(word for word in words if word)


def number(record: Record, name: str) -> float | None:
    """Return a condition, if it is a number."""
    return finite_number(record.conditions.get(name))


def finite_number(value: object) -> float | None:
    """Return a finite number as a float; None for anything else, booleans and Missing included."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def throttle_reasons(record: Record) -> str:
    """Return what held the clocks down, in the driver's words; empty where nothing did."""
    return " ".join(
        str(value).lower()
        for name, value in record.conditions.items()
        if "throttle" in name and value
    )


def chip_of(device: str | None) -> Chip | None:
    """Return the device's entry in the catalog; None for a host or an unknown name."""
    return find_chip(device) if device else None


def boost_clock(record: Record) -> float | None:
    """Return the clock that the data sheet counts with, Hz."""
    chip = chip_of(record.device) if record.device_index is not None else None
    return chip.compute.boost_clock if chip is not None else None
