"""The devices of an experiment: which GPUs it is given, and which its ranks found to be theirs.

Numbers are the driver's, in PCI order, whatever CUDA_VISIBLE_DEVICES makes of them; what a rank
found is known by the GPU's UUID.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from trainrig.analysis.trained import Device
from trainrig.machine import Missing, Snapshot, value_or
from trainrig.machine.snapshot import Gpu
from trainrig.runner import energy
from trainrig.runner.targets import Target, find_targets
from trainrig.train.config import Experiment
from trainrig.train.engines import Result, Site


def site_of(snapshot: Snapshot, targets: Sequence[Target] | None = None) -> Site:
    """What this machine has for experiments."""
    found = find_targets(snapshot) if targets is None else targets
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    usable = tuple(target.index for target in found if target.index is not None)
    return Site(
        gpus=len(usable),
        cores=cores or 1,
        numbers=usable,
        present=tuple(gpu.index for gpu in _gpus(snapshot)),
    )


def meters_of(own: Experiment, snapshot: Snapshot) -> energy.Meters:
    """What reads the energy of the devices that an experiment is given."""
    if not own.device.startswith("cuda"):
        return energy.host_meters()
    given = [gpu for number in own.device_numbers for gpu in _gpus(snapshot) if gpu.index == number]
    for gpu in given:
        if gpu.vendor != "nvidia":
            return Missing(
                f"GPU {gpu.index}: the energy of {gpu.vendor.upper()}'s GPUs is not read"
            )
    return energy.gpu_meters([(gpu.index, value_or(gpu.uuid, None)) for gpu in given])


def devices_of(result: Result, snapshot: Snapshot) -> tuple[Device, ...]:
    """The devices that the ranks observed, with the driver's numbers of GPUs."""
    numbers = {value_or(gpu.uuid, ""): gpu.index for gpu in _gpus(snapshot)}
    return tuple(
        {**device, "index": numbers.get(device.get("uuid") or "-")} for device in result.devices
    )


def _gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    return () if isinstance(snapshot.gpus, Missing) else snapshot.gpus
