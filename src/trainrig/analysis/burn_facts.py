"""A burn, device by device: what was done, what was wrong, what the sensors said meanwhile.

Read from records and series alone; the verdict is `judge_burn`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainrig.analysis.evidence import finite_number
from trainrig.analysis.watched import moments
from trainrig.record import Case, Kind, Record, RunView
from trainrig.stats import grouped
from trainrig.units import counted, device_text, format_time

TELEMETRY, WORK, DIGESTS = "telemetry", "burn", "burn-digests"
"""Series of a burn: the machine second by second, the work slice by slice, digests of steps."""
Row = Mapping[str, Any]


def part_name(case: Case) -> str:
    """Return the name of a part of a burn: ``matmul bf16``."""
    return " ".join(str(case[name]) for name in ("mode", "dtype") if name in case)


def is_burn(view: RunView) -> bool:
    """Return whether a run is a burn."""
    return view.config.get("verb") == WORK


def burn_headline(view: RunView) -> str:
    """Return the first line of a burn: ``9 min 50 s of work on 1 device, no wrong result.``"""
    devices = burn_devices(view)
    errors = sum(device.errors for device in devices)
    points = [point for device in devices for point in device.points]
    if not errors and not any(point.number("checked") for point in points):
        return f"No result was compared on {counted(len(devices), 'device')}."
    busy = sum(point.number("busy_s") for point in points)
    wrong = f"{errors:,} wrong results" if errors else "no wrong result"
    return f"{format_time(busy)} of work on {counted(len(devices), 'device')}, {wrong}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """Readings of one sensor of a device in the order in which they were taken."""

    low: float
    high: float
    mean: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnPoint:
    """One mode on one device: what was planned, and what came of it."""

    planned: Record | None
    measured: Record | None

    @property
    def record(self) -> Record:
        """Return the measured record; the planned one where the part was not measured."""
        record = self.measured or self.planned
        assert record is not None
        return record

    @property
    def name(self) -> str:
        """Return a text such as ``matmul bf16``."""
        return part_name(self.record.case)

    def number(self, name: str) -> float:
        """Return a number among its conditions; 0 where it is not there."""
        return (
            0.0
            if self.measured is None
            else finite_number(self.measured.conditions.get(name)) or 0.0
        )

    @property
    def rate(self) -> float | None:
        """Also of results that were wrong."""
        rate = self.number("rate")
        return rate or (self.measured.value if self.measured else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnDevice:
    """One device of a burn."""

    name: str
    index: int | None
    points: tuple[BurnPoint, ...]
    temperature_c: Readings | None
    power_w: Readings | None
    clock_hz: Readings | None
    energy_j: float | None
    throttle_reasons: tuple[str, ...]

    @property
    def label(self) -> str:
        """Return a text such as ``RTX 4090 #0``."""
        return device_text(self.name, self.index)

    @property
    def errors(self) -> int:
        """Wrong results of all modes."""
        return sum(int(point.number("errors")) for point in self.points)

    @property
    def key(self) -> str:
        """Prefix of the device's own columns of telemetry."""
        return "cpu" if self.index is None else f"gpu{self.index}"

    @property
    def no_temperature(self) -> str | None:
        """Reason that no temperature was read; empty where one was."""
        if self.temperature_c is not None:
            return None
        if self.index is None:
            return "the kernel shows no sensor of the processors (/sys/class/hwmon)"
        return "the driver gave no reading of it"


def burn_devices(view: RunView) -> tuple[BurnDevice, ...]:
    """Return every device that something was planned or measured on, GPUs first."""
    attempts_and_plans = [
        record for record in view.records if "mode" in record.case and record.attempt is None
    ]
    devices = []
    by_device = grouped(attempts_and_plans, lambda record: (record.device_index, record.device))
    order = sorted(by_device, key=lambda key: (key[0] is None, key[0] or 0, str(key[1])))
    rows = view.series.get(TELEMETRY, ())
    for index, device in order:
        records = by_device[index, device]
        key = "cpu" if index is None else f"gpu{index}"
        clock = "clock_hz" if index is None else "sm_clock_hz"
        energy = sensor(rows, f"{key}_energy_j")
        devices.append(
            BurnDevice(
                name=device or "unknown device",
                index=index,
                points=_points(records),
                temperature_c=sensor(rows, f"{key}_temperature_c"),
                power_w=sensor(rows, f"{key}_power_w"),
                clock_hz=sensor(rows, f"{key}_{clock}"),
                energy_j=energy.high - energy.low if energy else None,
                throttle_reasons=_reasons(rows, f"{key}_throttle_reasons"),
            )
        )
    return tuple(devices)


def _points(records: Sequence[Record]) -> tuple[BurnPoint, ...]:
    planned = {part_name(r.case): r for r in records if r.kind is Kind.PREDICTED}
    measured = {part_name(r.case): r for r in records if r.kind is Kind.MEASURED}
    names = dict.fromkeys([*planned, *measured])
    return tuple(
        BurnPoint(planned=planned.get(name), measured=measured.get(name)) for name in names
    )


def readings(rows: Sequence[Row], key: str) -> list[tuple[float, float]]:
    """Return moment (s, monotonic) and value of a sensor, where it gave one."""
    pairs = zip(moments(rows), (finite_number(row.get(key)) for row in rows), strict=True)
    return [(at, value) for at, value in pairs if at is not None and value is not None]


def sensor(rows: Sequence[Row], key: str) -> Readings | None:
    """Return the readings of a sensor; None where it has none."""
    values = [value for _, value in readings(rows, key)]
    if not values:
        return None
    return Readings(
        low=min(values), high=max(values), mean=sum(values) / len(values), last=values[-1]
    )


def _reasons(rows: Sequence[Row], key: str) -> tuple[str, ...]:
    words = {word for row in rows for word in str(row.get(key) or "").split(",") if word}
    return tuple(sorted(words - {"idle"}))


_MEMORY = ("memory_bytes", "memory_wanted_bytes")
"""Conditions with the bytes of memory that were tested and that were to be tested."""


def burn_summary(view: RunView) -> list[dict[str, Any]]:
    """Return the devices as ``burn --json`` prints them."""
    return [_device_summary(device) for device in burn_devices(view)]


def _device_summary(device: BurnDevice) -> dict[str, Any]:
    parts = [
        {
            "mode": point.record.case.get("mode"),
            "dtype": point.record.case.get("dtype"),
            "status": point.measured.status.value if point.measured else "missing",
            "reason": point.measured.reason if point.measured else "not run",
            "rate": point.rate,
            "unit": point.record.unit,
            "work": point.number("work"),
            "checked": int(point.number("checked")),
            "errors": int(point.number("errors")),
            "busy_s": point.number("busy_s"),
            **{name: point.number(name) for name in _MEMORY if point.number(name)},
        }
        for point in device.points
    ]
    lead = next((part for part in parts if part["rate"]), None)
    heat = device.temperature_c
    power = device.power_w
    return {
        "device": device.name,
        "index": device.index,
        "work": sum(part["work"] for part in parts if part["unit"] == "FLOP/s"),
        "work_unit": "FLOP",
        "errors": device.errors,
        "rate": lead["rate"] if lead else None,
        "rate_unit": lead["unit"] if lead else None,
        "temperature_c": {"max": heat.high, "last": heat.last} if heat else None,
        "temperature_missing": device.no_temperature,
        "power_w": {"mean": power.mean, "max": power.high} if power else None,
        "energy_j": device.energy_j,
        "throttle_reasons": list(device.throttle_reasons),
        "parts": parts,
    }
