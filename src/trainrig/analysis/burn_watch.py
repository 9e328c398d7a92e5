"""What a burn's telemetry, rates and clocks show of its devices, beside the results themselves.

`watched` has the limits; here is what takes a whole burn to see: readings that stopped or stand
still, work that nobody watched, a rate below what the chip should do, a worker whose clock is off.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trainrig.analysis.burn_facts import (
    TELEMETRY,
    WORK,
    BurnDevice,
    BurnPoint,
    burn_devices,
    readings,
)
from trainrig.analysis.evidence import finite_number
from trainrig.analysis.watched import (
    WatchedDevice,
    clock_is_off,
    facts_of,
    least_rate,
    moments,
    not_judged,
    relative_drop,
    watch_of,
)
from trainrig.analysis.watched_rules import watch_rules
from trainrig.benchmarks.burn import MATMUL
from trainrig.machine.snapshot import NOT_READ
from trainrig.record import Finding, RunView, Status
from trainrig.stats import grouped
from trainrig.units import format_quantity

SILENT_S = 6.0
"""A sensor that gave nothing for so long at the end has stopped; it is read once a second."""
_STUCK_ENERGY_S = 10.0
_STUCK_POWER_ROWS = 20
_STUCK_HEAT_S, _STUCK_HEAT_ALONE_S = 60.0, 180.0
_LOADED = 2.0
"""Under load a device draws at least so many times what it draws idle."""


def kernel_log(device: BurnDevice) -> str:
    """Return where the kernel tells more of a device."""
    if device.index is None:
        return "; dmesg | grep -i 'machine check' tells of processors and memory"
    return f"; dmesg | grep -i xid; nvidia-smi -q -i {device.index}"


def watch_of_device(device: BurnDevice, view: RunView) -> WatchedDevice:
    """Return the readings of a GPU while it worked, with the facts that its limits refer to."""
    gpu = _gpu(view, device.index)
    work = [row for row in view.series.get(WORK, ()) if row.get("device", device.label)]
    rows = view.series.get(TELEMETRY, ())
    facts = facts_of(device.name, gpu)
    return watch_of(device.label, device.key, device.index, work, rows, facts)


def _gpu(view: RunView, index: int | None) -> Mapping[str, Any]:
    """Return a GPU as machine.json has it; empty where it has none of that number."""
    listed = (view.machine or {}).get("gpus")
    gpus = listed if isinstance(listed, list) else []
    matching_gpus = (gpu for gpu in gpus if isinstance(gpu, Mapping) and gpu.get("index") == index)
    return next(matching_gpus, {})


def unmoving_sensors(device: BurnDevice, view: RunView) -> Iterator[Finding]:
    """Find sensors that stopped, or whose readings do not move while the device works."""
    rows = view.series.get(TELEMETRY, ())
    ends = [at for at in moments(rows) if at is not None]
    last = ends[-1] if ends else 0.0
    timed = zip(moments(view.series.get(WORK, ())), view.series.get(WORK, ()), strict=True)
    worked = [at for at, row in timed if at is not None and row.get("device") == device.label]
    worked = worked or [0.0, last]
    for name, sensor_name in (
        ("temperature_c", "temperature"),
        ("power_w", "power"),
        ("energy_j", "energy"),
    ):
        values = readings(rows, f"{device.key}_{name}")
        if values and last - values[-1][0] > SILENT_S:
            yield _sensor(
                "sensor-stopped",
                f"{device.label}: its {sensor_name} was read for "
                f"{values[-1][0] - values[0][0]:.0f} s, and not in the last "
                f"{last - values[-1][0]:.0f} s",
                device,
            )
            continue
        # At rest, while the processors have their turn, a reading may well stand still.
        meanwhile = [pair for pair in values if worked[0] <= pair[0] <= worked[-1]]
        power = readings(rows, f"{device.key}_power_w")
        if meanwhile and (how := _stuck(name, meanwhile, power)):
            yield _sensor("sensor-stuck", f"{device.label}: its {sensor_name} {how}", device)


def _stuck(
    name: str, sensor_readings: Sequence[tuple[float, float]], power: Sequence[tuple[float, float]]
) -> str | None:
    """Return a description of readings that cannot be true; None where they can."""
    span = sensor_readings[-1][0] - sensor_readings[0][0]
    if name == "power_w":
        longest, run = 1, 1
        for (_, before), (_, value) in itertools.pairwise(sensor_readings):
            run = run + 1 if value == before else 1
            longest = max(longest, run)
        return f"was the same to the digit {longest} times" if longest > _STUCK_POWER_ROWS else None
    if sensor_readings[0][1] != max(value for _, value in sensor_readings) or sensor_readings[0][
        1
    ] != min(v for _, v in sensor_readings):
        return None
    text = f"stood at {sensor_readings[0][1]:g} for {span:.0f} s of work"
    if name == "energy_j":
        return text if span > _STUCK_ENERGY_S else None
    watts = [value for _, value in power]
    is_loaded = bool(watts) and max(watts) > _LOADED * min(watts)
    return text if span > (_STUCK_HEAT_S if is_loaded else _STUCK_HEAT_ALONE_S) else None


def _sensor(id_: str, evidence: str, device: BurnDevice) -> Finding:
    where = (
        "" if device.index is None else f": nvidia-smi -q -i {device.index} -d TEMPERATURE,POWER"
    )
    words = "see whether the sensor still answers" + where
    return Finding(id=id_, severity="error", evidence=evidence, fix=f"{words}; then repeat it")


def vanished_devices(
    devices: Sequence[BurnDevice], machine: Mapping[str, Any] | None
) -> Iterator[Finding]:
    """Find GPUs whose sensors were read, and that the driver no longer lists afterwards."""
    before, after = ((machine or {}).get(name) for name in ("gpus", "gpus_after"))
    if after is None or after == {"missing": NOT_READ.reason}:
        return
    # By what they are called: the driver's numbers move up where one is lost.
    called = {gpu["index"]: gpu["uuid"] for gpu in before} if isinstance(before, list) else {}
    remaining_uuids = [gpu["uuid"] for gpu in after] if isinstance(after, list) else []
    for device in devices:
        was_read = device.temperature_c is not None or device.power_w is not None
        if device.index in called and was_read and called[device.index] not in remaining_uuids:
            yield Finding(
                id="device-failed",
                severity="error",
                evidence=f"{device.label} was no longer listed by the driver after the burn",
                fix="look at its power, seat and driver" + kernel_log(device),
            )


def unwatched_work(view: RunView) -> Iterator[Finding]:
    """Find work that nobody watched: no sensor read for a while, a machine that slept."""
    rows = view.series.get(TELEMETRY, ())
    read = sorted(at for at in moments(rows) if at is not None)
    work = sorted(at for at in moments(view.series.get(WORK, ())) if at is not None)
    if not work:
        points = (point.measured for device in burn_devices(view) for point in device.points)
        if not read and any(record and record.status is Status.OK for record in points):
            yield _unwatched("no sensor of the machine was read")
        return
    inside = [at for at in read if work[0] <= at <= work[-1]]
    stops = [work[0], *inside, work[-1]]
    gap, since = max((new - old, old) for old, new in itertools.pairwise(stops))
    if gap > watch_rules().longest_gap_s:
        when = f"{since - work[0]:.0f} s after work began"
        yield _unwatched(f"no sensor of the machine was read for {gap:.0f} s, {when}")
    slept = [value for row in rows if (value := finite_number(row.get("suspended_s"))) is not None]
    if slept and slept[-1] - slept[0] > watch_rules().most_suspended_s:
        yield Finding(
            id="machine-suspended",
            severity="error",
            evidence=f"the machine was suspended for {slept[-1] - slept[0]:.0f} s meanwhile",
            fix="keep it awake (systemd-inhibit trainrig burn) and repeat it",
        )


def _unwatched(evidence: str) -> Finding:
    return Finding(
        id="sensor-stopped", severity="error", evidence=evidence, fix="repeat it: trainrig burn"
    )


# ---- rates and clocks


def _least_of(
    device: BurnDevice, point: BurnPoint, power: float | None
) -> tuple[float, str] | None:
    """Return the least rate of a part that a sound card has, and its source."""
    mode, dtype = (point.record.case.get(name) for name in ("mode", "dtype"))
    rule = next((r for r in watch_rules().rate if r.mode == mode and r.least is not None), None)
    expected = least_rate(device.name, str(dtype), power) if rule is not None else None
    if rule is None or rule.least is None or expected is None:
        return None
    return rule.least * expected[0], expected[1]


def low_rates(device: BurnDevice, view: RunView) -> Iterator[Finding]:
    """Find cards below what their chip should do, or whose rate fell while they worked."""
    if device.index is None:
        return
    power = finite_number(_gpu(view, device.index).get("power_limit_w"))
    for point in device.points:
        value, expected = point.rate, _least_of(device, point, power)
        if value and expected is not None and value < expected[0]:
            shown_rates = [
                format_quantity(rate, point.record.unit) for rate in (value, expected[0])
            ]
            yield Finding(
                id="rate-low",
                severity="error",
                evidence=f"{device.label}: {point.name} at {shown_rates[0]}, the least that is "
                f"expected is {shown_rates[1]} ({expected[1]})",
                fix=f"its clocks, power limit and cooling: nvidia-smi -q -i {device.index} -d "
                "CLOCK,PERFORMANCE,POWER,TEMPERATURE",
                records=(point.record.id,),
            )
    work = view.series.get(WORK, ())
    timed = [(at, row) for at, row in zip(moments(work), work, strict=True) if at is not None]
    device_rows = [
        (at, row) for at, row in timed if row.get("device") == device.label and row.get("rate")
    ]
    for part, rows in grouped(device_rows, lambda pair: str(pair[1].get("part"))).items():
        for rule in watch_rules().rate:
            if rule.falls is None or part.partition(" ")[0] != rule.mode:
                continue
            settled = rows[0][0] + watch_rules().settles_s
            settled_rates = [(at, float(row["rate"])) for at, row in rows if at >= settled]
            if (drop := relative_drop(settled_rates, rule.falls, rule.seconds)) is not None:
                high, low, since = drop
                unit = str(rows[0][1].get("unit") or "")
                yield Finding(
                    id="rate-fell",
                    severity="error",
                    evidence=f"{device.label}: {part} fell from {format_quantity(high, unit)} to "
                    f"{format_quantity(low, unit)}, {since - rows[0][0]:.0f} s after it began",
                    fix=f"what held it down: nvidia-smi -q -i {device.index} -d PERFORMANCE,"
                    "TEMPERATURE,POWER while it works",
                )


def wrong_clocks(device: BurnDevice) -> Iterator[Finding]:
    """Find processes whose clock is not the machine's: their rates and times mean nothing."""
    for point in device.points:
        worker_seconds, passed = point.number("clock_s"), point.number("elapsed_s")
        if why := clock_is_off(worker_seconds, passed):
            yield Finding(
                id="clock-wrong",
                severity="error",
                evidence=f"{point.name} on {device.label}: {why}",
                fix="repeat it; look at the machine's clock source: cat /sys/devices/system/"
                "clocksource/clocksource0/current_clocksource; dmesg | grep -i clocksource",
                records=(point.record.id,),
            )


def unjudged_text(devices: Sequence[BurnDevice], watches: Sequence[WatchedDevice]) -> str:
    """Return what could not be judged of the devices, in words; empty where everything was."""
    lacking: dict[str, list[str]] = {}
    for watch in watches:
        for label in not_judged(watch):
            lacking.setdefault(label, []).append(watch.label)
    for device in devices:
        if device.index is None and device.temperature_c is None:
            lacking.setdefault("temperature", []).append(device.label)
        for point in device.points:
            unknown = device.index is not None and _least_of(device, point, None) is None
            if unknown and point.record.case.get("mode") == MATMUL:
                lacking.setdefault(f"rate of {point.name}", []).append(device.label)
    return ", ".join(
        f"{quantity} of {' and '.join(labels)}" for quantity, labels in lacking.items()
    )
