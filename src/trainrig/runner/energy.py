"""Energy beside a training: meters are read by a thread of the parent, whatever engine trains.

The window is that of the steps that count: it ends when rank 0 said that its last step was over,
by the machine's monotonic clock, and reaches back over the times that it told of those steps.  The
engine knows nothing of it, and nothing is read in its process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from trainrig.analysis.training_facts import flat
from trainrig.machine.energy import Energy, Meter, energy_between, gpu_meter, package_meters
from trainrig.machine.nvidia import PATIENCE_S
from trainrig.machine.snapshot import Missing, if_known
from trainrig.machine.system_access import ThisMachine
from trainrig.record import Derivation, Record, Status

PERIOD = 0.1
"""Seconds between readings; later a thousandth of what has passed, and at most a second."""
_LONGEST = 1.0
_PATIENCE = 2.0

Meters = tuple[Meter, ...] | Missing


def host_meters() -> Meters:
    """Energy meters of the processors."""
    return package_meters(ThisMachine())


def gpu_meters(gpus: Sequence[tuple[int, str | None]]) -> Meters:
    """Meters of GPUs, each by the driver's number and UUID; Missing if one cannot be read.

    The driver is asked by a thread: one that hangs is left behind.
    """
    gpu_meter_list: list[Meter | Missing] = []
    asking = threading.Thread(
        target=lambda: gpu_meter_list.extend(gpu_meter(index, uuid) for index, uuid in gpus),
        daemon=True,
    )
    asking.start()
    asking.join(PATIENCE_S)
    if asking.is_alive():
        return Missing(f"NVIDIA's driver did not answer in {PATIENCE_S:g} s")
    meters = if_known(lambda *all_known: all_known, *gpu_meter_list)
    return meters or Missing("none of the GPUs is known to NVML")


@contextmanager
def watch(meters: Meters) -> Iterator[None]:
    """Read the meters while the body runs, and once before and behind it."""
    if isinstance(meters, Missing):
        yield
        return
    stop, begun = threading.Event(), threading.Event()
    thread = threading.Thread(
        target=_read_on, args=(meters, begun, stop), name="energy", daemon=True
    )
    thread.start()
    begun.wait(_PATIENCE)
    try:
        yield
    finally:
        stop.set()
        thread.join(_PATIENCE)  # a driver that hangs is left behind


def _read_on(meters: Sequence[Meter], begun: threading.Event, stop: threading.Event) -> None:
    began = time.monotonic()
    _take(meters)
    begun.set()
    while not stop.wait(min(_LONGEST, max(PERIOD, (time.monotonic() - began) / 1000.0))):
        _take(meters)
    _take(meters)


def _take(meters: Sequence[Meter]) -> None:
    for meter in meters:
        meter.take()


def used(
    meters: Meters, rows: Sequence[Mapping[str, Any]], ended: float | None
) -> Energy | Missing:
    """Return the energy used by the steps of ``rows``; the last one ended at ``ended``."""
    if isinstance(meters, Missing):
        return meters
    if ended is None or not rows:
        return Missing("no step counts")
    return energy_between(meters, ended - sum(float(row["time"]) for row in rows), ended)


def of_devices(meters: Meters, uuids: Sequence[str]) -> Meters:
    """Return the meters of the GPUs that the ranks used, by their UUIDs."""
    if isinstance(meters, Missing) or not uuids:
        return meters
    meter_by_uuid = {meter.uuid: meter for meter in meters}
    absent = [uuid for uuid in uuids if uuid not in meter_by_uuid]
    if absent:
        return Missing(f"{absent[0]} trained, and another GPU's energy was read")
    return tuple(meter_by_uuid[uuid] for uuid in dict.fromkeys(uuids))


def records_of(base: Record, energy: Energy | Missing, steps: int, tokens: int) -> list[Record]:
    """Return records of energy, energy per token and mean power of ``steps`` steps, or why none.

    ``base`` is the record of the steps' time.
    """
    bare = base.replace(samples=None, interval=None, confidence=None, stop=None, limit=None)
    if isinstance(energy, Missing):
        lacking = bare.replace(
            id=_id(base, 0),
            metric="energy",
            unit="J",
            value=None,
            status=Status.MISSING,
            reason=energy.reason,
            disturbed=None,
        )
        return [lacking]
    low, high = energy.interval
    device_joules = {
        "energy": ("J", 1.0, "of the steps that count, all devices"),
        "energy_per_token": ("J/token", float(tokens), "energy / tokens"),
        "power": ("W", energy.seconds, "energy / seconds"),
    }
    devices = [
        {
            "device": device_joules.device,
            "uuid": device_joules.uuid,
            "energy_j": device_joules.joules,
        }
        for device_joules in energy.devices
    ]
    seen = {
        "energy_steps": steps,
        "energy_s": energy.seconds,
        "energy_source": energy.source,
        "energy_devices": devices,
    }
    return [
        bare.replace(
            id=_id(base, number),
            metric=metric,
            unit=unit,
            value=energy.per(count),
            interval=(low / count, high / count),
            derived=Derivation(ids=(base.id,), formula=formula),
            conditions=flat(seen),
        )
        for number, (metric, (unit, count, formula)) in enumerate(device_joules.items())
    ]


def _id(base: Record, number: int) -> str:
    return f"{base.id[:8]}e{number:03x}"
