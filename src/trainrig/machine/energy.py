"""Joules that a device used between two moments, from counters that are read again and again.

    NVIDIA GPUs  NVML's energy counter (mJ since the driver was loaded; Volta and later); where
                 there is none, the board's power, integrated over the readings by trapezoids
    processors   RAPL's packages under /sys/class/powercap, for Intel and AMD alike (µJ; begins
                 anew at max_energy_range_uj); whole packages, memory modules not included

Each reading is a moment and the joules since the first one.  Joules between two moments are those
readings, interpolated; they lie for certain between what was counted from the first reading inside
to the last (low) and from the last reading before to the first behind (high).  How often the device
itself renews its counter comes on top: RAPL about 1 ms, NVML 20 to 100 ms.

What cannot be read is Missing with its reason, never zero joules.  Nothing is read here by itself:
`runner.energy` reads beside a training.

Sources: the kernel's Documentation/power/powercap/powercap.rst; nvml.h.
"""

from __future__ import annotations

import dataclasses
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trainrig.machine import nvml
from trainrig.machine.parse import integer, scaled
from trainrig.machine.snapshot import Missing, if_known, value_or
from trainrig.machine.system_access import Host

POWERCAP = "/sys/class/powercap"
_ZONE = re.compile(r"intel-rapl(-mmio)?:\d+")
"""A package, or all of a board (psys); parts of a package have a second number."""
_MOST_WATTS = 20_000.0
"""No device uses as much: a rise beyond it is a counter that was reset."""
_BLANK = 2**63 - 1

Points = Sequence[tuple[float, float]]
"""Moment (CLOCK_MONOTONIC, s) and joules since the first reading."""


@dataclass(slots=True, kw_only=True)
class Meter:
    """A device whose energy can be read, and what was read so far."""

    device: str
    """``package-0``, ``GPU 1``."""
    source: str
    """Name of the counter that is read."""
    read: Callable[[], float | Missing]
    """Joules of a counter, or watts at this moment."""
    uuid: str | None = None
    is_power: bool = False
    wraps_at: float | None = None
    """Joules at which the counter begins anew; None: it does not."""
    points: list[tuple[float, float]] = field(default_factory=list)
    broken: str | None = None
    """Reason that nothing can be said any more: the counter was reset."""
    _last: tuple[float, float] | None = None

    def take(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Read once; a reading that fails leaves a gap, which the next one closes."""
        before = clock()
        value = self.read()
        if isinstance(value, Missing):
            return
        now = (before + clock()) / 2.0
        if self._last is None:
            self.points.append((now, 0.0))
        else:
            self._add(now, value)
        self._last = now, value

    def _add(self, now: float, value: float) -> None:
        assert self._last is not None
        then, old = self._last
        if self.is_power:
            rise = (value + old) / 2.0 * (now - then)
        else:
            rise = value - old
            if rise < 0.0 and self.wraps_at is not None:
                rise += self.wraps_at
            if not 0.0 <= rise <= _MOST_WATTS * max(now - then, 1.0):
                self.broken = f"its counter went from {old:.6g} to {value:.6g} J"
        self.points.append((now, self.points[-1][1] + rise))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceEnergy:
    """Energy that one device used in a time window."""

    device: str
    uuid: str | None
    source: str
    joules: float
    low: float
    """Lower bound of the energy, in joules."""
    high: float
    """Upper bound of the energy, in joules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Energy:
    """Energy that several devices used in a time window, with its formulas."""

    seconds: float
    devices: tuple[DeviceEnergy, ...]

    @property
    def joules(self) -> float:
        """Energy of all devices, in joules."""
        return sum(device.joules for device in self.devices)

    @property
    def interval(self) -> tuple[float, float]:
        """Between which the joules lie, as far as the readings tell."""
        return sum(d.low for d in self.devices), sum(d.high for d in self.devices)

    @property
    def watts(self) -> float:
        """Return the mean power of all devices."""
        return self.joules / self.seconds

    @property
    def source(self) -> str:
        """Return names of the counters that were read, and of their devices."""
        names = ", ".join(device.device for device in self.devices)
        return f"{' and '.join(dict.fromkeys(d.source for d in self.devices))}: {names}"

    def per(self, count: float) -> float:
        """Return the joules for each of ``count`` things in the window, such as tokens."""
        return self.joules / count


def energy_between(meters: Iterable[Meter], start: float, end: float) -> Energy | Missing:
    """Return the energy that the meters' devices used from ``start`` to ``end``, or why not."""
    used = [used_between(meter, start, end) for meter in meters]
    if not used:
        return Missing("no device has an energy counter that can be read")
    return if_known(lambda *devices: Energy(seconds=end - start, devices=devices), *used)


def together(parts: Sequence[Energy]) -> Energy:
    """Add up several windows of the same devices."""
    of_device: dict[tuple[str, str | None], list[DeviceEnergy]] = {}
    for reading in (device for part in parts for device in part.devices):
        of_device.setdefault((reading.device, reading.uuid), []).append(reading)
    return Energy(
        seconds=sum(part.seconds for part in parts),
        devices=tuple(
            dataclasses.replace(
                readings[0],
                joules=sum(metered.joules for metered in readings),
                low=sum(metered.low for metered in readings),
                high=sum(metered.high for metered in readings),
            )
            for readings in of_device.values()
        ),
    )


def used_between(meter: Meter, start: float, end: float) -> DeviceEnergy | Missing:
    """Return the energy that one device used from ``start`` to ``end``."""
    points = tuple(meter.points)
    if meter.broken is not None:
        return Missing(f"{meter.device}: {meter.broken}")
    if end <= start:
        return Missing("no step counts")
    if not points or points[0][0] > start or points[-1][0] < end:
        return Missing(
            f"{meter.device}: {meter.source} was not read from the first step to the last"
        )
    high = _first_behind(points, end) - _last_before(points, start)
    if high <= 0.0:
        return Missing(f"{meter.device}: {meter.source} stood still for {end - start:.3g} s")
    return DeviceEnergy(
        device=meter.device,
        uuid=meter.uuid,
        source=meter.source,
        joules=joules_at(points, end) - joules_at(points, start),
        low=max(0.0, _last_before(points, end) - _first_behind(points, start)),
        high=high,
    )


def joules_at(points: Points, moment: float) -> float:
    """Interpolate the joules at a moment between two readings."""
    behind = bisect_left(points, (moment,))
    if points[behind][0] == moment:
        return points[behind][1]
    (then, less), (now, more) = points[behind - 1], points[behind]
    return less + (more - less) * (moment - then) / (now - then)


def _last_before(points: Points, moment: float) -> float:
    return points[bisect_right(points, moment, key=lambda point: point[0]) - 1][1]


def _first_behind(points: Points, moment: float) -> float:
    return points[bisect_left(points, moment, key=lambda point: point[0])][1]


# ---- processors


def package_meters(host: Host, root: str = POWERCAP) -> tuple[Meter, ...] | Missing:
    """Return a meter for each processor package; Missing with the file if one cannot be read."""
    names = host.names(root)
    if isinstance(names, Missing):
        return Missing(f"{names.reason}: this kernel shows no energy of the processors")
    zones: dict[str, str] = {}
    for name in sorted(filter(_ZONE.fullmatch, names)):  # a package shows twice: -mmio first
        label = host.read(f"{root}/{name}/name")
        if isinstance(label, str) and label.startswith("package"):
            zones[label] = f"{root}/{name}"
    if not zones:
        return Missing(f"{root} shows no processor package")
    meters = []
    for label, zone in sorted(zones.items()):
        value = _microjoules(host, zone)
        if isinstance(value, Missing):
            hint = ": needs root" if "permission" in value.reason else ""
            return Missing(value.reason + hint)
        meters.append(_package_meter(host, label, zone))
    return tuple(meters)


def _package_meter(host: Host, label: str, zone: str) -> Meter:
    wraps_at = scaled(host.read(f"{zone}/max_energy_range_uj"), 1e-6, "range")
    return Meter(
        device=label,
        source="RAPL",
        read=lambda: _microjoules(host, zone),
        wraps_at=value_or(wraps_at, None),
    )


def _microjoules(host: Host, zone: str) -> float | Missing:
    return scaled(host.read(f"{zone}/energy_uj"), 1e-6, "energy")


# ---- NVIDIA


def gpu_meter(index: int, uuid: str | None) -> Meter | Missing:
    """Return a meter of the GPU with NVML's number ``index``, by its UUID where that is known."""
    failed = nvml.start()
    handle = nvml.handle_of(uuid or index) if failed is None else failed
    if nvml.is_missing(handle):
        return Missing(f"GPU {index}: {handle['missing']}")
    energy, power = _energy(handle), _power(handle)
    name = f"GPU {index}"
    if not isinstance(energy, Missing):
        source = "NVML's energy counter"
        return Meter(device=name, uuid=uuid, source=source, read=lambda: _energy(handle))
    if isinstance(power, Missing):
        return Missing(f"{name}: no energy ({energy.reason}), nor power ({power.reason})")
    source = "NVML's power, integrated"
    return Meter(device=name, uuid=uuid, source=source, read=lambda: _power(handle), is_power=True)


def _energy(handle: object) -> float | Missing:
    return _thousandths(nvml.ask("nvmlDeviceGetTotalEnergyConsumption", handle), "energy", _BLANK)


def _power(handle: object) -> float | Missing:
    most = int(_MOST_WATTS * 1e3)
    return _thousandths(nvml.ask("nvmlDeviceGetPowerUsage", handle), "power", most)


def _thousandths(answer: object, quantity: str, most: int) -> float | Missing:
    if nvml.is_missing(answer):
        assert isinstance(answer, dict)
        return Missing(str(answer["missing"]))
    impossible = Missing(f"not a possible {quantity}: {answer}")
    thousandths = integer(answer, quantity)
    return if_known(lambda count: count / 1e3 if count < most else impossible, thousandths)
