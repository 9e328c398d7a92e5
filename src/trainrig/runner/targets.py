"""What is measured: the host, each GPU that torch may see, and the disk under a folder."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import chip_by_pci_id, find_chip
from trainrig.errors import TrainrigError, UsageError
from trainrig.machine.disks import name_of, place_of
from trainrig.machine.snapshot import Gpu, Missing, Snapshot, value_or
from trainrig.measure import fio
from trainrig.measure.disk_activity import PREFIX, is_disk
from trainrig.measure.scratch_file import free_bytes, probe
from trainrig.record import Case

HOST = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One device to measure."""

    torch_device: str
    """``cpu`` or ``cuda:N``, counted as torch counts; ``disk:FOLDER`` is none of torch's."""
    name: str
    """Device model as records name it."""
    index: int | None
    """The driver's number of a GPU; None for the host."""
    memory_bytes: int
    """What is free on it for operands."""
    chip: Chip | None
    """Its entry in the catalog, where one fits exactly."""
    power_limit_w: float | None = None
    """What a GPU may draw as it is set now, where that is known."""
    uuid: str | None = None
    """What the driver calls a GPU, wherever it is known."""
    notes: Case = field(default_factory=dict, hash=False)
    """What the conditions of its points say besides."""
    unusable: str | None = None
    """Why it cannot be measured."""
    tool: str = "fio"
    """What measures a disk: Python where fio cannot be used, another case and indicative only."""
    tool_note: str = ""

    @property
    def is_disk(self) -> bool:
        """Whether it is the disk under a folder."""
        return is_disk(self.torch_device)

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU."""
        return self.index is not None

    @property
    def label(self) -> str:
        """For people: ``RTX 4090`` or ``RTX 4090 #1``."""
        return self.name if self.index is None else f"{self.name} #{self.index}"


def find_targets(snapshot: Snapshot, environ: Mapping[str, str] = os.environ) -> tuple[Target, ...]:
    """The GPUs that torch may use, in its order, then the host."""
    gpus = () if isinstance(snapshot.gpus, Missing) else snapshot.gpus
    visible = _visible(gpus, environ)
    # A build that could not be read is given the chance to work.
    if snapshot.software.torch_cuda is None and snapshot.software.torch_hip is None:
        visible = []
    found = [_gpu_target(gpu, number) for number, gpu in enumerate(visible)]
    return (*found, _host_target(snapshot))


def disk_target(snapshot: Snapshot, folder: Path) -> Target:
    """The disk under an existing folder."""
    path = os.path.realpath(folder)
    place = place_of(path)
    name, notes = "unknown disk", {}
    if not isinstance(place, Missing):
        name = name_of(place, value_or(snapshot.disks, ()))
        notes = {"mount": place.mount, "filesystem": place.filesystem}
    free, unusable = 0, None
    try:
        free = free_bytes(path)
        probe(path)
    except TrainrigError as error:
        unusable = error.message
    tool, tool_note = disk_tool()
    return Target(
        torch_device=PREFIX + path,
        name=name,
        index=None,
        memory_bytes=free,
        chip=None,
        notes=notes,
        unusable=unusable,
        tool=tool,
        tool_note=tool_note,
    )


def disk_tool() -> tuple[str, str]:
    """What disks are measured with here, and why its numbers are only indicative."""
    reason = fio.unusable()
    return ("python", f"one request at a time, by Python: {reason}") if reason else ("fio", "")


def choose(targets: Sequence[Target], device: str | None) -> tuple[Target, ...]:
    """The targets that ``--device`` names: ``cpu``, ``gpu``, ``cuda:1``; all without it.

    Raises UsageError when there is none.
    """
    wanted = [
        target
        for target in targets
        if device is None
        or target.torch_device == device
        or (device in ("gpu", "cuda") and target.is_gpu)
    ]
    if not wanted:
        there = ", ".join(target.torch_device for target in targets)
        raise UsageError(f"no such device: {device!r}", f"this machine has: {there}")
    return tuple(wanted)


def _visible(gpus: Sequence[Gpu], environ: Mapping[str, str]) -> list[Gpu]:
    """The GPUs that CUDA_VISIBLE_DEVICES lets through, in its order.

    Workers run with CUDA_DEVICE_ORDER=PCI_BUS_ID, so that CUDA's numbers are the
    driver's.  As CUDA does, the list ends at the first entry that names no GPU.
    """
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(gpus)
    if "MIG-" in wanted:
        raise UsageError(
            "CUDA_VISIBLE_DEVICES names a slice of a GPU (MIG), which cannot be measured yet",
            "unset it, or give the whole GPU's number",
        )
    chosen: list[Gpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        match = [gpu for gpu in gpus if entry and _is_called(gpu, entry)]
        if not match:
            break
        chosen.append(match[0])
    return chosen


def _is_called(gpu: Gpu, entry: str) -> bool:
    uuid = value_or(gpu.uuid, "")
    return entry == str(gpu.index) or (entry.startswith("GPU-") and uuid.startswith(entry))


def _gpu_target(gpu: Gpu, number: int) -> Target:
    name = value_or(gpu.name, "unknown GPU")
    by_id = None if isinstance(gpu.pci_id, Missing) else chip_by_pci_id(gpu.pci_id)
    # A slice of a GPU (MIG) has no claims of its own, and the whole chip's are not its.
    sliced = value_or(gpu.mig, False)
    chip = None if sliced else find_chip(name) or by_id
    total, used = value_or(gpu.memory_total_bytes, 0), value_or(gpu.memory_used_bytes, 0)
    return Target(
        torch_device=f"cuda:{number}",
        name=chip.name if chip else f"{name} (MIG slice)" if sliced else name,
        index=gpu.index,
        memory_bytes=total - used,
        chip=chip,
        power_limit_w=value_or(gpu.power_limit_w, None),
    )


def _host_target(snapshot: Snapshot) -> Target:
    available = value_or(snapshot.memory.available_bytes, 0)
    limit = value_or(snapshot.memory.limit_bytes, None)
    return Target(
        torch_device=HOST,
        name=value_or(snapshot.cpu.model, "unknown CPU"),
        index=None,
        memory_bytes=min(available, limit) if limit else available,
        chip=None,
    )
