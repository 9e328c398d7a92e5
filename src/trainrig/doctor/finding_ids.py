"""Words that the checks share: the ids of all findings, and what counts as a GPU.

The ids are the whole list, stable and scriptable; users meet them in reports.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from trainrig.catalog.lookup import chip_by_pci_id
from trainrig.machine.snapshot import Gpu, PciGpu, Snapshot, value_or
from trainrig.record import Finding, Severity

GPU_WITHOUT_DRIVER: Final = "gpu-without-driver"
GPU_NOT_IN_CONTAINER: Final = "gpu-not-in-container"
GPU_NOT_USABLE_BY_TORCH: Final = "gpu-not-usable-by-torch"
GPU_HIDDEN: Final = "gpu-hidden"
TF32_OVERRIDDEN: Final = "tf32-overridden"
TORCH_MISSING: Final = "torch-missing"
PCIE_LINK_BELOW_MAX: Final = "pcie-link-below-max"
NVLINK_INACTIVE: Final = "nvlink-inactive"
POWER_LIMIT_BELOW_DEFAULT: Final = "power-limit-below-default"
ECC_UNCORRECTED_ERRORS: Final = "ecc-uncorrected-errors"
MEMORY_REPAIR_FAILED: Final = "memory-repair-failed"
MEMORY_REPAIR_PENDING: Final = "memory-repair-pending"
MIG_ENABLED: Final = "mig-enabled"
THROTTLED: Final = "throttled"
GPUS_DIFFER: Final = "gpus-differ"
PERSISTENCE_OFF: Final = "persistence-off"
CPU_QUOTA: Final = "cpu-quota"
MEMORY_LOW: Final = "memory-low"
SWAP_USED: Final = "swap-used"
SHM_SMALL: Final = "shm-small"

NVIDIA_ID, AMD_ID, HABANA_ID = "10de:", "1002:", "1da3:"


def finding(id: str, severity: Severity, evidence: str, fix: str) -> Finding:
    """One finding; the checks write dozens of them."""
    return Finding(id=id, severity=severity, evidence=evidence, fix=fix)


def is_training_device(device: PciGpu) -> bool:
    """Whether one would expect to train on it: integrated graphics are left out."""
    vendors = (NVIDIA_ID, HABANA_ID)
    return (
        device.pci_id.startswith(vendors)
        or device.pci_class.startswith("12")
        or chip_by_pci_id(device.pci_id) is not None
    )


def device_name(device: PciGpu) -> str:
    """The catalog's name, else the system's, else the id."""
    chip = chip_by_pci_id(device.pci_id)
    return chip.name if chip is not None else value_or(device.name, f"device {device.pci_id}")


def devices_of(snapshot: Snapshot) -> list[PciGpu]:
    """What one would train on, of what is on the bus."""
    return [device for device in value_or(snapshot.pci_gpus, ()) if is_training_device(device)]


def gpus_of(snapshot: Snapshot) -> tuple[Gpu, ...]:
    """The GPUs that a driver describes; none where no driver answers."""
    return value_or(snapshot.gpus, ())


def in_container(snapshot: Snapshot) -> bool:
    """Whether the machine is seen from inside a container."""
    return value_or(snapshot.host.container, "none") != "none"


def indices_of(gpus: Iterable[Gpu]) -> str:
    """``GPU 0, 3``."""
    listed = ", ".join(str(gpu.index) for gpu in gpus)
    return f"GPU {listed}"
