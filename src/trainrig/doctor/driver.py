"""Can the GPUs be reached: bus, kernel driver, its versions, Secure Boot, an earlier run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trainrig.doctor.check import (
    AMD_ID,
    NVIDIA_ID,
    HealthCheck,
    NotApplicable,
    device_name,
    devices,
    finding,
    gpus_of,
    in_container,
    needs_devices,
    needs_health,
)
from trainrig.machine.health import DriverState, Health
from trainrig.machine.snapshot import (
    NOT_IN_FILE,
    ONLY_TORCH,
    Missing,
    PciGpu,
    Snapshot,
    value_or,
)
from trainrig.record import Finding

_LEAST_SWITCHED = 8
# Drivers that hold a GPU without letting CUDA at it.
_OTHER_DRIVERS = frozenset(["nouveau", "nova_core", "vfio-pci", "pci-stub"])


def _gpus_without_driver(snapshot: Snapshot) -> Iterator[Finding]:
    """Find each GPU on the bus that no driver describes."""
    answering = {gpu.pci_address for gpu in gpus_of(snapshot)}
    for device in devices(snapshot):
        if isinstance(device.driver, Missing) or device.address in answering:
            continue
        shown = f"{device_name(device)} at {device.address}"
        if device.driver is None:
            yield _no_driver(snapshot, device, shown)
        elif device.driver in _OTHER_DRIVERS:
            yield _held_by_other_driver(snapshot, device, shown)
        elif device.pci_id.startswith(NVIDIA_ID) and snapshot.gpus != NOT_IN_FILE:
            yield _not_listed_by_nvml(snapshot, shown)


def _no_driver(snapshot: Snapshot, device: PciGpu, shown: str) -> Finding:
    state = None if isinstance(snapshot.health, Missing) else snapshot.health.driver
    fix, more = _driver_fix(device), {}
    if state is not None and device.pci_id.startswith(NVIDIA_ID):
        kernel = value_or(snapshot.host.kernel, "")
        builds = value_or(state.builds, ())
        if builds and kernel and kernel not in builds:
            fix = f"sudo apt install linux-headers-{kernel} && sudo dkms autoinstall -k {kernel}"
            more = {
                "cause": f"DKMS has built the module for {', '.join(builds)}, and {kernel} runs",
                "undo": f"sudo dkms remove nvidia/VERSION -k {kernel}",
                "reboot": False,
            }
    evidence = f"{shown} has no driver"
    return finding("gpu-without-driver", "error", evidence, fix, **more)


def _held_by_other_driver(snapshot: Snapshot, device: PciGpu, shown: str) -> Finding:
    driver = str(device.driver)
    if driver in ("vfio-pci", "pci-stub"):
        return finding(
            "gpu-without-driver",
            "warning" if gpus_of(snapshot) else "error",  # others are there to train on
            f"{shown} is held by {driver}",
            "it is set aside for a virtual machine: run there, or bind the vendor's driver",
            cause="the kernel's command line or modprobe's settings hand the card to a guest",
            undo="put the vfio-pci.ids option back into the kernel's command line",
            reboot=True,
        )
    return finding(
        "gpu-without-driver",
        "error",
        f"{shown} is held by {driver}",
        f"install NVIDIA's driver; echo 'blacklist {driver}' | sudo tee "
        f"/etc/modprobe.d/blacklist-{driver}.conf; sudo update-initramfs -u; sudo reboot",
        cause=f"{driver}, the kernel's own driver, took the card first; it has no CUDA",
        undo=f"sudo rm /etc/modprobe.d/blacklist-{driver}.conf; sudo update-initramfs -u; reboot",
        reboot=True,
    )


def _driver_fix(device: PciGpu) -> str:
    if device.pci_id.startswith(NVIDIA_ID):
        return "install NVIDIA's driver and reboot; then: nvidia-smi"
    if device.pci_id.startswith(AMD_ID):
        return "install AMD's amdgpu driver and ROCm; then: rocm-smi"
    return f"install the vendor's driver; then: lspci -k -s {device.address}"


def _not_listed_by_nvml(snapshot: Snapshot, shown: str) -> Finding:
    """Explain a GPU with NVIDIA's kernel driver that NVML does not list."""
    more: dict[str, Any] = {}
    if not isinstance(snapshot.gpus, Missing) and snapshot.gpus:
        if in_container(snapshot):
            evidence = f"{shown} is not given to this container"
            fix = "to use it, start the container with --gpus all"
            return finding("gpu-not-in-container", "info", evidence, fix)
        evidence = f"{shown} is on the bus, and the driver does not list it"
        fix = "sudo dmesg | grep -i -e xid -e nvrm"
        more["cause"] = "the driver gave the card up after an error, or could not initialise it"
    else:
        reason = snapshot.gpus.reason if isinstance(snapshot.gpus, Missing) else "NVML lists no GPU"
        evidence, fix = f"{shown}: {reason}", _nvml_fix(snapshot, reason)
        if "version mismatch" in reason:
            more = {"cause": "the driver's files were replaced while its module ran"}
    return finding("gpu-without-driver", "error", evidence, fix, **more)


def _nvml_fix(snapshot: Snapshot, reason: str) -> str:
    if "version mismatch" in reason:
        return "the driver was updated while loaded: reboot"
    if "did not answer" in reason:
        return "sudo nvidia-smi -pm 1, then look again; if it hangs: sudo dmesg | grep -i nvrm"
    if in_container(snapshot):
        return "start the container with --gpus all (NVIDIA's container toolkit)"
    return "nvidia-smi; if it fails too, reinstall NVIDIA's driver"


def _gpus_not_described(snapshot: Snapshot) -> Iterator[Finding]:
    for gpu in gpus_of(snapshot):
        if gpu.pci_address == ONLY_TORCH:
            evidence = f"GPU {gpu.index} ({gpu.name}): no driver tells its clocks, heat and errors"
            fix = "let its tools in: NVIDIA_DRIVER_CAPABILITIES=compute,utility for a container"
            yield finding("gpu-not-described", "warning", evidence, fix)


# ---- off the bus, or gone since an earlier run


def _health(snapshot: Snapshot) -> Health:
    assert not isinstance(snapshot.health, Missing)
    return snapshot.health


def _gpus_off_bus(snapshot: Snapshot) -> Iterator[Finding]:
    by_address = {device.address: device for device in value_or(snapshot.pci_gpus, ())}
    for state in value_or(_health(snapshot).bus, ()):
        device = by_address.get(state.address)
        if state.answers is False and device is not None:
            evidence = (
                f"{device_name(device)} at {state.address} answers nothing but ones "
                "(lspci shows rev ff)"
            )
            fix = (
                "sudo poweroff, wait ten seconds, start again; then check power cables, seat, riser"
            )
            yield finding("gpu-fell-off-bus", "error", evidence, fix)


def _missing_gpus(snapshot: Snapshot) -> Iterator[Finding]:
    earlier = value_or(_health(snapshot).earlier_gpus, ())
    uuids = {gpu.uuid for gpu in gpus_of(snapshot)}
    addresses = {device.address for device in value_or(snapshot.pci_gpus, ())}
    gone = [gpu for gpu in earlier if gpu.uuid not in uuids and gpu.pci_address not in addresses]
    for gpu in gone:
        evidence = f"{gpu.name} at {gpu.pci_address} was there in run {gpu.run} and is gone"
        fix = "sudo dmesg | grep -i -e pcie -e xid; power off, reseat the card and its power cables"
        yield finding("gpu-gone", "error", evidence, fix)


# ---- versions, Secure Boot, fabric manager


def _state(snapshot: Snapshot) -> DriverState:
    return _health(snapshot).driver


def _driver_versions(snapshot: Snapshot) -> Iterator[Finding]:
    """Find a kernel module and libraries of two versions, and a module that waits for a boot."""
    state = _state(snapshot)
    loaded, library, disk = (
        value_or(version, "") for version in (state.loaded, state.library, state.on_disk)
    )
    date = value_or(state.upgraded, None)
    cause = {"cause": f"unattended upgrades replaced the driver on {date}"} if date else {}
    is_answering = bool(gpus_of(snapshot))  # NVML refuses to work with another version's module
    if loaded and library and loaded != library and not is_answering:
        evidence = f"the kernel runs {loaded}, the libraries are {library}"
        fix = "sudo reboot; to keep it from happening: sudo apt-mark hold 'nvidia-*' 'libnvidia-*'"
        yield finding("driver-versions-differ", "error", evidence, fix, **cause)
    elif loaded and disk and loaded != disk:
        evidence = f"the kernel runs {loaded}, the next boot loads {disk}"
        fix = "sudo reboot at a time of your choosing"
        yield finding("driver-waits-for-reboot", "warning", evidence, fix, **cause)


def _secure_boot(snapshot: Snapshot) -> Iterator[Finding]:
    state = _state(snapshot)
    cards = [gpu for gpu in devices(snapshot) if gpu.pci_id.startswith(NVIDIA_ID)]
    unloaded = not isinstance(state.modules, Missing) and "nvidia" not in state.modules
    refused = [
        event
        for event in value_or(_health(snapshot).kernel_log, ())
        if event.kind == "module-refused"
    ]
    if state.secure_boot is True and cards and unloaded and (refused or value_or(state.builds, ())):
        seen = f": {refused[0].text}" if refused else ""
        evidence = f"Secure Boot is on and NVIDIA's module is not loaded{seen}"
        fix = "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der; reboot; choose Enroll MOK"
        yield finding("driver-refused-by-secure-boot", "error", evidence, fix)


def _fabric_manager(snapshot: Snapshot) -> Iterator[Finding]:
    state = _state(snapshot)
    manager, loaded = value_or(state.fabric_manager, ""), value_or(state.loaded, "")
    if state.fabric_active is False:
        evidence = f"nvidia-fabricmanager {manager} is installed and does not run"
        fix = "sudo systemctl enable --now nvidia-fabricmanager"
        yield finding("fabric-manager-down", "error", evidence, fix)
    if manager and loaded and manager != loaded:
        evidence = f"the fabric manager is {manager}, the driver {loaded}"
        fix = f"sudo apt install nvidia-fabricmanager-{loaded.split('.')[0]}={loaded}-1"
        yield finding("fabric-manager-differs", "error", evidence, fix)


def _needs_nvidia(snapshot: Snapshot) -> object:
    if isinstance(snapshot.health, Missing):
        return snapshot.health
    return needs_devices(snapshot)


def _needs_switch(snapshot: Snapshot) -> object:
    """Require an NVSwitch, which joins eight GPUs or more with NVLinks."""
    if len(devices(snapshot)) < _LEAST_SWITCHED:
        return _needs_nvidia(snapshot) or NotApplicable(
            f"no NVSwitch with under {_LEAST_SWITCHED} GPUs"
        )
    described = gpus_of(snapshot)
    if described and not any(
        value_or(gpu.nvlinks.active, 0) + value_or(gpu.nvlinks.inactive, 0) for gpu in described
    ):
        return NotApplicable("no NVSwitch: these GPUs have no NVLink")
    return None


CHECKS = (
    HealthCheck(
        id="gpu-driver",
        title="Each GPU on the bus has a driver that answers",
        reads="/sys/bus/pci, NVML, DKMS",
        finds=("gpu-without-driver", "gpu-not-in-container", "gpu-not-described"),
        judge=lambda snapshot: (*_gpus_without_driver(snapshot), *_gpus_not_described(snapshot)),
        facts=("pci_gpus.driver", "gpus?"),
        needs=needs_devices,
    ),
    HealthCheck(
        id="gpu-on-bus",
        title="No GPU has fallen off the bus",
        reads="/sys/bus/pci/devices/*/config",
        finds=("gpu-fell-off-bus",),
        judge=_gpus_off_bus,
        facts=("health.bus.answers",),
        needs=_needs_nvidia,
    ),
    HealthCheck(
        id="gpu-gone",
        title="Every GPU of an earlier run is still there",
        reads="machine.json of the newest run in runs/, /sys/bus/pci, NVML",
        finds=("gpu-gone",),
        judge=_missing_gpus,
        facts=("health.earlier_gpus", "gpus|pci_gpus"),
        needs=needs_health("earlier_gpus"),
    ),
    HealthCheck(
        id="driver-versions",
        title="Kernel module, module on disk and libraries are of one version",
        reads="/sys/module/nvidia/version, modinfo, libnvidia-ml.so, /var/log/apt/history.log",
        finds=("driver-versions-differ", "driver-waits-for-reboot"),
        judge=_driver_versions,
        facts=("health.driver.loaded", "health.driver.library|health.driver.on_disk"),
        needs=_needs_nvidia,
    ),
    HealthCheck(
        id="secure-boot",
        title="Secure Boot lets the driver in",
        reads="EFI variable SecureBoot, /proc/modules, the kernel's log",
        finds=("driver-refused-by-secure-boot",),
        judge=_secure_boot,
        facts=("health.driver.secure_boot", "health.driver.modules"),
        needs=_needs_nvidia,
    ),
    HealthCheck(
        id="fabric-manager",
        title="The fabric manager runs and fits the driver",
        reads="nv-fabricmanager --version, systemctl is-active",
        finds=("fabric-manager-down", "fabric-manager-differs"),
        judge=_fabric_manager,
        facts=("health.driver.fabric_manager", "health.driver.fabric_active"),
        needs=_needs_switch,
    ),
)
