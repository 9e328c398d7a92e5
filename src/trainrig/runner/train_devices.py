"""The devices of an experiment: which GPUs it is given, and which its ranks found to be theirs.

Numbers are the driver's, in PCI order, whatever CUDA_VISIBLE_DEVICES makes of them; what a rank
found is known by the GPU's UUID.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.machine import Missing, Snapshot, value_or
from trainrig.machine.snapshot import Gpu
from trainrig.runner import energy
from trainrig.runner.targets import Target, find_targets
from trainrig.train.config import Experiment
from trainrig.train.engines import Result, Site
from trainrig.units import ranges

Device = Mapping[str, Any]


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


def found_by(result: Result, snapshot: Snapshot) -> tuple[Device, ...]:
    """The devices that the ranks found, with the driver's numbers of GPUs."""
    numbers = {value_or(gpu.uuid, ""): gpu.index for gpu in _gpus(snapshot)}
    return tuple(
        {**device, "index": numbers.get(device.get("uuid") or "-")} for device in result.devices
    )


def differences(own: Experiment, found: Sequence[Device]) -> list[str]:
    """What ranks were given and did not find, and GPUs that two of them share."""
    told: list[str] = []
    numbers = [each.get("index") for each in found]
    if own.device_numbers and None not in numbers and len(found) == own.nproc:
        asked = list(own.device_numbers)
        told += [f"devices: asked {asked}, found {numbers}"] if asked != numbers else []
    uuids = [str(each["uuid"]) for each in found if each.get("uuid")]
    shared = next((uuid for uuid in uuids if uuids.count(uuid) > 1), None)
    told += [f"devices: asked one for each rank, found {shared} more than once"] if shared else []
    return told


def memory_by_rank(result: Result) -> list[dict[str, Any]]:
    """The peaks of each rank's devices, as ``train --json`` prints them."""
    return [
        {
            "rank": each["rank"],
            "device": each["device"],
            "allocated_bytes": each["allocated"],
            "reserved_bytes": each["reserved"],
        }
        for each in result.memories
    ]


def words_of(found: Sequence[Device]) -> str | None:
    """The devices in one line: ``0: GPU 1 NVIDIA H200 GPU-…; 1: GPU 0 …``, ``0: cores 0-3``."""
    return "; ".join(f"{each['rank']}: {_words(each)}" for each in found) or None


def _words(device: Device) -> str:
    if not str(device["device"]).startswith("cuda"):
        return f"cores {ranges(device.get('cores') or ())}".strip()
    number = device.get("index")
    name = device["device"] if number is None else f"GPU {number}"
    return " ".join(str(word) for word in (name, device.get("name"), device.get("uuid")) if word)


def _gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    return () if isinstance(snapshot.gpus, Missing) else snapshot.gpus
