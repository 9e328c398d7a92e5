"""Devices to measure: the host, each GPU visible to torch, and the disk under a folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from trainrig.catalog.arithmetic import (
    UNKNOWN,
    Accelerator,
    Arithmetic,
    HostProcessor,
    arithmetic_of,
)
from trainrig.catalog.chip import Chip
from trainrig.catalog.lookup import chip_by_pci_id, find_chip
from trainrig.errors import TrainrigError, UnavailableError, UsageError
from trainrig.machine.disks import name_of, place_of
from trainrig.machine.snapshot import ONLY_TORCH, Gpu, Missing, Snapshot, value_or
from trainrig.measure import fio
from trainrig.measure.disk_activity import PREFIX, is_disk
from trainrig.measure.scratch_file import free_bytes, probe
from trainrig.process.worker import Worker
from trainrig.record import Case
from trainrig.units import device_text

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
    """Free bytes for operands."""
    chip: Chip | None
    """Its entry in the catalog, where one fits exactly."""
    arithmetic: Arithmetic = UNKNOWN
    """The precision that it is fastest in, and what it only emulates."""
    power_limit_w: float | None = None
    """Current power limit of a GPU in watts, where known."""
    uuid: str | None = None
    """UUID by the driver, where known."""
    notes: Case = field(default_factory=dict, hash=False)
    """Further conditions for the records of its points."""
    unusable: str | None = None
    """Reason that it cannot be measured; empty if it can."""
    tool: str = "fio"
    """Tool that measures a disk: fio, else Python (another case, indicative only)."""
    tool_note: str = ""

    @property
    def is_disk(self) -> bool:
        """Return whether it is the disk under a folder."""
        return is_disk(self.torch_device)

    @property
    def is_gpu(self) -> bool:
        """Return whether it is a GPU."""
        return self.index is not None

    @property
    def label(self) -> str:
        """For people: ``RTX 4090`` or ``RTX 4090 #1``."""
        return device_text(self.name, self.index)


Ask = Callable[[str], Mapping[str, Any]]
"""``cuda:1`` → what a worker for it says when it is ready; nothing where it does not come up."""


def _ask(device: str) -> Mapping[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            with Worker(device, Path(folder, "worker.log")) as worker:
                return worker.wait_ready()
        except UnavailableError:
            return {}


def _has_gpu_node() -> bool:
    """Return whether the kernel offers a GPU: NVIDIA, Jetson, AMD, or Windows' under WSL."""
    names = ("nvidia0", "nvhost-gpu", "nvgpu", "kfd", "dxg")
    return any(Path("/dev", name).exists() for name in names)


def described(snapshot: Snapshot, ask: Ask = _ask) -> Snapshot:
    """Return the snapshot completed with GPUs and memory that only torch reports.

    A container without the driver's tools and a board without NVML have GPUs that no driver
    describes; unified memory and a slice (MIG) have sizes of their own.  torch is asked in a
    worker, and only where something is not known.
    """
    vendor = _vendor(snapshot)
    gpus = list(value_or(snapshot.gpus, ()))
    if vendor is None:
        return snapshot
    if not any(gpu.vendor == vendor for gpu in gpus):
        gpu_facts = ask("cuda:0") if _has_gpu_node() else {}
        count = gpu_facts.get("num_gpus", 0)
        listed = [gpu_facts, *(ask(f"cuda:{number}") for number in range(1, count))][:count]
        gpus += [
            Gpu.unknown(
                ONLY_TORCH,
                index=len(gpus) + number,
                vendor=vendor,
                name=about.get("name", ONLY_TORCH),
                uuid=about.get("uuid") or ONLY_TORCH,
                compute_capability=about.get("compute_capability") or ONLY_TORCH,
            )
            for number, about in enumerate(listed)
        ]
    for number, gpu in enumerate(_visible(gpus, vendor, os.environ)):
        if isinstance(gpu.memory.total_bytes, Missing) or gpu.mode.mig is True:
            free = ask(f"cuda:{number}").get("memory_bytes", gpu.memory.total_bytes)
            sized = gpu.replace(memory_total_bytes=free, memory_used_bytes=0)
            gpus[gpus.index(gpu)] = sized
    return replace(snapshot, gpus=tuple(gpus)) if gpus else snapshot


def _vendor(snapshot: Snapshot) -> str | None:
    """Whose GPUs the installed torch was built for; a build that could not be read: NVIDIA's."""
    if snapshot.software.torch_hip is not None and snapshot.software.torch_cuda is None:
        return "amd"
    return None if snapshot.software.torch_cuda is None else "nvidia"


def find_targets(snapshot: Snapshot, environ: Mapping[str, str] = os.environ) -> tuple[Target, ...]:
    """Return the GPUs that torch may use, in its order, then the host."""
    vendor = _vendor(snapshot)
    gpus = _visible(value_or(snapshot.gpus, ()), vendor, environ) if vendor else []
    gpu_targets = [_gpu_target(gpu, number) for number, gpu in enumerate(gpus)]
    return (*gpu_targets, _host_target(snapshot))


def disk_target(snapshot: Snapshot, folder: Path) -> Target:
    """Return the disk under an existing folder."""
    path = os.path.realpath(folder)
    location = place_of(path)
    name, notes = "unknown disk", {}
    if not isinstance(location, Missing):
        name = name_of(location, value_or(snapshot.disks, ()))
        notes = {"mount": location.mount, "filesystem": location.filesystem}
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
    """Return the tool that measures disks here, and why its numbers are only indicative."""
    reason = fio.unusable()
    return ("python", f"one request at a time, by Python: {reason}") if reason else ("fio", "")


def choose(targets: Sequence[Target], device: str | None) -> tuple[Target, ...]:
    """Return the targets that ``--device`` names: ``cpu``, ``gpu``, ``cuda:1``; by default all.

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
        present = ", ".join(target.torch_device for target in targets)
        raise UsageError(f"no such device: {device!r}", f"this machine has: {present}")
    return tuple(wanted)


def choose_gpus(targets: Sequence[Target], numbers: Sequence[str]) -> tuple[Target, ...]:
    """Return the host and the GPUs with these driver numbers; none for ``cpu``.

    Raises UsageError for a number that no GPU has.
    """
    gpu_by_number = {str(target.index): target for target in targets if target.is_gpu}
    for number in numbers:
        if number not in gpu_by_number and number != HOST:
            hint = f"this machine has: {', '.join((*gpu_by_number, HOST))}"
            raise UsageError(f"--devices: no GPU {number!r}", hint)
    return tuple(t for t in targets if not numbers or not t.is_gpu or str(t.index) in numbers)


# Each of them is a list of those that the one before left: the first that is set.
_LISTS = {
    "nvidia": (("CUDA_VISIBLE_DEVICES",),),
    "amd": (("ROCR_VISIBLE_DEVICES",), ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}


def _visible(gpus: Sequence[Gpu], vendor: str, environ: Mapping[str, str]) -> list[Gpu]:
    """Return the GPUs of torch's vendor that CUDA_VISIBLE_DEVICES and the like let through.

    Workers run with CUDA_DEVICE_ORDER=PCI_BUS_ID, so that CUDA's numbers are the
    driver's.  As CUDA does, a list ends at the first entry that names no GPU.  Of slices (MIG) it
    has one, of a GPU that the slice's name says or that is the only one cut into slices.
    """
    chosen = [gpu for gpu in gpus if gpu.vendor == vendor]
    for names in _LISTS[vendor]:
        name = next((name for name in names if name in environ), None)
        if name is None:
            continue
        entries = [entry.strip() for entry in environ[name].split(",")]
        visible = [_called(chosen, entry) for entry in entries]
        chosen = [gpu for gpu in takewhile(lambda gpu: gpu is not None, visible) if gpu]
        if "MIG-" in environ[name] and not chosen:
            raise UsageError(
                f"{name} names a slice (MIG) of one of several GPUs, and not which",
                "let it name that GPU too: MIG-GPU-<uuid>/<gi>/<ci>",
            )
    return chosen


def _called(gpus: Sequence[Gpu], entry: str) -> Gpu | None:
    if entry.startswith("MIG-"):
        sliced = [gpu for gpu in gpus if gpu.mode.mig is True]
        named = [gpu for gpu in sliced if value_or(gpu.uuid, "?") in entry]
        return (named or sliced)[0] if named or len(sliced) == 1 else None
    for number, gpu in enumerate(gpus):
        uuid = value_or(gpu.uuid, "")
        if entry == str(number) or (entry.startswith("GPU-") and uuid.startswith(entry)):
            return gpu
    return None


def _gpu_target(gpu: Gpu, number: int) -> Target:
    name = value_or(gpu.name, "unknown GPU")
    by_id = None if isinstance(gpu.pci_id, Missing) else chip_by_pci_id(gpu.pci_id)
    # A slice of a GPU (MIG) has no claims of its own, and the whole chip's are not its.
    sliced = value_or(gpu.mode.mig, False)
    sheet = find_chip(name) or by_id
    chip = None if sliced else sheet
    capability = value_or(gpu.compute_capability, None)
    total, used = value_or(gpu.memory.total_bytes, 0), value_or(gpu.memory.used_bytes, 0)
    return Target(
        torch_device=f"cuda:{number}",
        name=chip.name if chip else f"{name} (MIG slice)" if sliced else name,
        index=gpu.index,
        memory_bytes=total - used,
        chip=chip,
        arithmetic=arithmetic_of(Accelerator(chip=chip or sheet, capability=capability)),
        power_limit_w=value_or(gpu.power.limit_w, None),
        uuid=None if sliced or gpu.vendor != "nvidia" else value_or(gpu.uuid, None),
    )


def host_arithmetic(snapshot: Snapshot) -> Arithmetic:
    """Return the formats that the processor has in hardware and that oneDNN may use."""
    flags, environment = value_or(snapshot.cpu.flags, None), snapshot.software.environment
    return arithmetic_of(HostProcessor(flags=flags, environment=environment))


def _host_target(snapshot: Snapshot) -> Target:
    available = value_or(snapshot.memory.available_bytes, 0)
    limit = value_or(snapshot.memory.limit_bytes, None)
    return Target(
        torch_device=HOST,
        name=value_or(snapshot.cpu.model, "unknown CPU"),
        index=None,
        memory_bytes=min(available, limit) if limit else available,
        chip=None,
        arithmetic=host_arithmetic(snapshot),
    )
