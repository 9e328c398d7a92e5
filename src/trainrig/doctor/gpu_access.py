"""Can the GPUs be used at all: is there a driver, and a torch that speaks to it?

A GPU counts as usable when the driver lists it and torch's build fits driver and
architecture.  torch is not run for this: its versions are read from its files.
"""

from __future__ import annotations

from collections.abc import Iterator

from trainrig.doctor import finding_ids as ids
from trainrig.doctor.finding_ids import (
    device_name,
    devices_of,
    finding,
    gpus_of,
    in_container,
    indices_of,
)
from trainrig.machine.snapshot import Missing, PciGpu, Snapshot, value_or
from trainrig.record import Finding

# Drivers that hold a GPU without letting CUDA at it.
_OTHER_DRIVERS = frozenset(["nouveau", "nova_core", "vfio-pci", "pci-stub"])
# First CUDA whose compilers know an architecture, and first that dropped older ones.
# Source: NVIDIA's CUDA release notes 11.8, 12.8 and 13.0.
_CUDA_NEEDED = (((10, 0), (12, 8)), ((9, 0), (11, 8)), ((8, 0), (11, 0)))
_CUDA_DROPPED = (((7, 5), (13, 0)), ((5, 0), (12, 0)))


def _drivers(snapshot: Snapshot) -> Iterator[Finding]:
    answering = {gpu.pci_address for gpu in gpus_of(snapshot)}
    for device in devices_of(snapshot):
        if isinstance(device.driver, Missing) or device.address in answering:
            continue
        shown = f"{device_name(device)} at {device.address}"
        if device.driver is None:
            yield finding(
                ids.GPU_WITHOUT_DRIVER, "error", f"{shown} has no driver", _driver_fix(device)
            )
        elif device.driver in _OTHER_DRIVERS:
            evidence = f"{shown} is held by {device.driver}"
            fix = f"install NVIDIA's driver, which replaces {device.driver}, and reboot"
            if device.driver in ("vfio-pci", "pci-stub"):
                fix = (
                    "it is set aside for a virtual machine: run there, or bind the vendor's driver"
                )
            yield finding(ids.GPU_WITHOUT_DRIVER, "error", evidence, fix)
        elif device.pci_id.startswith(ids.NVIDIA_ID):
            yield _silent(snapshot, shown)


def _driver_fix(device: PciGpu) -> str:
    if device.pci_id.startswith(ids.NVIDIA_ID):
        return "install NVIDIA's driver and reboot; then: nvidia-smi"
    if device.pci_id.startswith(ids.AMD_ID):
        return "install AMD's amdgpu driver and ROCm; then: rocm-smi"
    return f"install the vendor's driver; then: lspci -k -s {device.address}"


def _silent(snapshot: Snapshot, shown: str) -> Finding:
    """A GPU with NVIDIA's kernel driver that NVML does not list."""
    if not isinstance(snapshot.gpus, Missing) and snapshot.gpus:
        if in_container(snapshot):
            evidence = f"{shown} is not given to this container"
            fix = "to use it, start the container with --gpus all"
            return finding(ids.GPU_NOT_IN_CONTAINER, "info", evidence, fix)
        evidence = f"{shown} is on the bus, and the driver does not list it"
        fix = "sudo dmesg | grep -i -e xid -e nvrm"
    else:
        reason = snapshot.gpus.reason if isinstance(snapshot.gpus, Missing) else "NVML lists no GPU"
        evidence, fix = f"{shown}: {reason}", _silent_fix(snapshot, reason)
    return finding(ids.GPU_WITHOUT_DRIVER, "error", evidence, fix)


def _silent_fix(snapshot: Snapshot, reason: str) -> str:
    if "version mismatch" in reason:
        return "the driver was updated while loaded: reboot"
    if "did not answer" in reason:
        return "sudo nvidia-smi -pm 1, then look again; if it hangs: sudo dmesg | grep -i nvrm"
    if in_container(snapshot):
        return "start the container with --gpus all (NVIDIA's container toolkit)"
    return "nvidia-smi; if it fails too, reinstall NVIDIA's driver"


def _torch(snapshot: Snapshot) -> Iterator[Finding]:
    software = snapshot.software
    if isinstance(software.torch, Missing):
        fix = "make setup, or: pip install torch"
        yield finding(ids.TORCH_MISSING, "warning", software.torch.reason, fix)
        return
    nvidia = _present(snapshot, ids.NVIDIA_ID)
    if nvidia and software.torch_cuda is None:
        evidence = f"torch {software.torch} is built without CUDA; here is {nvidia}"
        fix = "pip install --force-reinstall torch from an index with CUDA builds (pytorch.org)"
        yield finding(ids.GPU_NOT_USABLE_BY_TORCH, "error", evidence, fix)
    amd = _present(snapshot, ids.AMD_ID)
    if amd and software.torch_hip is None:
        evidence = f"torch {software.torch} is built without ROCm; here is {amd}"
        fix = "pip install --force-reinstall torch from an index with ROCm builds (pytorch.org)"
        yield finding(ids.GPU_NOT_USABLE_BY_TORCH, "error", evidence, fix)
    yield from _cuda_versions(snapshot)


def _present(snapshot: Snapshot, vendor: str) -> str:
    """Name of the first training device of a vendor, empty where there is none."""
    found = [device for device in devices_of(snapshot) if device.pci_id.startswith(vendor)]
    if found:
        return device_name(found[0])
    vendors = {ids.NVIDIA_ID: "nvidia", ids.AMD_ID: "amd"}
    listed = [gpu for gpu in gpus_of(snapshot) if gpu.vendor == vendors[vendor]]
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
        yield finding(ids.GPU_NOT_USABLE_BY_TORCH, "error", evidence, fix)
    for gpu in gpus_of(snapshot):
        capability = _version(gpu.compute_capability)
        problem = _architecture_problem(built, capability) if capability is not None else None
        if problem is not None:
            what = f"{value_or(gpu.name, 'GPU')} has compute capability {gpu.compute_capability}"
            fix = f"install a torch built for CUDA {problem}"
            yield finding(ids.GPU_NOT_USABLE_BY_TORCH, "error", f"{shown}; {what}", fix)


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


def _hidden(snapshot: Snapshot) -> Iterator[Finding]:
    visible = snapshot.software.environment.get("CUDA_VISIBLE_DEVICES")
    gpus = [gpu for gpu in gpus_of(snapshot) if gpu.vendor == "nvidia"]
    if visible is not None and gpus and visible.strip() in ("", "-1", "NoDevFiles"):
        evidence = f"CUDA_VISIBLE_DEVICES={visible!r} hides {len(gpus)} GPU from torch"
        yield finding(ids.GPU_HIDDEN, "warning", evidence, "unset CUDA_VISIBLE_DEVICES")
    barred = [gpu for gpu in gpus if gpu.compute_mode == "prohibited"]
    if barred:
        evidence = f"{indices_of(barred)} is in compute mode prohibited"
        yield finding(ids.GPU_NOT_USABLE_BY_TORCH, "error", evidence, "sudo nvidia-smi -c DEFAULT")


CHECKS = (_drivers, _torch, _hidden)
