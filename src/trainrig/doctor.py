"""What is wrong with this machine: before anything is measured, and what load showed of its GPUs.

`diagnose` compares what the machine is with what the catalog and the machine
itself say it can be: can its GPUs be used, are they as fast as they could be, is memory sound and
is the host in the way.  Every finding names what was seen and the next thing to do.  A field that
could not be read yields no finding: not knowing is no fault.  torch is not run: its versions are
read from its files.

Severity.  error: the machine cannot train as it is, or its memory is damaged.
warning: it can, but slower or less surely than it should.  info: worth knowing,
no fault.  What measurements reveal (a slow card among fast ones, a number below
its band) is not judged here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from trainrig.catalog.lookup import chip_by_pci_id
from trainrig.machine.snapshot import (
    FAULTY_REASONS,
    NOT_READ,
    ONLY_TORCH,
    Gpu,
    Missing,
    PciGpu,
    Snapshot,
    value_or,
)
from trainrig.record import Finding, Severity
from trainrig.units import format_memory

FindingId = Literal[
    "gpu-without-driver",
    "gpu-not-in-container",
    "gpu-not-usable-by-torch",
    "gpu-hidden",
    "gpu-not-described",
    "tf32-overridden",
    "torch-missing",
    "pcie-link-below-max",
    "nvlink-inactive",
    "power-limit-below-default",
    "ecc-uncorrected-errors",
    "memory-repair-failed",
    "memory-repair-pending",
    "memory-repaired",
    "memory-errors-corrected",
    "gpu-lost",
    "pcie-replays",
    "mig-enabled",
    "throttled",
    "gpus-differ",
    "persistence-off",
    "cpu-quota",
    "memory-low",
    "swap-used",
    "shm-small",
]
"""All of them, stable and scriptable; users meet them in reports."""
NVIDIA_ID, AMD_ID, HABANA_ID = "10de:", "1002:", "1da3:"
# Drivers that hold a GPU without letting CUDA at it.
_OTHER_DRIVERS = frozenset(["nouveau", "nova_core", "vfio-pci", "pci-stub"])
# First CUDA whose compilers know an architecture, and first that dropped older ones.
# Source: NVIDIA's CUDA release notes 11.8, 12.8 and 13.0.
_CUDA_NEEDED = (((10, 0), (12, 8)), ((9, 0), (11, 8)), ((8, 0), (11, 0)))
_CUDA_DROPPED = (((7, 5), (13, 0)), ((5, 0), (12, 0)))
# Below this share of the time in kernels a GPU counts as idle, and its link may run slow.
_IDLE_UTILIZATION = 0.05
# Drivers round a limit to whole watts or percents.
_LIMIT_TOLERANCE = 0.99
_LEAST_AVAILABLE = 0.1
_MOST_SWAP_USED = 0.1
_LEAST_SHM_BYTES = 2**30


def diagnose(snapshot: Snapshot) -> tuple[Finding, ...]:
    """All findings, the gravest first."""
    found = [finding for check in _CHECKS for finding in check(snapshot)]
    order = {"error": 0, "warning": 1, "info": 2}
    return tuple(sorted(found, key=lambda finding: order[finding.severity]))


def _finding(id: FindingId, severity: Severity, evidence: str, fix: str) -> Finding:
    return Finding(id=id, severity=severity, evidence=evidence, fix=fix)


def _device_name(device: PciGpu) -> str:
    """The catalog's name, else the system's, else the id."""
    chip = chip_by_pci_id(device.pci_id)
    return chip.name if chip is not None else value_or(device.name, f"device {device.pci_id}")


def _devices(snapshot: Snapshot) -> list[PciGpu]:
    """What one would train on, of what is on the bus: integrated graphics are left out."""
    return [
        device
        for device in value_or(snapshot.pci_gpus, ())
        if device.pci_id.startswith((NVIDIA_ID, HABANA_ID))
        or device.pci_class.startswith("12")
        or chip_by_pci_id(device.pci_id) is not None
    ]


def _gpus(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """The GPUs that a driver describes; none where no driver answers."""
    return value_or(snapshot.gpus, ())


def _in_container(snapshot: Snapshot) -> bool:
    return value_or(snapshot.host.container, "none") != "none"


def _numbers(gpus: Iterable[Gpu]) -> str:
    """``GPU 0, 3``."""
    return f"GPU {', '.join(str(gpu.index) for gpu in gpus)}"


# ---- can the GPUs be used: is there a driver, and a torch that speaks to it


def _drivers(snapshot: Snapshot) -> Iterator[Finding]:
    answering = {gpu.pci_address for gpu in _gpus(snapshot)}
    for device in _devices(snapshot):
        if isinstance(device.driver, Missing) or device.address in answering:
            continue
        shown = f"{_device_name(device)} at {device.address}"
        if device.driver is None:
            yield _finding(
                "gpu-without-driver", "error", f"{shown} has no driver", _driver_fix(device)
            )
        elif device.driver in _OTHER_DRIVERS:
            evidence = f"{shown} is held by {device.driver}"
            fix = f"install NVIDIA's driver, which replaces {device.driver}, and reboot"
            if device.driver in ("vfio-pci", "pci-stub"):
                fix = (
                    "it is set aside for a virtual machine: run there, or bind the vendor's driver"
                )
            yield _finding("gpu-without-driver", "error", evidence, fix)
        elif device.pci_id.startswith(NVIDIA_ID):
            yield _silent(snapshot, shown)


def _driver_fix(device: PciGpu) -> str:
    if device.pci_id.startswith(NVIDIA_ID):
        return "install NVIDIA's driver and reboot; then: nvidia-smi"
    if device.pci_id.startswith(AMD_ID):
        return "install AMD's amdgpu driver and ROCm; then: rocm-smi"
    return f"install the vendor's driver; then: lspci -k -s {device.address}"


def _silent(snapshot: Snapshot, shown: str) -> Finding:
    """A GPU with NVIDIA's kernel driver that NVML does not list."""
    if not isinstance(snapshot.gpus, Missing) and snapshot.gpus:
        if _in_container(snapshot):
            evidence = f"{shown} is not given to this container"
            fix = "to use it, start the container with --gpus all"
            return _finding("gpu-not-in-container", "info", evidence, fix)
        evidence = f"{shown} is on the bus, and the driver does not list it"
        fix = "sudo dmesg | grep -i -e xid -e nvrm"
    else:
        reason = snapshot.gpus.reason if isinstance(snapshot.gpus, Missing) else "NVML lists no GPU"
        evidence, fix = f"{shown}: {reason}", _silent_fix(snapshot, reason)
    return _finding("gpu-without-driver", "error", evidence, fix)


def _silent_fix(snapshot: Snapshot, reason: str) -> str:
    if "version mismatch" in reason:
        return "the driver was updated while loaded: reboot"
    if "did not answer" in reason:
        return "sudo nvidia-smi -pm 1, then look again; if it hangs: sudo dmesg | grep -i nvrm"
    if _in_container(snapshot):
        return "start the container with --gpus all (NVIDIA's container toolkit)"
    return "nvidia-smi; if it fails too, reinstall NVIDIA's driver"


def _torch(snapshot: Snapshot) -> Iterator[Finding]:
    software = snapshot.software
    if isinstance(software.torch, Missing):
        fix = "make setup, or: pip install torch"
        yield _finding("torch-missing", "warning", software.torch.reason, fix)
        return
    nvidia = _present(snapshot, NVIDIA_ID)
    if nvidia and software.torch_cuda is None:
        evidence = f"torch {software.torch} is built without CUDA; here is {nvidia}"
        fix = "pip install --force-reinstall torch from an index with CUDA builds (pytorch.org)"
        yield _finding("gpu-not-usable-by-torch", "error", evidence, fix)
    amd = _present(snapshot, AMD_ID)
    if amd and software.torch_hip is None:
        evidence = f"torch {software.torch} is built without ROCm; here is {amd}"
        fix = "pip install --force-reinstall torch from an index with ROCm builds (pytorch.org)"
        yield _finding("gpu-not-usable-by-torch", "error", evidence, fix)
    yield from _cuda_versions(snapshot)


def _present(snapshot: Snapshot, vendor: str) -> str:
    """Name of the first training device of a vendor, empty where there is none."""
    found = [device for device in _devices(snapshot) if device.pci_id.startswith(vendor)]
    if found:
        return _device_name(found[0])
    vendors = {NVIDIA_ID: "nvidia", AMD_ID: "amd"}
    listed = [gpu for gpu in _gpus(snapshot) if gpu.vendor == vendors[vendor]]
    return value_or(listed[0].name, "a GPU") if listed else ""


def _cuda_versions(snapshot: Snapshot) -> Iterator[Finding]:
    """CUDA runs on any driver of its own major version or a newer one."""
    built = _version(snapshot.software.torch_cuda)
    spoken = _version(snapshot.software.cuda_driver)
    if built is None:
        return
    shown = f"torch {snapshot.software.torch} is built for CUDA {snapshot.software.torch_cuda}"
    if spoken is not None and built[0] > spoken[0]:
        evidence = f"{shown}; the driver speaks CUDA {snapshot.software.cuda_driver} at most"
        fix = f"install a newer NVIDIA driver, or a torch built for CUDA {spoken[0]}"
        yield _finding("gpu-not-usable-by-torch", "error", evidence, fix)
    for gpu in _gpus(snapshot):
        capability = _version(gpu.compute_capability)
        problem = _architecture_problem(built, capability) if capability is not None else None
        if problem is not None:
            what = f"{value_or(gpu.name, 'GPU')} has compute capability {gpu.compute_capability}"
            fix = f"install a torch built for CUDA {problem}"
            yield _finding("gpu-not-usable-by-torch", "error", f"{shown}; {what}", fix)


def _architecture_problem(built: tuple[int, int], capability: tuple[int, int]) -> str | None:
    """Which CUDA it takes, where torch's does not know the GPU's architecture."""
    for architecture, first in _CUDA_NEEDED:
        if capability >= architecture:
            return f"{first[0]}.{first[1]} or newer" if built < first else None
    for architecture, first in _CUDA_DROPPED:
        if capability < architecture and built >= first:
            return f"below {first[0]}.{first[1]}"
    return None


def _version(value: object) -> tuple[int, int] | None:
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(part.isdecimal() and len(part) < 6 for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


def _undescribed(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in _gpus(snapshot):
        if gpu.pci_address == ONLY_TORCH:
            evidence = f"GPU {gpu.index} ({gpu.name}): no driver tells its clocks, heat and errors"
            fix = "let its tools in: NVIDIA_DRIVER_CAPABILITIES=compute,utility for a container"
            yield _finding("gpu-not-described", "warning", evidence, fix)


def _hidden(snapshot: Snapshot) -> Iterator[Finding]:
    visible = snapshot.software.environment.get("CUDA_VISIBLE_DEVICES")
    gpus = [gpu for gpu in _gpus(snapshot) if gpu.vendor == "nvidia"]
    if visible is not None and gpus and visible.strip() in ("", "-1", "NoDevFiles"):
        evidence = f"CUDA_VISIBLE_DEVICES={visible!r} hides {len(gpus)} GPU from torch"
        yield _finding("gpu-hidden", "warning", evidence, "unset CUDA_VISIBLE_DEVICES")
    barred = [gpu for gpu in gpus if gpu.compute_mode == "prohibited"]
    if barred:
        evidence = f"{_numbers(barred)} is in compute mode prohibited"
        yield _finding("gpu-not-usable-by-torch", "error", evidence, "sudo nvidia-smi -c DEFAULT")


# ---- are they as fast as they could be, by what the driver says of the card and its slot


def _widths(snapshot: Snapshot) -> Iterator[Finding]:
    """NVML's maximum counts only those lanes of a card that its slot has too; the bus all."""
    devices = {device.address: device for device in value_or(snapshot.pci_gpus, ())}
    for gpu in _gpus(snapshot):
        device = devices.get(gpu.pci_address) if isinstance(gpu.pci_address, str) else None
        widths = [gpu.link.max_width, device.link.max_width if device else None]
        lanes = max((width for width in widths if isinstance(width, int)), default=0)
        if isinstance(gpu.link.width, int) and gpu.link.width < lanes:
            slot = device.slot.max_width if device else None
            yield _narrow(gpu, gpu.link.width, lanes, slot)


def _speeds(snapshot: Snapshot) -> Iterator[Finding]:
    """NVML's highest generation is what card and slot can do together."""
    idle: list[Gpu] = []
    for gpu in _gpus(snapshot):
        now, most = gpu.link.generation, gpu.link.max_generation
        if isinstance(now, Missing) or isinstance(most, Missing) or now >= most:
            continue
        if value_or(gpu.utilization, 0.0) <= _IDLE_UTILIZATION:
            idle.append(gpu)
            continue
        evidence = f"GPU {gpu.index} runs its link at generation {now} of {most} under load"
        fix = "set the slot's link speed in the firmware to automatic; reseat the card"
        yield _finding("pcie-link-below-max", "warning", evidence, fix)
    if idle:
        evidence = f"{_numbers(idle)} idle, with a slow link to save power"
        fix = "nothing, if it rises under load: trainrig bench copy"
        yield _finding("pcie-link-below-max", "info", evidence, fix)


def _narrow(gpu: Gpu, width: int, card: int, slot: int | Missing | None) -> Finding:
    evidence = f"GPU {gpu.index} has {width} of its {card} PCIe lanes"
    if isinstance(slot, int) and slot <= width:
        evidence += f"; its slot has {slot}"
        fix = "move it to a wider slot, or check how the board shares lanes between slots"
    else:
        fix = "reseat the card, clean its contacts, replace the riser; check the lane setting"
    return _finding("pcie-link-below-max", "warning", evidence, fix)


def _nvlinks(snapshot: Snapshot) -> Iterator[Finding]:
    """Links down beside links that are up; a card without a bridge has none up."""
    for gpu in _gpus(snapshot):
        down, up = value_or(gpu.nvlinks_inactive, 0), value_or(gpu.nvlinks_active, 0)
        if down and up:
            evidence = f"GPU {gpu.index}: {down} of {down + up} NVLinks are down"
            fix = f"nvidia-smi nvlink -s -i {gpu.index}; sudo dmesg | grep -i nvlink"
            yield _finding("nvlink-inactive", "warning", evidence, fix)


def _power_limits(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in _gpus(snapshot):
        limit, default = gpu.power_limit_w, gpu.power_limit_default_w
        if isinstance(limit, Missing) or isinstance(default, Missing):
            continue
        if limit < default * _LIMIT_TOLERANCE:
            evidence = f"GPU {gpu.index}: limited to {limit:.0f} W; its default is {default:.0f} W"
            fix = f"sudo nvidia-smi -i {gpu.index} -pl {default:.0f}"
            yield _finding("power-limit-below-default", "warning", evidence, fix)


def _throttling(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in _gpus(snapshot):
        reasons = value_or(gpu.throttle_reasons, ())
        bad = [reason for reason in reasons if reason in FAULTY_REASONS]
        if bad:
            heat = gpu.temperature_c
            at = "" if isinstance(heat, Missing) else f" at {heat:.0f} °C"
            evidence = f"GPU {gpu.index}{at} is slowed down: {', '.join(bad)}"
            fix = "check fans, air flow and power cables; watch: nvidia-smi -q -d PERFORMANCE"
            yield _finding("throttled", "warning", evidence, fix)
        elif "sw_power_cap" in reasons:
            evidence = f"GPU {gpu.index} runs at its power limit"
            fix = "none under full load: the limit sets its speed"
            yield _finding("throttled", "info", evidence, fix)


def _unlike_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    gpus = _gpus(snapshot)
    names = sorted({gpu.name for gpu in gpus if isinstance(gpu.name, str)})
    if len(names) > 1:
        evidence = f"different models in one machine: {', '.join(names)}"
        fix = "train on equal cards (CUDA_VISIBLE_DEVICES); the slowest sets the pace of all"
        yield _finding("gpus-differ", "warning", evidence, fix)
        return
    limits = {gpu.power_limit_w for gpu in gpus if isinstance(gpu.power_limit_w, float)}
    if len(limits) > 1:
        shown = ", ".join(f"{limit:.0f} W" for limit in sorted(limits))
        fix = "set one limit for all: sudo nvidia-smi -pl WATTS"
        yield _finding("gpus-differ", "warning", f"equal GPUs with different limits: {shown}", fix)


def _modes(snapshot: Snapshot) -> Iterator[Finding]:
    cut = [gpu for gpu in _gpus(snapshot) if gpu.mig is True]
    if cut:
        evidence = f"{_numbers(cut)} is in MIG mode: a process gets a slice, not the card"
        fix = f"for the whole card: sudo nvidia-smi -i {cut[0].index} -mig 0"
        yield _finding("mig-enabled", "info", evidence, fix)
    off = [gpu for gpu in _gpus(snapshot) if gpu.persistence is False]
    if off:
        evidence = f"{_numbers(off)}: persistence mode is off; the first use after a pause waits"
        yield _finding("persistence-off", "info", evidence, "sudo nvidia-smi -pm 1")
    override = snapshot.software.environment.get("NVIDIA_TF32_OVERRIDE")
    if override is not None and _gpus(snapshot):
        evidence = f"NVIDIA_TF32_OVERRIDE={override} rounds or forbids tf32 whatever a program asks"
        fix = "unset NVIDIA_TF32_OVERRIDE; products are measured here without it, trainings with it"
        yield _finding("tf32-overridden", "warning", evidence, fix)


# ---- is memory sound, and is the host in the way


def _gpu_memory(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in value_or(snapshot.gpus_after, ()) or _gpus(snapshot):
        new = value_or(gpu.ecc_uncorrected_volatile, 0)
        old = value_or(gpu.ecc_uncorrected_aggregate, 0)
        if new:
            evidence = f"GPU {gpu.index}: {new} uncorrectable memory errors since the driver loaded"
            fix = f"drain it; nvidia-smi -q -i {gpu.index} -d ECC,ROW_REMAPPER; reset or replace it"
            yield _finding("ecc-uncorrected-errors", "error", evidence, fix)
        elif old:
            evidence = (
                f"GPU {gpu.index}: {old} uncorrectable memory errors in its life, none lately"
            )
            fix = f"watch it: nvidia-smi -q -i {gpu.index} -d ECC"
            yield _finding("ecc-uncorrected-errors", "warning", evidence, fix)
        if gpu.remap_failed is True:
            evidence = f"GPU {gpu.index}: a damaged memory row could not be replaced"
            yield _finding("memory-repair-failed", "error", evidence, "replace the card")
        if gpu.remap_pending is True or gpu.retirement_pending is True:
            evidence = f"GPU {gpu.index}: a memory repair waits for a reset"
            fix = f"stop its jobs; sudo nvidia-smi -r -i {gpu.index}, or reboot"
            yield _finding("memory-repair-pending", "warning", evidence, fix)


_DRAIN = "drain it; nvidia-smi -q -d ROW_REMAPPER,PAGE_RETIREMENT; replace the card if it goes on"
_COOLING = "check fans, air flow and power cables; watch: nvidia-smi -q -d TEMPERATURE,PERFORMANCE"
_SLOT = "reseat the card or its riser; look for errors of the slot: dmesg | grep -i pcie"
# Counters of a GPU: id, severity, what it means that load raised one by 1 at the least, what to do.
_COUNTED: dict[str, tuple[FindingId, Severity, str, str]] = {
    "remapped_rows": ("memory-repaired", "error", "memory rows replaced", _DRAIN),
    "retired_pages": ("memory-repaired", "error", "memory pages retired", _DRAIN),
    "ecc_corrected_volatile": (
        *("memory-errors-corrected", "warning", "memory errors corrected"),
        "watch it: nvidia-smi -q -d ECC",
    ),
    "pcie_replays": ("pcie-replays", "warning", "packets of its link sent again", _SLOT),
    "slowed_by_heat_s": ("throttled", "warning", "s slowed down by heat", _COOLING),
    "slowed_by_board_s": ("throttled", "warning", "s slowed down by its power supply", _COOLING),
}


def _under_load(snapshot: Snapshot) -> Iterator[Finding]:
    """What the counters of GPUs say of a run that was between two looks at them."""
    seen = snapshot.gpus_after
    if seen == NOT_READ:
        return
    after = {value_or(gpu.uuid, gpu.index): gpu for gpu in value_or(seen, ())}
    for gpu in _gpus(snapshot):
        later = after.get(value_or(gpu.uuid, gpu.index))
        if later is None:
            why = f": {seen.reason}" if isinstance(seen, Missing) else ""
            evidence = f"GPU {gpu.index} did not answer any more after the load{why}"
            fix = "dmesg | grep -i -e xid -e pcie; reboot; take it out of service if it stays"
            yield _finding("gpu-lost", "error", evidence, fix)
            continue
        for name, (id_, severity, words, fix) in _COUNTED.items():
            first, last = getattr(gpu, name), getattr(later, name)
            if not isinstance(first, Missing) and value_or(last, first) - first >= 1:
                evidence = f"GPU {gpu.index}: {last - first:.0f} {words} during the run"
                yield _finding(id_, severity, evidence, fix)


def _quota(snapshot: Snapshot) -> Iterator[Finding]:
    quota, threads = snapshot.cpu.quota_cpus, snapshot.cpu.usable_threads
    if isinstance(quota, float) and isinstance(threads, int) and quota < threads:
        evidence = f"the control group allows {quota:g} processors; {threads} are visible"
        fix = f"start the container with more (--cpus), or set OMP_NUM_THREADS={max(1, int(quota))}"
        yield _finding("cpu-quota", "warning", evidence, fix)


def _host_memory(snapshot: Snapshot) -> Iterator[Finding]:
    memory = snapshot.memory
    total, free = memory.total_bytes, memory.available_bytes
    if isinstance(total, int) and isinstance(free, int) and free < total * _LEAST_AVAILABLE:
        evidence = f"{format_memory(free)} of {format_memory(total)} memory are available"
        yield _finding("memory-low", "warning", evidence, "find what uses it: ps aux --sort=-rss")
    swap, left = value_or(memory.swap_total_bytes, 0), value_or(memory.swap_free_bytes, 0)
    if swap - left > swap * _MOST_SWAP_USED:
        evidence = f"{format_memory(swap - left)} of {format_memory(swap)} swap are in use"
        yield _finding("swap-used", "warning", evidence, "free memory, or: sudo swapoff -a")
    shm = memory.shm_bytes
    if isinstance(shm, int) and shm < _LEAST_SHM_BYTES:
        evidence = f"/dev/shm has {format_memory(shm)}; data loaders and NCCL pass buffers there"
        fix = "start the container with --ipc=host or --shm-size=8g"
        yield _finding("shm-small", "info", evidence, fix)


_CHECKS = (
    *(_drivers, _torch, _undescribed, _hidden),
    *(_gpu_memory, _under_load, _quota, _host_memory),
    *(_widths, _speeds, _nvlinks, _power_limits, _throttling, _unlike_gpus, _modes),
)
